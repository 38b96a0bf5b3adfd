"""The checksums of files and of what is uploaded."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_CHUNK = 2**20
_NOT_FOR_SECURITY: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}


def sha256_of(path: Path) -> str:
    """The sha256 of a file, 64 hexadecimal digits. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            found.update(chunk)
    return found.hexdigest()


def md5(content: bytes) -> bytes:
    """The MD5 with which a server checks what it receives."""
    return md5_sum([content])


def md5_sum(pieces: Iterable[bytes]) -> bytes:
    """The MD5 of pieces of content."""
    found = hashlib.md5(**_NOT_FOR_SECURITY)
    for piece in pieces:
        found.update(piece)
    return found.digest()
