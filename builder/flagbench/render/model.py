"""A rendered image: every file of its build directory, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

FILE_MODE = 0o644
"""The permission bits of every file: the steps of a Dockerfile name the interpreter of what they run."""


@dataclass(frozen=True)
class Rendered:
    """A complete build directory in memory, except for the inputs of a build."""

    name: str
    """`stack/STACK` or `CASE/STACK`."""
    dockerfile: str
    files: Mapping[str, bytes]
    """Relative posix paths, sorted, to content; the Dockerfile is one of them."""

    @cached_property
    def digest(self) -> str:
        """`sha256:<64 hex>` over path, mode and content of every file: the context before any build option."""
        return "sha256:" + hashlib.sha256(b"".join(map(_part, self.files, self.files.values()))).hexdigest()


def _part(path: str, content: bytes) -> bytes:
    """What a digest is over for one file; most files are the same in every image of the matrix."""
    # Lengths are part of it: no two sets of files spell the same bytes.
    encoded = path.encode()
    return b"%o %d %b " % (FILE_MODE, len(encoded), encoded) + hashlib.sha256(content).digest()


def rendered(name: str, dockerfile: str, files: Mapping[str, bytes]) -> Rendered:
    """A Rendered whose files are sorted and hold the Dockerfile."""
    every = {**files, "Dockerfile": dockerfile.encode()}
    return Rendered(name, dockerfile, {path: every[path] for path in sorted(every)})
