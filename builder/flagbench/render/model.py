"""A rendered image: every file of its build directory, and the digest that stands for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

FILE_MODE = 0o644
EXECUTABLE_MODE = 0o755


@dataclass(frozen=True)
class Rendered:
    """A complete build directory in memory, but for the inputs that a person gives to a build."""

    name: str
    """`stack/STACK` or `CASE/STACK`."""
    dockerfile: str
    files: Mapping[str, bytes]
    """Relative posix paths, sorted, to content; the Dockerfile is one of them."""
    executables: frozenset[str] = field(default=frozenset())
    """The files among them whose mode has the x bits."""

    def mode(self, path: str) -> int:
        """The permission bits of a file."""
        return EXECUTABLE_MODE if path in self.executables else FILE_MODE

    @cached_property
    def digest(self) -> str:
        """`sha256:<64 hex>` over path, mode and content of every file: the context before any build option."""
        summed = hashlib.sha256()
        for path, content in self.files.items():
            # Lengths are part of it: no two sets of files spell the same bytes.
            summed.update(f"{self.mode(path):o} {len(path.encode())} {path} ".encode())
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
