"""Reads checkpoints without executing pickled code.

A Hugging Face folder has its tensors in `model.safetensors`, in shards listed by an index, or in pickles of the same
layout. Checkpoints of other projects are pickles with additional contents, of which one table of tensors is read.
"""

import json
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

import torch

from flagbench_cases.prepare.weights.archives import DAMAGED, REFUSED, is_lack_of_memory, open_archive
from flagbench_cases.prepare.weights.pickles import TensorRef
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import is_plain, open_file

T = TypeVar("T")
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
FOLDER_REMEDY = "set --weights to a Hugging Face checkpoint folder"
FETCH_REMEDY = "download it again: it is truncated or not a checkpoint"
SOURCE_REMEDY = "use weights from a source you trust"
MAX_JSON_BYTES = 64 * 2**20


def read_state(folder: str) -> Dict[str, torch.Tensor]:
    """All tensors of model.safetensors, else of pytorch_model.bin, on the host."""
    tensors, pickled = (os.path.join(folder, name) for name in (SAFETENSORS, PICKLED))
    if os.path.isfile(tensors):
        return dict(_safetensors(tensors))
    if os.path.isfile(pickled):
        return read_pickled(pickled, inside=())
    raise DataError("%s has neither %s nor %s" % (folder, SAFETENSORS, PICKLED), FOLDER_REMEDY)


def read_pickled(path: str, inside: Sequence[str] = ("module",)) -> Dict[str, torch.Tensor]:
    """The table of tensors under the keys `inside` of a file written by torch.save, in its order.

    The tensors are memory-mapped: the file must not change while they are used. Other contents, such as optimizer
    state or program arguments, are neither read nor executed. Raises DataError.
    """
    checkpoint = Pickled(path)
    return {name: checkpoint.tensor(ref) for name, ref in checkpoint.table(inside).items()}


class Pickled:
    """A file written by torch.save, of which tensors are read one by one, memory-mapped: it must not change."""

    def __init__(self, path: str) -> None:
        """Open the file without reading its tensors. Raises DataError."""
        self.path = path
        self._archive = _guarded(path, open_archive, path)

    def at(self, inside: Sequence[str]) -> Dict[Any, Any]:
        """The dict under the keys `inside`, with a TensorRef for every tensor. Raises DataError if there is none."""
        found, place = self._archive.content, ""
        for key in inside:
            place += "[%r]" % key
            if not isinstance(found, dict) or key not in found:
                names = sorted(repr(key)[:40] for key in found)[:8] if isinstance(found, dict) else ["no table"]
                raise DataError(
                    "%s has no %s; it has %s" % (self.path, place, ", ".join(names) or "nothing"),
                    "give the published checkpoint",
                )
            found = found[key]
        if not isinstance(found, dict):
            raise _no_table(self.path + place)
        return found

    def table(self, inside: Sequence[str]) -> Dict[str, TensorRef]:
        """The table of tensors under the keys `inside`, in its order. Raises DataError if it has anything else."""
        table = self.at(inside)
        if not all(isinstance(name, str) and isinstance(value, TensorRef) for name, value in table.items()):
            raise _no_table(self.path + "".join("[%r]" % key for key in inside))
        return table

    def tensor(self, ref: TensorRef) -> torch.Tensor:
        """A tensor of this file. Raises DataError if it is damaged."""
        return _guarded(self.path, self._archive.tensor, ref)


def shard_files(folder: str) -> List[str]:
    """The paths of the files that `shards` reads, in order. Raises DataError if one is missing."""
    return [os.path.join(folder, name) for name in sorted(_files(folder))]


def shards(folder: str) -> Iterator[Tuple[str, torch.Tensor]]:
    """The tensors of a Hugging Face folder with their names, one open file at a time.

    The existence of all files is checked first. Raises DataError for a missing file or tensor, an index that points
    outside of the folder, and unreadable contents.
    """
    files = _files(folder)
    return _each(folder, files)


