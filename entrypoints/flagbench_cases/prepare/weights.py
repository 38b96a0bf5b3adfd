"""Reads Hugging Face checkpoint folders: one file or shards with an index, of safetensors or pickles."""

import json
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from flagbench_cases.prepare import pickles
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import is_plain, open_file

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX_SUFFIX = ".index.json"
FOLDER_REMEDY = "set --weights to a Hugging Face checkpoint folder"
MAX_JSON_BYTES = 64 * 2**20


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
    for name in (SAFETENSORS, SAFETENSORS + INDEX_SUFFIX, PICKLED, PICKLED + INDEX_SUFFIX):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return _indexed(folder, path) if name.endswith(INDEX_SUFFIX) else {name: None}
    raise DataError("%s has neither %s nor %s, whole or sharded" % (folder, SAFETENSORS, PICKLED), FOLDER_REMEDY)


def _indexed(folder: str, path: str) -> Dict[str, Optional[List[str]]]:
    table = read_json(path).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise DataError("%s has no valid weight_map" % path, "download the checkpoint again")
    files: Dict[str, Optional[List[str]]] = {}
    for tensor, name in table.items():
        if not is_plain(name):
            raise DataError(
                "%s lists %s, which is not a plain file name" % (path, repr(name)[:80]), pickles.SOURCE_REMEDY
            )
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
    return iter(pickles.read_table(path, inside=()).items())


def _safetensors(path: str) -> Iterator[Tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    # KeyError, AttributeError: a dtype that this torch does not have
    damaged = (SafetensorError, OSError, LookupError, AttributeError, RuntimeError, ValueError, TypeError)
    try:
        file = safe_open(path, framework="pt")
    except damaged as error:
        raise pickles.unreadable(path, error) from error
    with file:
        for name in list(file.keys()):  # not a dict: it is not iterable
            try:
                tensor = file.get_tensor(name)
            except damaged as error:
                raise pickles.unreadable(path, error) from error
            yield name, tensor


def load_into(
    model: torch.nn.Module, state: Dict[str, torch.Tensor], folder: str, remedy: str, optional: Tuple[str, ...] = ()
) -> None:
    """Load the tensors of a checkpoint folder by the names of a model; others are ignored.

    Raises DataError for another shape, and for a missing tensor unless its name begins with one of `optional`.
    """
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name in state and state[name].shape != tensor.shape:
            shapes = (folder, name, tuple(state[name].shape), tuple(tensor.shape))
            raise DataError("%s: %s has the shape %s, not %s" % shapes, remedy)
        if name not in state and not name.startswith(optional):
            raise DataError("%s has no tensor %s" % (folder, name), remedy)
    model.load_state_dict({name: state.get(name, tensor) for name, tensor in wanted.items()})


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
