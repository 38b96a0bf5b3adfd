"""Reads checkpoints written by torch.save without executing any of their contents.

`torch.load(weights_only=True)` builds tensors and plain values only. Classes that training programs pickle beside the
weights (arguments, random states, loss scalers) are replaced by `Ignored`; any other name is refused.
"""

from __future__ import annotations

import contextlib
import pickle
import pickletools
import re
import struct
import zipfile
from typing import IO, Any, Iterator, Sequence

import torch

from flagbench_cases.shared.errors import DataError

FIRST_SAFE_TORCH = (2, 6)
"""The first version whose torch.load accepts a replacement for a class by the name of the class."""
IGNORED_MODULES = ("apex", "argparse", "deepspeed", "fp16", "learning_rates", "loss_scaler", "megatron", "numpy")
"""Packages whose objects are ignored. None of them is imported."""
LEGACY_PICKLES = 4
"""Pickles at the start of a file of torch before 1.6: magic number, version, facts of the machine, content."""
FETCH_REMEDY = "download it again: it is truncated or not a checkpoint"
SOURCE_REMEDY = "use weights from a source you trust"
MAX_NAME_LENGTH = 80
"""Most characters of a name from a checkpoint that an error shows."""
MAX_NAMED_KEYS = 8
"""Most keys of a table that an error shows."""
MAX_KEY_LENGTH = 40
"""Most characters of each of them."""
MAX_CAUSE_LENGTH = 200
"""Most characters of a library's message that an error shows."""

DAMAGED = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    struct.error,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    NotImplementedError,
)
"""Exceptions that a damaged file causes in torch.load and zipfile."""


class Ignored:
    """Replaces an object that is not a tensor: accepts any arguments and any state, and does nothing."""

    def __new__(cls, *arguments: Any) -> Ignored:
        return object.__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def read_table(path: str, inside: Sequence[str] = ("module",)) -> dict[str, torch.Tensor]:
    """Read the table of tensors under the keys `inside` of a file of torch.save, in its order. Raises DataError."""
    return table_in(path, read(path), inside)


def read(path: str) -> Any:
    """Read a file written by torch.save, with `Ignored` for everything but tensors and plain values.

    Tensors are memory-mapped if the file is an archive, as torch 1.6 and later write it: it must not change while
    they are used. Raises DataError if this torch is too old, and for a file that is damaged or uses other names.
    """
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < FIRST_SAFE_TORCH:
        major, minor = FIRST_SAFE_TORCH
        raise DataError(
            f"{path} is a pickle; reading it safely needs torch {major}.{minor} or later, "
            f"and this is {torch.__version__}",
            "use safetensors, or run `flagbench prepare` on the host or in the cpu image",
        )
    with _damage_as_data_error(path):
        is_archive = zipfile.is_zipfile(path)
        names = _names_in_archive(path) if is_archive else _names_in_legacy_file(path)
        replacements = [(Ignored, name) for name in names if name.split(".")[0] in IGNORED_MODULES]
        with _only_safe_globals(replacements):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)


@contextlib.contextmanager
def _only_safe_globals(replacements: list[Any]) -> Iterator[None]:
    """Let torch.load use these names in addition to its own, and none that an imported library has allowed.

    `replacements`: pairs of a class and the name of the class that it replaces.
    """
    allowed_before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with torch.serialization.safe_globals(replacements):
            yield
    finally:
        torch.serialization.add_safe_globals(allowed_before)


def _names_in_legacy_file(path: str) -> set[str]:
    """Return the names of classes and functions that a file of torch before 1.6 uses."""
    names: set[str] = set()
    with open(path, "rb") as file:
        for _ in range(LEGACY_PICKLES):
            names.update(_names_in_pickle(file))
    return names


def _names_in_archive(path: str) -> set[str]:
    """Return the names of classes and functions that an archive uses.

    Verifies its checksums first, which torch.load does not do for memory-mapped tensors.
    """
    names: set[str] = set()
    with zipfile.ZipFile(path) as archive:
        damaged_member = archive.testzip()
        if damaged_member is not None:
            raise zipfile.BadZipFile(f"{damaged_member} does not match its checksum")
        for member in archive.namelist():
            if member.endswith("/data.pkl"):
                with archive.open(member) as file:
                    names.update(_names_in_pickle(file))
    return names


def _names_in_pickle(file: IO[bytes]) -> Iterator[str]:
    """Return the names in the next pickle of a file, as MODULE.NAME. Nothing is unpickled."""
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "GLOBAL":
            yield str(argument).replace(" ", ".")


def dict_in(path: str, content: Any, inside: Sequence[str]) -> dict[Any, Any]:
    """Return the dict under the keys `inside` of `content`, which `read` returned. Raises DataError without one."""
    place = path
    for key in inside:
        place += f"[{key!r}]"
        if not isinstance(content, dict) or key not in content:
            words = f"{place} does not exist; there is {_keys_text(content)}"
            raise DataError(words, "give the published checkpoint")
        content = content[key]
    if not isinstance(content, dict):
        raise _no_table(place)
    return content


def _keys_text(content: Any) -> str:
    """Return the first keys of a table, shortened for a message."""
    if not isinstance(content, dict):
        return "no table"
    names = sorted(repr(name)[:MAX_KEY_LENGTH] for name in content)
    return ", ".join(names[:MAX_NAMED_KEYS]) or "nothing"


def table_in(path: str, content: Any, inside: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return what `dict_in` does, if it is a dict of tensors, without gradients. Raises DataError for other dicts."""
    table = dict_in(path, content, inside)
    if not all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in table.items()):
        raise _no_table(path + "".join(f"[{key!r}]" for key in inside))
    return {name: tensor.detach() for name, tensor in table.items()}


def _no_table(place: str) -> DataError:
    return DataError(f"{place} is not a table of tensors", "give a checkpoint saved as a state dict")


@contextlib.contextmanager
def _damage_as_data_error(path: str) -> Iterator[None]:
    """Turn the errors of a damaged or malicious file into DataError."""
    try:
        yield
    except DAMAGED as error:
        if "allocate memory" in str(error):  # torch's message; it is not the file's fault
            raise
        refused_global = re.search(r"GLOBAL (\S+)", str(error))
        if refused_global:
            name = refused_global.group(1)[:MAX_NAME_LENGTH]
            raise DataError(f"{path} is not a plain checkpoint: it uses {name}", SOURCE_REMEDY) from error
        raise unreadable(path, error) from error


def unreadable(path: str, error: Exception) -> DataError:
    """Return the error for a damaged file. torch's advice, which follows its first sentence, is left out."""
    cause = re.split(r"\n|\. ", str(error))[0][:MAX_CAUSE_LENGTH]
    return DataError(f"{path} cannot be read ({type(error).__name__}: {cause})", FETCH_REMEDY)
