"""Reads weights in llama-safetensors/v1, whole tensors or parts of them, one file open at a time."""

import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.prepare.weights import read_json
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import is_plain

AGAIN = "prepare the weights again"


class Weights:
    """The tensors of a model in a folder with `index.json`, `config.json` and safetensors."""

    def __init__(self, folder: str, section: Dict[str, Any]) -> None:
        """`section`: the `model` section of the configuration. Raises DataError for the weights of another model."""
        config = read_json(os.path.join(folder, "config.json"))
        weights_format.check_config(folder, config, weights_format.sizes(section), section["name"])
        self.folder = folder
        self._shapes = weights_format.shapes(section)
        self._dim: int = section["dim"]
        self._files = self._by_file(read_json(os.path.join(folder, "index.json")))

    def read(self, wanted: Sequence[str]) -> Iterator[Tuple[str, Any]]:
        """The wanted tensors with their names, in the order of the files. Each supports `[...]` with slices, which
        reads only that part, like safetensors' `get_slice`. Raises DataError."""
        from safetensors import SafetensorError, safe_open

        names = set(wanted)
        for file, held in sorted(self._files.items()):
            mine = [name for name in held if name in names]
            if not mine:
                continue
            path = os.path.join(self.folder, file)
            try:
                with safe_open(path, framework="pt", device="cpu") as tensors:
                    for name in mine:
                        part = tensors.get_slice(name)
                        self._check(name, tuple(part.get_shape()))
                        yield name, part
            except (SafetensorError, OSError) as error:
                raise DataError("%s cannot be read (%s)" % (path, str(error).split("\n")[0]), AGAIN) from error

    @property
    def names(self) -> List[str]:
        """The names of all tensors of the model."""
        return sorted(self._shapes)

    def padding(self) -> Optional[torch.Tensor]:
        """The rows of the output layer after the vocabulary, [rows, D]; None if there are none. Raises DataError."""
        return next((whole(part) for _, part in self.read([weights_format.PADDING])), None)

    def _by_file(self, index: Dict[str, Any]) -> Dict[str, List[str]]:
        """The names of the tensors in each file. Raises DataError if the index does not match the model."""
        missing = sorted(set(self._shapes) - set(index))
        foreign = sorted(set(index) - set(self._shapes) - {weights_format.PADDING})
        if missing or foreign:
            words = "has no tensor %s" % missing[0] if missing else "has an unknown tensor %s" % foreign[0]
            raise DataError("%s %s" % (self.folder, words), "prepare the weights of this model again")
        files: Dict[str, List[str]] = {}
        for name, file in sorted(index.items()):
            if not isinstance(file, str) or not is_plain(file):
                raise DataError("%s/index.json: the file of %s is invalid" % (self.folder, name), AGAIN)
            files.setdefault(file, []).append(name)
        return files

    def _check(self, name: str, shape: Tuple[int, ...]) -> None:
        wanted = self._shapes.get(name) or (shape[0] if shape else 0, self._dim)
        if shape != wanted:
            raise DataError(
                "%s: %s has the shape %s, not %s" % (self.folder, name, shape, wanted),
                "prepare matching weights",
            )


def open_prepared(folder: str, case: str, section: Dict[str, Any]) -> Tuple[Weights, str]:
    """The weights of a prepared folder, and its digest. Raises DataError."""
    place = prepared_folder.open_folder(folder, case, "weights", (weights_format.FORMAT,))
    return Weights(place.folder, section), place.digest


def whole(part: Any) -> torch.Tensor:
    """All of a tensor that `Weights.read` gave."""
    return part[:]  # type: ignore[no-any-return]
