"""Writes tensors as a safetensors file, one at a time, for checkpoints.

The format: the length of the header (8 bytes), the header in JSON, and the bytes of the tensors.

The library's own functions need all tensors of a file on the host at once: for each rank of a 70B model more than
20 GB, on all ranks of a node at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import Any, BinaryIO, Callable, Iterator, Sequence

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
"""The names of tensor types in a header."""
ALIGNMENT = 8
"""The header's length is a multiple of these bytes, the size of the largest element."""
FLUSH_BYTES = 2**30
"""Bytes after which a file is flushed to disk, so that no flush takes longer than a run may be silent."""


def write(path: str, tensors: dict[str, torch.Tensor], beat: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Write a new file and flush it to disk. Returns its `bytes` and `sha256`. Raises OSError.

    `beat` is called before each tensor, to report progress.
    """
    # Large elements first, as the library does: every tensor is then aligned in memory when the file is mapped.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = _header_bytes(names, tensors)
    digest = hashlib.sha256()
    size = 0
    flushed = 0
    with open(path, "xb") as file:
        for piece in _iterate_pieces(header, names, tensors, beat):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            if size - flushed >= FLUSH_BYTES:
                _flush(file)
                flushed = size
        _flush(file)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _header_bytes(names: Sequence[str], tensors: dict[str, torch.Tensor]) -> bytes:
    """The header: type, shape and place of each tensor, padded with spaces to a multiple of ALIGNMENT."""
    header = {}
    start = 0
    for name in names:
        tensor = tensors[name]
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    encoded = json.dumps(header).encode("utf-8")
    padding = -len(encoded) % ALIGNMENT
    return encoded + b" " * padding


def _iterate_pieces(
    header: bytes, names: Sequence[str], tensors: dict[str, torch.Tensor], beat: Callable[[], None]
) -> Iterator[bytes | memoryview]:
    """Yield the parts of the file in order. Only one tensor at a time is copied to the host."""
    yield struct.pack("<Q", len(header)) + header
    for name in names:
        beat()
        on_host = tensors[name].detach().cpu().contiguous()
        # Through bytes, since numpy has no bfloat16.
        yield on_host.reshape(-1).view(torch.uint8).numpy().data


def _flush(file: BinaryIO) -> None:
    """Wait until everything written is on disk."""
    file.flush()
    os.fsync(file.fileno())
