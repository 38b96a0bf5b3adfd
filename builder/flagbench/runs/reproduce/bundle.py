"""The bundle of a reproduction, written whole or not at all, and opened again, every file checked."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.files import reason
from flagbench.records.bundle_archive import BundleError, pack, unpacked
from flagbench.terminal import brief
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import sha256_of


class DamagedBundle(FlagbenchError):
    """A bundle that is not whole or not as it was written (DATA)."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"the bundle {brief(str(path))} is damaged: {why}",
            remedy="get the file again from where it was made, and compare its sha256",
            code=ExitCode.DATA,
        )


def check_target(target: Path) -> None:
    """Raise FlagbenchError (usage) where a bundle cannot be written: that should not cost a run."""
    why: str | None = "it exists already"
    try:
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        existing = next(folder for folder in target.absolute().parents if folder.exists())
        usable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
        why = None if usable else f"{existing} is not a folder that can be written to"
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
    if why is not None:
        raise FlagbenchError(f"--out {str(target)!r} cannot be used: {why}", remedy="name a new .tar.gz file")


def write_bundle(target: Path, files: Mapping[str, bytes | Path]) -> str:
    """Write a bundle to a new file, whole or not at all; returns its sha256.

    Args:
        files: contents, or files to copy, by their paths in the bundle.

    Raises FlagbenchError (not stored) where it could not be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=target.parent) as folder:
            part = Path(folder) / "bundle.tar.gz"
            pack(files, part)
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "it exists already")
            part.rename(target)
        return sha256_of(target)
    except OSError as error:
        raise FlagbenchError(
            f"the bundle could not be written to {target}: {reason(error)}",
            remedy="the records are in the store: free space or name another --out, and run it again",
            code=ExitCode.NOT_STORED,
        ) from error


@contextmanager
def opened(path: Path) -> Iterator[dict[str, Path]]:
    """The files of a bundle by their paths in it, each checked, in a temporary folder.

    Raises DamagedBundle (data) for anything that is not a whole bundle, and FlagbenchError (data) where it cannot be
    read or unpacked.
    """
    with ExitStack() as stack:
        try:
            files = stack.enter_context(unpacked(path))
        except BundleError as error:
            raise DamagedBundle(path, str(error)) from error
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise FlagbenchError(
                f"the bundle {brief(str(path))} cannot be read: {why}",
                remedy="name a file that `flagbench reproduce` wrote; TMPDIR needs room for what is in it",
                code=ExitCode.DATA,
            ) from error
        yield files
