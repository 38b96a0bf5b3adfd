"""A rendered image: every file of its build directory, and the digest that stands for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

FILE_MODE = 0o644
"""The permission bits of every file: the steps of a Dockerfile name the interpreter of what they run."""


@dataclass(frozen=True)
class Rendered:
    """A complete build directory in memory, but for the inputs that a person gives to a build."""

    name: str
    """`stack/STACK` or `CASE/STACK`."""
    dockerfile: str
    files: Mapping[str, bytes]
    """Relative posix paths, sorted, to content; the Dockerfile is one of them."""

    @cached_property
    def digest(self) -> str:
        """`sha256:<64 hex>` over path, mode and content of every file: the context before any build option."""
        summed = hashlib.sha256()
        for path, content in self.files.items():
            # Lengths are part of it: no two sets of files spell the same bytes.
            summed.update(f"{FILE_MODE:o} {len(path.encode())} {path} ".encode())
            summed.update(_sum(content))
        return "sha256:" + summed.hexdigest()


@lru_cache(maxsize=1024)
def _sum(content: bytes) -> bytes:
    """The sha256 of a file; most are the same in every image of the matrix."""
    return hashlib.sha256(content).digest()


def rendered(name: str, dockerfile: str, files: Mapping[str, bytes]) -> Rendered:
    """A Rendered whose files are sorted and hold the Dockerfile."""
    every = {**files, "Dockerfile": dockerfile.encode()}
    return Rendered(name, dockerfile, {path: every[path] for path in sorted(every)})
