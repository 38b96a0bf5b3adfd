"""Rendered images as build directories on disk, rewritten without touching files of others."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.images.render.model import FILE_MODE, INPUTS, Rendered

LISTING = "rendered.sha256"
"""The file of a build directory that names the others that we wrote, as `sha256sum --check` reads it."""
_HEADER = "# Written by `flagbench render`: the files of this folder that it may replace."


def write_tree(directories: Mapping[str, Rendered], folder: Path) -> None:
    """Write build directories at relative paths under `folder`, all of them or none.

    What we wrote into one of them before is replaced, inputs/ keeps what the user put there, and the rest of
    `folder` is left alone.

    Raises FlagbenchError (usage) where one of them holds a file that we did not write or that was edited since, or
    cannot be written; nothing is changed then.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in directories.items():
            foreign = next(_foreign(folder / name, image), None)
            if foreign is not None:
                raise FlagbenchError(
                    f"`flagbench render` would replace {foreign}, which it did not write or which was edited since",
                    remedy="move it elsewhere, or name another folder with -o",
                )
        # Inside the folder, so that files can be renamed from there and back.
        with tempfile.TemporaryDirectory(prefix=".flagbench-", dir=folder) as scratch, ExitStack() as undo:
            renames = []
            for name, image in directories.items():
                made, old = Path(scratch, "new", name), Path(scratch, "old", name)
                _write_files(image, made)
                renames += _renames(folder / name, made, old)
            for source, target in renames:
                source.rename(target)
                undo.callback(target.rename, source)  # after Ctrl-C too: half a build directory is of no use
            undo.pop_all()
    except OSError as error:
        raise FlagbenchError(
            f"{folder} cannot be written: {error.strerror or error}", remedy="name another folder with -o"
        ) from None


def _foreign(target: Path, image: Rendered) -> Iterator[Path]:
    """What is in the way of a build directory: files that we did not write, or that were edited since."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        yield target
        return
    listing, today = _listing(target / LISTING), _digests(image)
    own_inputs = {name.split("/")[1] for name in image.files if name.startswith(f"{INPUTS}/")}
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        top, *below = name.split("/")
        if top == INPUTS and below and below[0] not in own_inputs:
            continue  # the user's, and not in the way
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            yield path
        elif path.is_dir() or (name == LISTING and listing):
            continue
        else:
            # What we wrote there before, or write there now; another file, which may be large, is not read.
            known = {digests[name] for digests in (listing, today) if name in digests}
            if not known or hashlib.sha256(path.read_bytes()).hexdigest() not in known:
                yield path


def _listing(path: Path) -> dict[str, str]:
    """Relative path to sha256 of every file that we wrote; empty where there is no listing of ours."""
    if not path.is_file():
        return {}
    header, *lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    if header != _HEADER:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}


def _digests(image: Rendered) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in image.files.items()}


def _write_files(image: Rendered, folder: Path) -> None:
    listing = [_HEADER, *(f"{digest}  {name}" for name, digest in _digests(image).items()), ""]
    for name, content in {**image.files, LISTING: "\n".join(listing).encode()}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(FILE_MODE)


def _renames(target: Path, made: Path, old: Path) -> list[tuple[Path, Path]]:
    """What puts a new build directory in the place of an old one of ours; the user's inputs never move."""
    for folder in (target, made, old):
        (folder / INPUTS).mkdir(parents=True, exist_ok=True)
    after = _entries(made)
    before = [name for name in _entries(target) if name in after or name.parts[0] != INPUTS]
    return [(target / name, old / name) for name in before] + [(made / name, target / name) for name in after]


def _entries(folder: Path) -> list[Path]:
    """What is directly in a build directory, and directly in its inputs/: relative paths."""
    found = (path.relative_to(folder) for path in (*folder.iterdir(), *(folder / INPUTS).iterdir()))
    return sorted(path for path in found if path != Path(INPUTS))
