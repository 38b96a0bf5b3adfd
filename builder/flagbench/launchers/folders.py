"""The folders of a run, seen from inside its container: /data, /weights and /resume read-only, /out writable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.base import RunRequest

SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class Folder:
    """A folder of the host and where the container sees it."""

    source: str
    """Absolute."""
    target: str
    writable: bool


def mount_folders(request: RunRequest) -> tuple[RunRequest, tuple[Folder, ...]]:
    """The request with the paths that hold inside the container, and what to mount there.

    Looks at the folders before anything is started, and makes `--out` where it is missing, so that it belongs to
    the caller and not to the engine. Raises FlagbenchError: data (3) for folders to read, usage (2) for the others.
    """
    folders = []
    changed: dict[str, str] = {}
    for name in ("data", "weights", "resume"):
        given = getattr(request, name)
        if given is None or (name == "data" and given == SYNTHETIC):
            continue
        folders.append(Folder(_readable(given, f"--{name}"), f"/{name}", writable=False))
        changed[name] = f"/{name}"
    if request.out is not None:
        folders.append(Folder(_made(request.out), "/out", writable=True))
        changed["out"] = "/out"
    return replace(request, **changed), tuple(folders)  # type: ignore[arg-type]  # the fields named are texts


def _readable(given: str, option: str) -> str:
    path = _absolute(given, option)
    if not Path(path).is_dir():
        what = "is not a folder" if Path(path).exists() else "does not exist"
        raise FlagbenchError(
            f"{option} {given!r} {what}",
            remedy=f"give a folder of this machine{', or --data synthetic' if option == '--data' else ''}",
            code=ExitCode.DATA,
        )
    return path


def _made(given: str) -> str:
    path = _absolute(given, "--out")
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlagbenchError(
            f"--out {given!r} cannot be made: {error.strerror}", remedy="give a folder where you may write"
        ) from None
    return path


def _absolute(given: str, option: str) -> str:
    if "://" in given:
        raise FlagbenchError(f"{option} takes a folder, not an address", remedy="fetch it first and give the folder")
    if not given or "\0" in given:
        raise FlagbenchError(f"{option} names no folder", remedy="give the path of a folder")
    # Resolved: the engine takes `..` off a path as if no part of it were a symbolic link.
    path = str(Path(given).resolve())
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        # The engine is asked in JSON, whose texts cannot hold such a name.
        raise FlagbenchError(
            f"the name of {option} {given!r} is not UTF-8, and the engine cannot be asked for it",
            remedy="rename the folder",
        ) from None
    return path
