"""A build directory: in memory with its digest, as the tar that an engine takes, and on disk."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from flagbench.errors import FlagbenchError
from flagbench.files import reason
from flagbench_core.exit_codes import ExitCode

INPUTS = "inputs"
"""The folder of a context for the inputs of a build."""
FILE_MODE = 0o644
"""The permission bits of every file: the steps of a Dockerfile name the interpreter of what they run."""
_FOLDER_MODE = 0o755
_CHUNK = 1 << 20
LISTING = "rendered.sha256"
"""The file of a build directory that names the others that we wrote, as `sha256sum --check` reads it."""
_HEADER = "# Written by `flagbench render`: the files of this folder that it may replace."


@dataclass(frozen=True)
class Rendered:
    """A complete build directory in memory, except for the inputs of a build."""

    name: str
    """`stack/STACK` or `CASE/STACK`."""
    dockerfile: str
    files: Mapping[str, bytes]
    """Relative posix paths, sorted, to content; the Dockerfile is one of them."""

    @property
    def folder(self) -> str:
        """`STACK/stack` or `STACK/CASE`: its place among the images of the matrix."""
        tier, _, stack = self.name.partition("/")
        return f"{stack}/{tier}"

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


def context_tar(rendered: Rendered, inputs: Mapping[str, Path | bytes]) -> Iterator[bytes]:
    """The build context as the chunks of a tar: the same bytes for the same content, on every machine, at any time.

    In GNU's format, because BuildKit takes a tar that begins with a PAX header for a Dockerfile. Sorted, owned by
    root, modified at 0. `inputs` are added under inputs/, by relative posix path; files among them are streamed.

    Raises FlagbenchError: (usage) an input that cannot be read; (build failed) one that became shorter meanwhile.
    """
    given = {f"{INPUTS}/{name}": content for name, content in inputs.items()}
    return tar_chunks({**rendered.files, **given})


def tar_chunks(members: Mapping[str, Path | bytes]) -> Iterator[bytes]:
    """A tar of these members, sorted, as its chunks; files are streamed. Raises FlagbenchError as `context_tar`."""
    written: set[str] = set()
    for path in sorted(members):
        for folder in reversed(PurePosixPath(path).parents[:-1]):
            if str(folder) not in written:
                written.add(str(folder))
                yield _header(str(folder), tarfile.DIRTYPE, 0, _FOLDER_MODE)
        content = members[path]
        if isinstance(content, bytes):
            yield _header(path, tarfile.REGTYPE, len(content), FILE_MODE) + content + _padding(len(content))
        else:
            yield from _file(path, content)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _file(path: str, source: Path) -> Iterator[bytes]:
    try:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield _header(path, tarfile.REGTYPE, size, FILE_MODE)
            while file.tell() < size:
                chunk = file.read(min(_CHUNK, size - file.tell()))
                if not chunk:
                    raise FlagbenchError(
                        f"{source} became shorter while it was read",
                        remedy="try again when nothing writes to it",
                        code=ExitCode.BUILD_FAILED,
                    )
                yield chunk
    except OSError as error:
        raise FlagbenchError(
            f"{source} cannot be read: {reason(error)}",
            remedy="make it a readable file",
        ) from None
    yield _padding(size)


def _header(path: str, kind: bytes, size: int, mode: int) -> bytes:
    member = tarfile.TarInfo(path)
    member.type, member.size, member.mode, member.mtime = kind, size, mode, 0
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def write_tree(directories: Mapping[str, Rendered], folder: Path) -> None:
    """Write build directories at relative paths under `folder`.

    What we wrote into one of them before is replaced, inputs/ keeps what the user put there, and the rest of
    `folder` is left alone.

    Raises FlagbenchError (usage) where one of them holds a file that we did not write or that was edited since
    (nothing is changed then), or cannot be written.
    """
    try:
        for name, image in directories.items():
            if foreign := next(_foreign(folder / name, image), None):
                raise FlagbenchError(
                    f"`flagbench render` would replace {foreign}, which it did not write or which was edited since",
                    remedy="move it elsewhere, or name another folder with -o",
                )
        for name, image in directories.items():
            _write(image, folder / name)
    except OSError as error:
        raise FlagbenchError(
            f"{folder} cannot be written: {reason(error)}", remedy="name another folder with -o"
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


def _write(image: Rendered, target: Path) -> None:
    """Write the files, and their listing last: until then a file is known by the earlier one or by its content."""
    earlier = _listing(target / LISTING)
    listing = [_HEADER, *(f"{digest}  {name}" for name, digest in _digests(image).items()), ""]
    for name, content in {**image.files, LISTING: "\n".join(listing).encode()}.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(FILE_MODE)
    for path in target.rglob("*"):
        name = path.relative_to(target).as_posix()
        if name in earlier and name not in image.files:
            path.unlink()
