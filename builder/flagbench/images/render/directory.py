"""The build directory of an image: a Dockerfile and all files that it copies or mounts.

It is rendered in memory and has a digest. `flagbench build` sends it to the engine as a tar, and `flagbench render`
writes it to disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from flagbench.errors import FlagbenchError
from flagbench.system.files import reason
from flagbench_core.exit_codes import ExitCode

INPUTS = "inputs"
"""The folder of a build context for the input files of a build, see build_options.py."""
FILE_MODE = 0o644
"""The permission bits of every file. None needs to be executable: the steps of a Dockerfile run scripts as `sh FILE`
or `python FILE`."""
_FOLDER_MODE = 0o755
_CHUNK = 2**20
"""Bytes of a file that are read at once."""


@dataclass(frozen=True)
class BuildDirectory:
    """A build directory in memory, complete except for the input files of a build."""

    name: str
    """`stack/STACK` or `CASE/STACK`."""
    dockerfile: str
    files: Mapping[str, bytes]
    """The content of every file by its relative posix path, sorted by path; the Dockerfile is one of them."""

    @property
    def folder(self) -> str:
        """`STACK/stack` or `STACK/CASE`: the path where `flagbench render --all` writes it."""
        tier, _, stack = self.name.partition("/")
        return f"{stack}/{tier}"

    @cached_property
    def digest(self) -> str:
        """`sha256:<64 hex>` over path, mode and content of every file; build options do not change it."""
        total = hashlib.sha256()
        for path, content in self.files.items():
            total.update(_digest_entry(path, content))
        return "sha256:" + total.hexdigest()


def _digest_entry(path: str, content: bytes) -> bytes:
    """Encode one file for the digest of its directory."""
    # With the length of the path, and the fixed length of the content's hash, different files never encode alike.
    encoded = path.encode()
    return b"%o %d %b " % (FILE_MODE, len(encoded), encoded) + hashlib.sha256(content).digest()


def make_build_directory(name: str, dockerfile: str, files: Mapping[str, bytes]) -> BuildDirectory:
    """Make a build directory from a Dockerfile and the other files, content by relative posix path."""
    all_files = {**files, "Dockerfile": dockerfile.encode()}
    return BuildDirectory(name, dockerfile, dict(sorted(all_files.items())))


def context_tar(directory: BuildDirectory, inputs: Mapping[str, Path | bytes]) -> Iterator[bytes]:
    """Pack a build directory and its input files as the chunks of an uncompressed tar, for the engine.

    The same content makes the same bytes on every machine at any time: members are sorted, owned by root and have the
    modification time 0. The format is GNU's, as BuildKit takes a tar that begins with a PAX header for a Dockerfile.

    Args:
        inputs: content or its file, by relative posix path; they are added under inputs/. Files are streamed.

    Raises FlagbenchError: (USAGE) an input file cannot be read; (BUILD_FAILED) it became shorter while it was read.
    """
    input_files = {f"{INPUTS}/{name}": content for name, content in inputs.items()}
    return tar_chunks({**directory.files, **input_files})


def tar_chunks(members: Mapping[str, Path | bytes]) -> Iterator[bytes]:
    """Pack members, content or its file by path, as the chunks of a tar like that of `context_tar`.

    Raises FlagbenchError as `context_tar` does.
    """
    packed_folders: set[str] = set()
    for path in sorted(members):
        folders = PurePosixPath(path).parents[:-1]  # without the root, innermost first
        for folder in reversed(folders):
            if str(folder) not in packed_folders:
                packed_folders.add(str(folder))
                yield _header(str(folder), tarfile.DIRTYPE, 0, _FOLDER_MODE)
        content = members[path]
        if isinstance(content, bytes):
            yield _header(path, tarfile.REGTYPE, len(content), FILE_MODE) + content + _padding(len(content))
        else:
            yield from _pack_file(path, content)
    yield bytes(2 * tarfile.BLOCKSIZE)  # the end of a tar


def _pack_file(path: str, source: Path) -> Iterator[bytes]:
    """Pack the file `source` as the member `path`."""
    try:
        with source.open("rb") as file:
            # The size in the header is that of the open file. What is appended meanwhile is not read.
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
    """The header of a member: `kind` is a type of tarfile, `size` the bytes of its content."""
    member = tarfile.TarInfo(path)
    member.type = kind
    member.size = size
    member.mode = mode
    member.mtime = 0
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    """The zeros that fill the last block of a content of `size` bytes."""
    return bytes(-size % tarfile.BLOCKSIZE)


def write_tree(directories: Mapping[str, BuildDirectory], folder: Path) -> None:
    """Write build directories, by their relative path, to `folder`.

    Raises FlagbenchError (USAGE) if one of them exists already, or cannot be written; then none is left.
    """
    for name in directories:
        if os.path.lexists(folder / name):
            raise FlagbenchError(
                f"{folder / name} exists, and `flagbench render` replaces nothing",
                remedy="remove it, or name another folder with -o",
            )
    try:
        for name, directory in directories.items():
            for file, content in directory.files.items():
                path = folder / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(FILE_MODE)
    except BaseException as error:
        for name in directories:  # none of them existed before
            shutil.rmtree(folder / name, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise FlagbenchError(
            f"{folder} cannot be written: {reason(error)}", remedy="name another folder with -o"
        ) from None
