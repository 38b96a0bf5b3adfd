"""Reads weights in the format llama-safetensors/v1, complete tensors or parts of them, one open file at a time."""

from __future__ import annotations

import os
from typing import Any, Iterator, NamedTuple, Sequence

import torch

from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.prepare.weights import read_json
from flagbench_cases.shared.errors import DataError

REMEDY = "prepare the weights again"


class Weights:
    """The tensors of a model in a folder with `index.json`, `config.json` and safetensors. `names` lists them."""

    def __init__(self, folder: str, section: dict[str, Any]) -> None:
        """Open the folder. Raises DataError for the weights of another model.

        `section`: the `model` section of the configuration.
        """
        config = read_json(os.path.join(folder, "config.json"))
        weights_format.check_config(folder, config, weights_format.sizes(section), section["name"])
        self.folder = folder
        self.names = sorted(weights_format.shapes(section))
        self._names_in_files: dict[str, list[str]] = {}
        """The names of the tensors in each file, by file name."""
        for name, file in sorted(read_json(os.path.join(folder, "index.json")).items()):
            self._names_in_files.setdefault(file, []).append(name)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Read tensors with their names, in the order of the files. Raises DataError.

        What is returned for each is safetensors' `get_slice`: indexing it with slices reads only that part of the
        tensor, and `read_all` reads all of it.
        """
        from safetensors import SafetensorError, safe_open

        wanted = set(names)
        for file, names_in_file in sorted(self._names_in_files.items()):
            wanted_in_file = [name for name in names_in_file if name in wanted]
            if not wanted_in_file:
                continue
            path = os.path.join(self.folder, file)
            try:
                with safe_open(path, framework="pt", device="cpu") as tensors:
                    for name in wanted_in_file:
                        yield name, tensors.get_slice(name)
            except (SafetensorError, OSError) as error:
                reason = str(error).split("\n")[0]
                raise DataError(f"{path} cannot be read ({reason})", REMEDY) from error

    def padding(self) -> torch.Tensor | None:
        """Read the rows of the output layer after the vocabulary, [rows, D]; None if there are none.

        Raises DataError.
        """
        for _, tensor_slice in self.read([weights_format.PADDING]):
            return read_all(tensor_slice)
        return None


class PreparedWeights(NamedTuple):
    """The weights of a prepared folder."""

    weights: Weights
    digest: str
    """The digest of the folder."""


def open_prepared(folder: str, case: str, section: dict[str, Any]) -> PreparedWeights:
    """Open the weights of a prepared folder. Raises DataError."""
    prepared = prepared_folder.open_folder(folder, case, "weights", (weights_format.FORMAT,))
    return PreparedWeights(Weights(prepared.folder, section), prepared.digest)


def read_all(tensor_slice: Any) -> torch.Tensor:
    """Read all of a tensor that `Weights.read` returned."""
    return tensor_slice[:]  # type: ignore[no-any-return]
