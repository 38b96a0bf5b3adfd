"""Writes tensors as a safetensors file, one at a time.

The library's own functions need all tensors of a file on the host at once: for each rank of a 70B model more than
20 GB, on all ranks of a node at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import Any, Callable

import torch

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
FLUSH_BYTES = 2**30
"""Bytes after which a file is flushed to disk, so that no flush takes longer than a run may be silent."""


def write(path: str, tensors: dict[str, torch.Tensor], beat: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Write a new file and flush it to disk; returns its size and checksum. Raises OSError.

    `beat` is called before each tensor.
    """
    # Large elements first, as the library does: every tensor is then aligned in memory when the file is mapped.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = {}
    at = 0
    for name in names:
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    words = json.dumps(header).encode("utf-8")
    words += b" " * (-len(words) % 8)
    digest = hashlib.sha256()
    size = 0
    flushed = 0
    with open(path, "xb") as file:
        for piece in _pieces(words, names, tensors, beat):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            if size - flushed >= FLUSH_BYTES:
                _flush(file)
                flushed = size
        _flush(file)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _pieces(words: bytes, names: Any, tensors: dict[str, torch.Tensor], beat: Callable[[], None]) -> Any:
    yield struct.pack("<Q", len(words)) + words
    for name in names:
        beat()
        yield tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
