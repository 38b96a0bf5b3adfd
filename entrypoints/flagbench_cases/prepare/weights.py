"""Reads Hugging Face checkpoint folders: one file or shards with an index, of safetensors or pickles."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator

import torch

from flagbench_cases.prepare import pickles
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import is_plain, open_file

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX_SUFFIX = ".index.json"
FOLDER_REMEDY = "set --weights to a Hugging Face checkpoint folder"
MAX_JSON_BYTES = 64 * 2**20


def shard_files(folder: str) -> list[str]:
    """The paths of the files that `shards` reads, in order. Raises DataError if one is missing."""
    return [os.path.join(folder, name) for name in sorted(_files(folder))]


def shards(folder: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a Hugging Face folder with their names, one open file at a time.

    The existence of all files is checked first. Raises DataError for a missing file or tensor, an index that points
    outside of the folder, and unreadable contents.
    """
    files = _files(folder)
    return _read_files(folder, files)


def _files(folder: str) -> dict[str, list[str] | None]:
    """The files of a folder, each with the tensors listed by the index; None without an index."""
    for name in (SAFETENSORS, SAFETENSORS + INDEX_SUFFIX, PICKLED, PICKLED + INDEX_SUFFIX):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            if name.endswith(INDEX_SUFFIX):
                return _indexed(folder, path)
            return {name: None}
    raise DataError(f"{folder} has neither {SAFETENSORS} nor {PICKLED}, whole or sharded", FOLDER_REMEDY)


def _indexed(folder: str, path: str) -> dict[str, list[str] | None]:
    table = read_json(path).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise DataError(f"{path} has no valid weight_map", "download the checkpoint again")
    files: dict[str, list[str] | None] = {}
    for tensor, name in table.items():
        if not is_plain(name):
            raise DataError(f"{path} lists {repr(name)[:80]}, which is not a plain file name", pickles.SOURCE_REMEDY)
        names = files.setdefault(name, [])
        if names is not None:
            names.append(tensor)
    missing = [name for name in sorted(files) if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        names_text = ", ".join(missing[:4])
        raise DataError(
            f"{folder} lacks {len(missing)} of its {len(files)} shards: {names_text}",
            "download the missing files",
        )
    return files


def _read_files(folder: str, files: dict[str, list[str] | None]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(files):
        path = os.path.join(folder, file)
        names = files[file]
        names_in_file = set()
        for name, tensor in _tensors(path):
            names_in_file.add(name)
            if names is None or name in names:
                yield name, tensor
        missing = sorted(set(names or ()) - names_in_file)
        if missing:
            raise DataError(
                f"{path} lacks {len(missing)} tensors listed in the index, such as {missing[0][:80]}",
                "download it again",
            )


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors or pickled file."""
    if path.endswith(".safetensors"):
        return _safetensors(path)
    return iter(pickles.read_table(path, inside=()).items())


def _safetensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
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
    model: torch.nn.Module, state: dict[str, torch.Tensor], folder: str, remedy: str, optional: tuple[str, ...] = ()
) -> None:
    """Load the tensors of a checkpoint folder by the names of a model; others are ignored.

    Raises DataError for another shape, and for a missing tensor unless its name begins with one of `optional`.
    """
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name in state and state[name].shape != tensor.shape:
            shape, wanted_shape = tuple(state[name].shape), tuple(tensor.shape)
            raise DataError(f"{folder}: {name} has the shape {shape}, not {wanted_shape}", remedy)
        if name not in state and not name.startswith(optional):
            raise DataError(f"{folder} has no tensor {name}", remedy)
    model.load_state_dict({name: state.get(name, tensor) for name, tensor in wanted.items()})


def read_config(folder: str) -> dict[str, Any]:
    """The checkpoint's config.json."""
    return read_json(os.path.join(folder, "config.json"))


def read_json(path: str) -> dict[str, Any]:
    """A JSON object of a checkpoint. Raises DataError."""
    try:
        if os.stat(path).st_size > MAX_JSON_BYTES:
            raise ValueError("it is too large")
        with open_file(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", FOLDER_REMEDY) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error})", "download the checkpoint again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a JSON object", "download the checkpoint again")
    return content
