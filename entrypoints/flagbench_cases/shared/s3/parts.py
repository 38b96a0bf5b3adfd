# A copy of builder/flagbench/s3/parts.py, made by `flagbench manifests compile`.
"""Files in parts, of which several are under way."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

PART_BYTES = 8 * 2**20
MOST_PARTS = 9_000
"""S3 allows 10,000."""
_CHUNK = 2**20
_NOT_FOR_SECURITY: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}


class Show(Protocol):
    """What shows the progress of a transfer; called from several threads."""

    def __call__(self, count: int, /) -> None:
        """`count`: bytes that were transferred, or found to be there, since the last call."""


def part_bytes(size: int) -> int:
    """The size of a part of a file of `size` bytes."""
    least = -(-size // MOST_PARTS)
    return max(PART_BYTES, -(-least // _CHUNK) * _CHUNK)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, 64 hexadecimal digits. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            found.update(chunk)
    return found.hexdigest()


def md5(content: bytes) -> bytes:
    """The MD5 with which a server checks what it receives, and of which it makes the ETag of a part."""
    return md5_sum([content])


def md5_sum(pieces: Iterable[bytes]) -> bytes:
    """The MD5 of pieces of content."""
    found = hashlib.md5(**_NOT_FOR_SECURITY)
    for piece in pieces:
        found.update(piece)
    return found.digest()
