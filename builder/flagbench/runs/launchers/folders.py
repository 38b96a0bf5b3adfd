"""The folders of this machine that a run reads and writes, and where its container sees them.

/data, /weights and /resume are mounted read-only; /out and /bundle are writable.
"""

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
"""The folder in which a container leaves its bundle, an archive of its raw events."""


@dataclass(frozen=True)
class Folder:
    """A folder or file of the host, mounted into a container."""

    source: str
    """Absolute path on the host."""
    target: str
    writable: bool


def mount_folders(options: LocalOptions) -> tuple[LocalOptions, tuple[Folder, ...]]:
    """The options with the paths that the container sees, and the folders to mount there.

    The folders to read must exist; `--out` need not exist yet, and is not made. Raises FlagbenchError: DATA for
    a folder to read that does not exist, USAGE for a value that is not a path.
    """
    folders = []
    changed: dict[str, str] = {}
    for name in ("data", "weights", "resume"):
        text = getattr(options, name)
        is_synthetic = name == "data" and text == SYNTHETIC
        if text is None or is_synthetic:
            continue
        source = _find_folder(text, f"--{name}")
        folders.append(Folder(str(source), f"/{name}", writable=False))
        changed[name] = f"/{name}"
    if options.out is not None:
        folders.append(Folder(str(host_path(options.out, "--out")), "/out", writable=True))
        changed["out"] = "/out"
    return replace(options, **changed), tuple(folders)  # type: ignore[arg-type]  # the fields named are texts


@contextmanager
def output_folder(folder: str | None) -> Iterator[None]:
    """Make the folder of `--out` if it does not exist, and remove it at the end if nothing was written to it.

    It is made here because the engine would make it for root. Raises FlagbenchError (USAGE) if it cannot be made.
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
            with suppress(OSError):  # it is not empty
                path.rmdir()


def host_path(name: str, option: str) -> Path:
    """The path of the file or folder `name` of this machine, absolute and with links resolved; it need not exist.

    Raises FlagbenchError (USAGE) for a text that is not a path, or for a path that cannot be sent to the engine.
    `option` is the one that has the path as its value.
    """
    if "://" in name:
        raise FlagbenchError(
            f"{option} takes a path, not a URL",
            remedy="give a path of this machine; `aws s3 sync` copies folders from and to buckets",
        )
    if not name or "\0" in name:
        raise FlagbenchError(f"{option} names nothing", remedy="give a path")
    try:
        # Links are resolved here, because the engine removes `..` from a path without following them. pathlib would
        # raise RuntimeError for a link to itself.
        path = Path(os.path.realpath(name))
        # The engine gets the path as JSON, whose strings must be UTF-8. The bytes are decoded, because Python may
        # have read the name in another encoding (LC_ALL=C).
        os.fsencode(f"{name}{path}").decode()
        path.exists()  # called for its errors: a name that is too long, a folder that may not be read
    except UnicodeError:
        raise FlagbenchError(
            f"the name of {option} {name!r} is not UTF-8, and the engine cannot be asked for it", remedy="rename it"
        ) from None
    except OSError as error:
        raise FlagbenchError(
            f"{option} {name!r} cannot be used: {error.strerror}", remedy="give another path"
        ) from None
    return path


def _find_folder(name: str, option: str) -> Path:
    """The path of a folder to read. Raises FlagbenchError (DATA) if it is not a folder."""
    path = host_path(name, option)
    if path.is_dir():
        return path
    problem = "is not a folder" if path.exists() else "does not exist"
    remedy = "give a folder of this machine"
    if option == "--data":
        remedy += ", or --data synthetic"
    raise FlagbenchError(f"{option} {name!r} {problem}", remedy=remedy, code=ExitCode.DATA)
