"""How much room an image takes on the engine's disk, before it is built; its base not counted.

Measured on the stack `cpu`: 27 wheels of 230 MB hold 833 MB of files and became 1.05 GB of layers (4.6 times the
wheels, 1.26 times what is in them), 0.08 GB of that Debian's packages and an empty environment; the compiler and
Python's headers are another 0.29 GB. While it builds,
the engine also keeps a copy of the wheels it was sent.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from flagbench.build.inputs import Inputs
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import Lock

THIN = 100_000_000
"""Bytes that a case's image needs at the most: it is code alone."""
SYSTEM = 450_000_000
"""Bytes that an image needs beside its packages: Debian's, a compiler included, an environment, room to write."""
INSTALLED = 1.3
"""Bytes of layers for each byte in a wheel: Python compiles what it installs. Measured: 1.26 with Debian's part."""
UNPACKED = 4.6
"""Bytes of layers for each byte of a package that does not say what it holds. Measured, see above."""

# Without the files there are only names. `torch` for the processor alone and the mean of the 26 others are measured;
# CUDA's own libraries, which a torch of the default index leaves to packages beside it, are rough on the high side.
_TORCH = 3_000_000_000
_TORCH_CPU = 930_000_000
_CUDA_LIBRARY = 500_000_000
_OTHER = 7_000_000


def require_space(free: int | None, needed: int) -> None:
    """Refuse to begin what cannot fit. Bytes; `free` is None where the engine's disk cannot be seen.

    Raises FlagbenchError (build failed).
    """
    if free is None or free >= needed:
        return
    raise FlagbenchError(
        f"the engine's disk has {free / 1e9:.1f} GB free, and the image needs about {needed / 1e9:.1f} GB more",
        remedy="free some space where the engine keeps its images (`docker system df` shows what takes it)",
        code=ExitCode.BUILD_FAILED,
    )


def stack_bytes(lock: Lock, inputs: Inputs) -> int:
    """Bytes that a stack's image will take: by the files where they are given, by the lock's names where not."""
    files = [source for name, source in inputs.items() if name.startswith("wheels/") and isinstance(source, Path)]
    if not files:
        return locked_bytes(lock)
    return SYSTEM + sum(path.stat().st_size + _installed(path) for path in files)


def locked_bytes(lock: Lock) -> int:
    """The same by the lock alone: it has no sizes, so this is a guess by names, right to a factor of two."""
    return SYSTEM + sum(_guess(entry.name, entry.version) for entry in (*lock.entries, *lock.unresolved))


def _installed(path: Path) -> int:
    """Bytes of layers that a wheel becomes, by its table of contents; a source archive by its size."""
    if path.suffix == ".whl":
        try:
            with zipfile.ZipFile(path) as wheel:
                return round(INSTALLED * sum(member.file_size for member in wheel.infolist()))
        except zipfile.BadZipFile:
            pass  # pip will say so
    return round(UNPACKED * path.stat().st_size)


def _guess(name: str, version: str) -> int:
    if name == "torch":
        return _TORCH_CPU if version.endswith("+cpu") else _TORCH
    # nvidia-cublas-cu11, nvidia-cudnn-cu12, ...; nvidia-ml-py is a small file.
    return _CUDA_LIBRARY if name.startswith("nvidia-") and "-cu" in name else _OTHER
