"""A bundle written as a folder or as one file, whole or not at all, and opened again, every file checked."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.record.model import Builder
from flagbench.reproduce import archive
from flagbench.reproduce.manifest import MANIFEST, SUMS, Manifest, check_files, digest_of, entries_of, sums_of
from flagbench.stores.bundle_check import BundleError
from flagbench.terminal import brief

SUFFIXES = (".tar.gz", ".tgz")
"""A target of these names is one file; any other is a folder."""


class DamagedBundle(FlagbenchError):
    """A bundle that is not whole or not as it was written (DATA)."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"the bundle {brief(name)} is damaged: {why}",
            remedy="get the file again from where it was made, and compare the sha256 of its manifest",
            code=ExitCode.DATA,
        )


@dataclass(frozen=True)
class Heading:
    """What the manifest says beside its files."""

    claim: str
    verdict: str
    created_at: str
    flagbench: Builder


@dataclass(frozen=True)
class Opened:
    """An unpacked bundle whose files are as its manifest says."""

    folder: Path
    manifest: Manifest
    digest: str
    """The sha256 of the manifest, hexadecimal."""
    sealed: bool | None
    """Whether the archive's own bytes are as they were written: None for a folder, False where another tool packed it
    again."""


def check_target(target: Path) -> None:
    """Raise FlagbenchError (usage) where a bundle cannot be written: that should not cost a run."""
    parent = target.parent if _is_file(target) else target
    try:
        if _is_file(target):
            why = f"{target} exists already" if _exists(target) else None
        else:
            taken = _exists(target) and not _is_empty(target)
            why = f"{target} exists and is not an empty folder" if taken else None
        existing = next(folder for folder in (parent, *parent.absolute().parents) if folder.exists())
        if why is None and not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            why = f"{existing} is not a folder that can be written to"
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
    if why is not None:
        raise FlagbenchError(
            f"--out {str(target)!r} cannot be used: {why}", remedy="name a new .tar.gz file or a new folder"
        )


def write_bundle(
    target: Path, files: Mapping[str, bytes | Path], heading: Heading, sign: Callable[[Path], object] | None = None
) -> str:
    """Write a bundle to a new file or folder, whole or not at all; returns the sha256 of its manifest.

    Args:
        files: contents, or files to copy, by their paths in the bundle.
        sign: puts a detached signature beside the manifest, whose path it gets.

    Raises:
        FlagbenchError: (not stored) it could not be written; and what `sign` raises.
    """
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent) as part:
            folder = Path(part) / "bundle"
            folder.mkdir()
            for name, content in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    shutil.copyfile(content, path)
            manifest = Manifest(
                heading.claim, heading.verdict, heading.created_at, heading.flagbench, entries_of(folder)
            )
            (folder / MANIFEST).write_bytes(manifest.to_json())
            digest = digest_of(folder / MANIFEST)
            if sign is not None:
                sign(folder / MANIFEST)
            (folder / SUMS).write_bytes(sums_of(folder))
            _publish(folder, target)
            return digest
    except OSError as error:
        raise FlagbenchError(
            f"the bundle could not be written to {target}: {reason(error)}",
            remedy="the records are in the store: free space or name another --out, and run it again",
            code=ExitCode.NOT_STORED,
        ) from error


def _publish(folder: Path, target: Path) -> None:
    """Give what is written its name; nothing that is there is replaced."""
    if not _is_file(target):
        with suppress(FileNotFoundError):
            target.rmdir()  # an empty folder
        folder.rename(target)
        return
    packed = folder.with_name("packed")
    archive.pack(folder, packed)
    try:
        os.link(packed, target)  # unlike a rename, it never replaces a file
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        packed.rename(target)  # a file system without links


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """An unpacked bundle, each of its files checked; an archive is unpacked into a temporary folder.

    Raises DamagedBundle (data) for anything that is not a whole bundle, and FlagbenchError (data) where it cannot be
    read, or (not stored) where it cannot be unpacked.
    """
    name = str(path)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError) as error:
        raise _unreadable(name, str(error)) from error
    with tempfile.TemporaryDirectory(prefix="flagbench-bundle-") as temporary:
        folder, sealed = path, None
        try:
            if not is_folder:
                folder = Path(temporary)
                sealed = archive.unpack(path, folder)
            manifest = check_files(folder)
            digest = digest_of(folder / MANIFEST)
        except BundleError as error:
            raise DamagedBundle(name, str(error)) from error
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise _unreadable(name, why) from error
        yield Opened(folder, manifest, digest, sealed)


def _unreadable(name: str, why: str) -> FlagbenchError:
    return FlagbenchError(
        f"the bundle {brief(name)} cannot be read: {why}",
        remedy="name a file or a folder that `flagbench reproduce` wrote; TMPDIR needs room for what is in it",
        code=ExitCode.DATA,
    )


def _exists(target: Path) -> bool:
    """Whether there is anything of that name. Raises OSError and ValueError for what cannot be a name."""
    try:
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_file(target: Path) -> bool:
    return target.name.endswith(SUFFIXES)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
