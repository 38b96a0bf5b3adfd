"""Checkpoint folders of Hugging Face, read without running anything that is pickled in them."""

import json
import os
import pickle
import types
import zipfile
from typing import Any, Dict

import torch

from flagbench_cases.errors import DataError

ALLOWED = {
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch", "FloatStorage"),
    ("torch", "HalfStorage"),
    ("torch", "BFloat16Storage"),
    ("torch", "LongStorage"),
    ("torch", "BoolStorage"),
}

# What torch.load raises for a damaged pickle, found by damaging some on torch 1.12 and 2.13: its own format
# errors are RuntimeError, ValueError and AssertionError, the others come of opcodes that make no sense.
# MemoryError is not among them: a machine without memory is no fault of the file.
PICKLE_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    zipfile.BadZipFile,
)


class TensorUnpickler(pickle.Unpickler):
    """An unpickler that can build tensors and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every global that is not needed for a tensor."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError("it asks for %s.%s, which is not a tensor" % (module, name))
        return super().find_class(module, name)


def _tensor_pickle() -> types.ModuleType:
    """A stand-in for the pickle module as torch.load takes it; torch 1.12 has no weights_only."""
    module = types.ModuleType("tensor_pickle")
    module.Unpickler = TensorUnpickler  # type: ignore[attr-defined]
    module.load = lambda file, **kw: TensorUnpickler(file, **kw).load()  # type: ignore[attr-defined]
    module.UnpicklingError = pickle.UnpicklingError  # type: ignore[attr-defined]
    return module


def read_state(folder: str) -> Dict[str, torch.Tensor]:
    """All tensors of model.safetensors, or else of pytorch_model.bin, on the host."""
    tensors, pickled = (os.path.join(folder, name) for name in ("model.safetensors", "pytorch_model.bin"))
    if os.path.exists(tensors):
        return _read_safetensors(tensors)
    if os.path.exists(pickled):
        return _read_pickle(pickled)
    raise DataError(
        "%s holds neither model.safetensors nor pytorch_model.bin" % folder,
        "give --weights a Hugging Face checkpoint folder",
    )


def _read_safetensors(path: str) -> Dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError) as error:  # KeyError: a type that this torch does not have
        raise _unreadable(path, error) from error


def _read_pickle(path: str) -> Dict[str, torch.Tensor]:
    options = {} if not hasattr(torch, "compile") else {"weights_only": False}
    try:
        _refuse_torchscript(path)
        state = torch.load(path, map_location="cpu", pickle_module=_tensor_pickle(), **options)
    except pickle.UnpicklingError as error:
        raise DataError(
            "%s is not a plain checkpoint: %s" % (path, error), "use weights from a source you trust"
        ) from error
    except PICKLE_ERRORS as error:
        if "allocate memory" in str(error):  # torch's host allocator says so in a RuntimeError
            raise
        raise _unreadable(path, error) from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise DataError("%s is not a table of tensors" % path, "give a checkpoint saved as a state dict")
    return state


def _refuse_torchscript(path: str) -> None:
    """torch.load hands an archive with this member to torch.jit.load, which runs the code in it."""
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":  # torch.load's own test of what is an archive
            return
    with zipfile.ZipFile(path) as archive:
        if any(name.split("/")[-1] == "constants.pkl" for name in archive.namelist()):
            raise pickle.UnpicklingError("it is a TorchScript program")


def _unreadable(path: str, error: Exception) -> DataError:
    cause = str(error).split("\n")[0]
    return DataError(
        "%s cannot be read (%s: %s)" % (path, type(error).__name__, cause),
        "fetch it again: it is truncated or no checkpoint",
    )


def read_config(folder: str) -> Dict[str, Any]:
    """The checkpoint's config.json."""
    path = os.path.join(folder, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise DataError("%s does not exist" % path, "give --weights a Hugging Face checkpoint folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError("%s cannot be read (%s)" % (path, error), "fetch the checkpoint again") from error
    if not isinstance(content, dict):
        raise DataError("%s is not a JSON object" % path, "fetch the checkpoint again")
    return content
