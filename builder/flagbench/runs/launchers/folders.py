"""The folders of a run, seen from inside its container: /data, /weights and /resume read-only, others writable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.runs.request import LocalOptions
from flagbench_core.data_folders import SYNTHETIC
from flagbench_core.exit_codes import ExitCode

BUNDLE = "/bundle"
"""Where a container leaves its bundle."""


@dataclass(frozen=True)
class Folder:
    """A folder or file of the host, mounted into a container."""

    source: str
    """Absolute path on the host."""
    target: str
    writable: bool


def mount_folders(options: LocalOptions) -> tuple[LocalOptions, tuple[Folder, ...]]:
    """The options with the paths inside the container, and what to mount there.

    Checks the folders to read and makes nothing: `--out` need not exist yet. Raises FlagbenchError: data (3) for
    folders to read that are not there, usage (2) for what is not a path.
    """
    folders = []
    changed: dict[str, str] = {}
    for name in ("data", "weights", "resume"):
        folder = getattr(options, name)
        if folder is None or (name == "data" and folder == SYNTHETIC):
            continue
        folders.append(Folder(str(_readable(folder, f"--{name}")), f"/{name}", writable=False))
        changed[name] = f"/{name}"
    if options.out is not None:
        folders.append(Folder(str(host_path(options.out, "--out")), "/out", writable=True))
        changed["out"] = "/out"
    return replace(options, **changed), tuple(folders)  # type: ignore[arg-type]  # the fields named are texts


@contextmanager
def output_folder(folder: str | None) -> Iterator[None]:
    """Make `--out` where it is missing, so that the caller owns it and not the engine; left empty, it is removed.

    Raises FlagbenchError (usage) where it cannot be made.
    """
    if folder is None:
        yield
        return
    path = host_path(folder, "--out")
    existed = path.is_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlagbenchError(
            f"--out {folder!r} cannot be made: {error.strerror}", remedy="give a folder where you may write"
        ) from None
    try:
        yield
    finally:
        if not existed:
            with suppress(OSError):
                path.rmdir()


def host_path(name: str, option: str) -> Path:
    """The path of the file or folder `name` of this machine, absolute and with links resolved; it need not exist.

    Raises FlagbenchError (usage) for what is not a path, or is one that the engine cannot be asked for.
    """
    if "://" in name:
        raise FlagbenchError(
            f"{option} takes a path, not a URL",
            remedy="give a path of this machine; `aws s3 sync` copies folders from and to buckets",
        )
    if not name or "\0" in name:
        raise FlagbenchError(f"{option} names nothing", remedy="give a path")
    try:
        # Resolved: the engine removes `..` from a path without following symbolic links. Not by pathlib, which
        # raises RuntimeError for a link to itself.
        path = Path(os.path.realpath(name))
        # The engine is asked in JSON, whose strings cannot hold any other name. As bytes, since Python may read them
        # as those of another encoding (LC_ALL=C).
        os.fsencode(f"{name}{path}").decode()
        path.exists()  # for its errors: a name that is too long, a folder closed to us
    except UnicodeError:
        raise FlagbenchError(
            f"the name of {option} {name!r} is not UTF-8, and the engine cannot be asked for it", remedy="rename it"
        ) from None
    except OSError as error:
        raise FlagbenchError(
            f"{option} {name!r} cannot be used: {error.strerror}", remedy="give another path"
        ) from None
    return path


def _readable(name: str, option: str) -> Path:
    path = host_path(name, option)
    if path.is_dir():
        return path
    what = "is not a folder" if path.exists() else "does not exist"
    remedy = "give a folder of this machine"
    if option == "--data":
        remedy += ", or --data synthetic"
    raise FlagbenchError(f"{option} {name!r} {what}", remedy=remedy, code=ExitCode.DATA)
