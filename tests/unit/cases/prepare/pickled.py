"""Checkpoints for tests: saved by their libraries, or written opcode by opcode."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.prepare import weights
from unit.cases.refusal import refusal as refusal_of

# torch.load's two formats; the older one is what checkpoints before torch 1.6 are in.
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
OLDER = {"weights_only": False} if hasattr(torch, "compile") else {}


def save(path: Path, content: Any, zipped: bool = True) -> str:
    torch.save(content, str(path), _use_new_zipfile_serialization=zipped)
    return str(path)


def refusal(path: Any, inside: Any = ()) -> str:
    """The message of the DataError that reading ends in."""
    return refusal_of(weights.read_pickled, str(path), inside)


def written(body: bytes) -> bytes:
    """A pickle of protocol 2 from its opcodes."""
    return b"\x80\x02" + body + b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def archive(path: Path, content: bytes, **members: bytes) -> Path:
    """A zip as torch.save writes it around a pickle of one's own."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", content)
        for name, data in members.items():
            file.writestr(f"archive/data/{name}", data)
    return path


def storage(numel: bytes, key: str = "0", kind: str = "FloatStorage") -> bytes:
    """Opcodes that leave a storage of so many elements on the stack; `numel` is the opcode of a number."""
    pid = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + numel + b"t"
    return pid + b"Q"


def tensor(stored: bytes, size: bytes, stride: bytes, offset: bytes = b"K\x00") -> bytes:
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + stored + offset + size + stride + b"\x89}tR"


def table(value: bytes) -> bytes:
    return written(b"}" + text("a") + value + b"s")


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
