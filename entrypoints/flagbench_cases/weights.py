"""Checkpoint folders of Hugging Face, read without running anything that is pickled in them."""

import json
import os
import pickle
import types
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
    path = tensors if os.path.exists(tensors) else pickled
    try:
        if path == tensors:
            from safetensors.torch import load_file

            return load_file(path)
        options = {} if not hasattr(torch, "compile") else {"weights_only": False}
        state = torch.load(path, map_location="cpu", pickle_module=_tensor_pickle(), **options)
    except FileNotFoundError:
        raise DataError(
            "%s holds neither model.safetensors nor pytorch_model.bin" % folder,
            "give --weights a Hugging Face checkpoint folder",
        ) from None
    except pickle.UnpicklingError as error:
        raise DataError(
            "%s is not a plain checkpoint: %s" % (path, error), "use weights from a source you trust"
        ) from error
    except Exception as error:
        # safetensors and torch.load raise their own types for a corrupt file, differing by version.
        raise DataError(
            "%s cannot be read (%s: %s)" % (path, type(error).__name__, str(error).split("\n")[0]),
            "it is truncated or no checkpoint: fetch it again",
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise DataError("%s is not a table of tensors" % path, "give a checkpoint saved as a state dict")
    return state


def read_config(folder: str) -> Dict[str, Any]:
    """The checkpoint's config.json."""
    path = os.path.join(folder, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise DataError("%s does not exist" % path, "give --weights a Hugging Face checkpoint folder") from None
    except (OSError, ValueError) as error:
        raise DataError("%s cannot be read (%s)" % (path, error), "fetch the checkpoint again") from error
    if not isinstance(content, dict):
        raise DataError("%s is not a JSON object" % path, "fetch the checkpoint again")
    return content
