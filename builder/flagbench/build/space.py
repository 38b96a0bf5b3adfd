"""Estimates the disk space that an image needs on the engine, without its base, before it is built.

Measured on the stack `cpu`: 27 wheels, 230 MB, contain 833 MB of files and became 1.05 GB of layers (4.6 times the
size of the wheels, 1.26 times that of their content). 0.08 GB of the layers are Debian packages and an empty
environment; a compiler and Python's headers take another 0.29 GB. During the build the engine also keeps a copy of
the wheels.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from flagbench.build.inputs import Inputs
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import Lock

THIN = 100_000_000
"""Upper limit for a case's image, bytes: it contains only code."""
SYSTEM = 450_000_000
"""Bytes that an image needs besides its packages: Debian packages with a compiler, an environment, room to write."""
INSTALLED = 1.3
"""Bytes of layers per byte of a wheel's content: Python compiles it. Measured: 1.26 with Debian's packages."""
UNPACKED = 4.6
"""Bytes of layers per byte of a package file whose content is unknown. Measured, see above."""

# Estimates by name, for a build without package files. Measured: `torch` for CPUs, and the mean of the 26 other
# packages. Rough and rather too high: the libraries of CUDA, which torch from the default index has in packages of
# their own.
_TORCH = 3_000_000_000
_TORCH_CPU = 930_000_000
_CUDA_LIBRARY = 500_000_000
_OTHER = 7_000_000


def require_space(free: int | None, needed: int) -> None:
    """Check the free disk space, in bytes; `free` is None if the engine's disk is on another machine.

    Raises FlagbenchError (build failed) if it is less than `needed`.
    """
    if free is not None and free < needed:
        raise FlagbenchError(
            f"the engine's disk has {free / 1e9:.1f} GB free, and the image needs about {needed / 1e9:.1f} GB more",
            remedy="free some space where the engine keeps its images (`docker system df` shows what takes it)",
            code=ExitCode.BUILD_FAILED,
        )


def stack_bytes(lock: Lock, inputs: Inputs) -> int:
    """The size of a stack's image, bytes: by the package files if they are given, else by the names in the lock."""
    files = [source for name, source in inputs.items() if name.startswith("wheels/") and isinstance(source, Path)]
    if not files:
        return locked_bytes(lock)
    return SYSTEM + sum(path.stat().st_size + _installed(path) for path in files)


def locked_bytes(lock: Lock) -> int:
    """The size of a stack's image, bytes, by the names in the lock, which has no sizes: right to a factor of two."""
    return SYSTEM + sum(_guess(entry.name, entry.version) for entry in (*lock.entries, *lock.unresolved))


def _installed(path: Path) -> int:
    """Bytes of layers: by a wheel's table of contents, by the file's size for a source archive."""
    if path.suffix == ".whl":
        try:
            with zipfile.ZipFile(path) as wheel:
                return round(INSTALLED * sum(member.file_size for member in wheel.infolist()))
        except zipfile.BadZipFile:
            pass  # pip will report it
    return round(UNPACKED * path.stat().st_size)


def _guess(name: str, version: str) -> int:
    if name == "torch":
        return _TORCH_CPU if version.endswith("+cpu") else _TORCH
    # nvidia-cublas-cu11, nvidia-cudnn-cu12, ...; nvidia-ml-py is small.
    return _CUDA_LIBRARY if name.startswith("nvidia-") and "-cu" in name else _OTHER
