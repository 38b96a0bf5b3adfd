"""Reads weights in llama-safetensors/v1, whole tensors or parts of them, one file open at a time."""

from __future__ import annotations

import os
from typing import Any, Iterator, Sequence

import torch

from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.prepare.weights import read_json
from flagbench_cases.shared.errors import DataError

AGAIN = "prepare the weights again"


class Weights:
    """The tensors of a model in a folder with `index.json`, `config.json` and safetensors, and their `names`."""

    def __init__(self, folder: str, section: dict[str, Any]) -> None:
        """`section`: the `model` section of the configuration. Raises DataError for the weights of another model."""
        config = read_json(os.path.join(folder, "config.json"))
        weights_format.check_config(folder, config, weights_format.sizes(section), section["name"])
        self.folder = folder
        self.names = sorted(weights_format.shapes(section))
        self._files: dict[str, list[str]] = {}
        for name, file in sorted(read_json(os.path.join(folder, "index.json")).items()):
            self._files.setdefault(file, []).append(name)

    def read(self, wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """The wanted tensors with their names, in the order of the files. Each supports `[...]` with slices, which
        reads only that part, like safetensors' `get_slice`. Raises DataError."""
        from safetensors import SafetensorError, safe_open

        wanted_names = set(wanted)
        for file, names_in_file in sorted(self._files.items()):
            names = [name for name in names_in_file if name in wanted_names]
            if not names:
                continue
            path = os.path.join(self.folder, file)
            try:
                with safe_open(path, framework="pt", device="cpu") as tensors:
                    for name in names:
                        yield name, tensors.get_slice(name)
            except (SafetensorError, OSError) as error:
                reason = str(error).split("\n")[0]
                raise DataError(f"{path} cannot be read ({reason})", AGAIN) from error

    def padding(self) -> torch.Tensor | None:
        """The rows of the output layer after the vocabulary, [rows, D]; None if there are none. Raises DataError."""
        for _, part in self.read([weights_format.PADDING]):
            return whole(part)
        return None


def open_prepared(folder: str, case: str, section: dict[str, Any]) -> tuple[Weights, str]:
    """The weights of a prepared folder, and its digest. Raises DataError."""
    place = prepared_folder.open_folder(folder, case, "weights", (weights_format.FORMAT,))
    return Weights(place.folder, section), place.digest


def whole(part: Any) -> torch.Tensor:
    """All of a tensor that `Weights.read` gave."""
    return part[:]  # type: ignore[no-any-return]
