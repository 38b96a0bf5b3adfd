"""Reads Hugging Face checkpoint folders: one file or shards with an index, of safetensors or pickles."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator

import torch

from flagbench_cases.prepare import pickles
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import is_plain, open_file

SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
INDEX_SUFFIX = ".index.json"
FOLDER_REMEDY = "set --weights to a Hugging Face checkpoint folder"
MAX_JSON_BYTES = 64 * 2**20
"""The size from which a JSON file is refused before it is read into memory. An index has about 100 bytes a tensor."""
MAX_NAMED_SHARDS = 4
"""Most missing files that an error names."""
MAX_NAME_LENGTH = 80
"""Most characters of a name from a checkpoint that an error shows."""


def shard_files(folder: str) -> list[str]:
    """Return the paths of the files that `iter_tensors` reads, in order. Raises DataError if one is missing."""
    return [os.path.join(folder, file_name) for file_name in sorted(_find_files(folder))]


def iter_tensors(folder: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the tensors of a Hugging Face folder with their names, one open file at a time.

    The existence of all files is checked by the call itself, before the first tensor is read. Raises DataError for a
    missing file or tensor, an index that points outside of the folder, and unreadable contents.
    """
    files = _find_files(folder)  # not in a generator, which would check them only when the first tensor is read
    return _read_files(folder, files)


def _find_files(folder: str) -> dict[str, list[str] | None]:
    """Return the tensors that the folder's index lists for each file, by file name; None for a file without index."""
    for file_name in (SAFETENSORS, SAFETENSORS + INDEX_SUFFIX, PICKLED, PICKLED + INDEX_SUFFIX):
        path = os.path.join(folder, file_name)
        if os.path.isfile(path):
            if file_name.endswith(INDEX_SUFFIX):
                return _indexed_files(folder, path)
            return {file_name: None}
    raise DataError(f"{folder} has neither {SAFETENSORS} nor {PICKLED}, whole or sharded", FOLDER_REMEDY)


def _indexed_files(folder: str, index_path: str) -> dict[str, list[str] | None]:
    """Return the names of the tensors in each file of an index, by file name. Raises DataError for a missing file."""
    weight_map: Any = read_json(index_path).get("weight_map")
    if not _is_weight_map(weight_map):
        raise DataError(f"{index_path} has no valid weight_map", "download the checkpoint again")
    tensors_of: dict[str, list[str]] = {}
    for tensor_name, file_name in weight_map.items():
        if not is_plain(file_name):
            shown = repr(file_name)[:MAX_NAME_LENGTH]
            raise DataError(f"{index_path} lists {shown}, which is not a plain file name", pickles.SOURCE_REMEDY)
        tensors_of.setdefault(file_name, []).append(tensor_name)
    missing = [name for name in sorted(tensors_of) if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        names = ", ".join(missing[:MAX_NAMED_SHARDS])
        if len(missing) > MAX_NAMED_SHARDS:
            names += ", ..."
        raise DataError(
            f"{folder} lacks {len(missing)} of its {len(tensors_of)} shards: {names}", "download the missing files"
        )
    return dict(tensors_of)


def _is_weight_map(weight_map: Any) -> bool:
    """Return whether the value is a table of file names by tensor, as an index has it, and not empty."""
    if not isinstance(weight_map, dict) or not weight_map:
        return False
    return all(isinstance(file_name, str) for file_name in weight_map.values())


def _read_files(folder: str, files: dict[str, list[str] | None]) -> Iterator[tuple[str, torch.Tensor]]:
    for file_name, indexed in sorted(files.items()):
        path = os.path.join(folder, file_name)
        if indexed is None:
            yield from _tensors(path)
        else:
            yield from _indexed_tensors(path, indexed)


def _indexed_tensors(path: str, indexed: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the tensors of a file that the index lists for it. Raises DataError at the end if one is missing."""
    missing = set(indexed)
    for tensor_name, tensor in _tensors(path):
        if tensor_name in missing:
            missing.remove(tensor_name)
            yield tensor_name, tensor
    if missing:
        name = min(missing)[:MAX_NAME_LENGTH]
        raise DataError(
            f"{path} lacks {len(missing)} tensors listed in the index, such as {name}", "download it again"
        )


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the tensors of a safetensors or pickled file."""
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
        tensor_names = file.keys()  # safe_open cannot be iterated over
        for tensor_name in tensor_names:
            try:
                tensor = file.get_tensor(tensor_name)
            except damaged as error:
                raise pickles.unreadable(path, error) from error
            yield tensor_name, tensor


def load_into(
    model: torch.nn.Module, state: dict[str, torch.Tensor], folder: str, remedy: str, optional: tuple[str, ...] = ()
) -> None:
    """Load the tensors `state` of a checkpoint folder that have the name of a tensor of the model; ignore the others.

    Raises DataError for a tensor of another shape, and for a missing tensor. The model keeps its own values for
    missing tensors whose names begin with one of `optional`.
    """
    model_tensors = model.state_dict()
    for name, model_tensor in model_tensors.items():
        if name in state and state[name].shape != model_tensor.shape:
            shape = tuple(state[name].shape)
            model_shape = tuple(model_tensor.shape)
            raise DataError(f"{folder}: {name} has the shape {shape}, not {model_shape}", remedy)
        if name not in state and not name.startswith(optional):
            raise DataError(f"{folder} has no tensor {name}", remedy)
    model.load_state_dict({name: state.get(name, model_tensor) for name, model_tensor in model_tensors.items()})


def read_config(folder: str) -> dict[str, Any]:
    """Read the checkpoint's config.json. Raises DataError."""
    return read_json(os.path.join(folder, "config.json"))


def read_json(path: str) -> dict[str, Any]:
    """Read a file of a checkpoint that is a JSON object. Raises DataError."""
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