def _files(folder: str) -> Dict[str, Optional[List[str]]]:
    """The files of a folder, each with the tensors listed by the index; None without an index."""
    for name in (SAFETENSORS, SAFETENSORS + INDEX, PICKLED, PICKLED + INDEX):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return _indexed(folder, path) if name.endswith(INDEX) else {name: None}
    raise DataError("%s has neither %s nor %s, whole or sharded" % (folder, SAFETENSORS, PICKLED), FOLDER_REMEDY)


def _indexed(folder: str, path: str) -> Dict[str, Optional[List[str]]]:
    table = read_json(path).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise DataError("%s has no valid weight_map" % path, "download the checkpoint again")
    files: Dict[str, Optional[List[str]]] = {}
    for tensor, name in table.items():
        if not is_plain(name):
            raise DataError("%s lists %s, which is not a plain file name" % (path, repr(name)[:80]), SOURCE_REMEDY)
        names = files.setdefault(name, [])
        if names is not None:
            names.append(tensor)
    missing = [name for name in sorted(files) if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise DataError(
            "%s lacks %d of its %d shards: %s" % (folder, len(missing), len(files), ", ".join(missing[:4])),
            "download the missing files",
        )
    return files


def _each(folder: str, files: Dict[str, Optional[List[str]]]) -> Iterator[Tuple[str, torch.Tensor]]:
    for file in sorted(files):
        path = os.path.join(folder, file)
        names = files[file]
        found = set()
        for name, tensor in _tensors(path):
            found.add(name)
            if names is None or name in names:
                yield name, tensor
        missing = sorted(set(names or ()) - found)
        if missing:
            raise DataError(
                "%s lacks %d tensors listed in the index, such as %s" % (path, len(missing), missing[0][:80]),
                "download it again",
            )


def _tensors(path: str) -> Iterator[Tuple[str, torch.Tensor]]:
    """The tensors of a safetensors or pickled file."""
    if path.endswith(".safetensors"):
        return _safetensors(path)
    return iter(read_pickled(path, inside=()).items())


def _safetensors(path: str) -> Iterator[Tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    # KeyError, AttributeError: a dtype that this torch does not have
    damaged = (SafetensorError, OSError, LookupError, AttributeError, RuntimeError, ValueError, TypeError)
    try:
        file = safe_open(path, framework="pt")
    except damaged as error:
        raise _unreadable(path, error) from error
    with file:
        for name in list(file.keys()):  # not a dict: it is not iterable
            try:
                tensor = file.get_tensor(name)
            except damaged as error:
                raise _unreadable(path, error) from error
            yield name, tensor


def _no_table(place: str) -> DataError:
    return DataError("%s is not a table of tensors" % place, "give a checkpoint saved as a state dict")


def _guarded(path: str, call: Callable[[Any], T], argument: Any) -> T:
    """Call a reader of a pickled file, converting its errors to DataError."""
    try:
        return call(argument)
    except REFUSED as error:
        raise DataError("%s is not a plain checkpoint: %s" % (path, error), SOURCE_REMEDY) from error
    except DAMAGED as error:
        if is_lack_of_memory(error):
            raise
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> DataError:
    cause = str(error).split("\n")[0]
    return DataError("%s cannot be read (%s: %s)" % (path, type(error).__name__, cause[:200]), FETCH_REMEDY)


def read_config(folder: str) -> Dict[str, Any]:
    """The checkpoint's config.json."""
    return read_json(os.path.join(folder, "config.json"))


def read_json(path: str) -> Dict[str, Any]:
    """A JSON object of a checkpoint. Raises DataError."""
    try:
        if os.stat(path).st_size > MAX_JSON_BYTES:
            raise ValueError("it is too large")
        with open_file(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise DataError("%s does not exist" % path, FOLDER_REMEDY) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError("%s cannot be read (%s)" % (path, error), "download the checkpoint again") from error
    if not isinstance(content, dict):
        raise DataError("%s is not a JSON object" % path, "download the checkpoint again")
    return content
