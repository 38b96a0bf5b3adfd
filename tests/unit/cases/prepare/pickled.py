"""Checkpoints for tests, saved by their libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

# torch.load's two formats; the older one is what checkpoints before torch 1.6 are in.
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
CURRENT_TORCH = pytest.mark.skipif(
    not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"),
    reason="pickles need torch 2.6",
)


def save(path: Path, content: Any, zipped: bool = True) -> str:
    torch.save(content, str(path), _use_new_zipfile_serialization=zipped)
    return str(path)


class Call:
    """Pickles as a call: unpickling it calls `function` with `arguments`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A file of safetensors, or of torch.save by its ending .bin."""
    if path.suffix == ".bin":
        torch.save(tensors, str(path))
    else:
        safetensors = pytest.importorskip("safetensors.torch", reason="a reader of every image")
        safetensors.save_file(tensors, str(path))


def sharded(folder: Path, kind: str, shards: list[dict[str, torch.Tensor]]) -> Path:
    """A folder of `safetensors` or `bin` as Hugging Face shards it."""
    whole = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[kind]
    stem, suffix = whole.split(".")
    where = {}
    for number, tensors in enumerate(shards, 1):
        name = f"{stem}-{number:05d}-of-{len(shards):05d}.{suffix}"
        save_tensors(folder / name, tensors)
        where.update(dict.fromkeys(tensors, name))
    (folder / f"{whole}.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return folder
