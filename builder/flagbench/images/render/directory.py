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
from flagbench.system.files import reason
from flagbench_core.exit_codes import ExitCode

INPUTS = "inputs"
"""The folder of a context for the inputs of a build."""
FILE_MODE = 0o644
"""The permission bits of every file: the steps of a Dockerfile name the interpreter of what they run."""
_FOLDER_MODE = 0o755
_CHUNK = 1 << 20


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
    input_files = {f"{INPUTS}/{name}": content for name, content in inputs.items()}
    return tar_chunks({**rendered.files, **input_files})


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

    Raises FlagbenchError (usage) where one of them is there already (nothing is written then), or cannot be written.
    """
    for name in directories:
        if os.path.lexists(folder / name):
            raise FlagbenchError(
                f"{folder / name} exists, and `flagbench render` replaces nothing",
                remedy="remove it, or name another folder with -o",
            )
    try:
        for name, image in directories.items():
            for file, content in image.files.items():
                path = folder / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(FILE_MODE)
    except OSError as error:
        raise FlagbenchError(
            f"{folder} cannot be written: {reason(error)}", remedy="name another folder with -o"
        ) from None
