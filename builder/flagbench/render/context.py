"""A rendered image as what an engine takes: a deterministic tar."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.render.model import FILE_MODE, Rendered

INPUTS = "inputs"
"""The folder of a context for the inputs of a build."""
_FOLDER_MODE = 0o755
_CHUNK = 1 << 20

Inputs = Mapping[str, Path | bytes]


def context_tar(rendered: Rendered, inputs: Inputs) -> Iterator[bytes]:
    """The build context as the chunks of a tar: the same bytes for the same content, on every machine, at any time.

    In GNU's format, because BuildKit takes a tar that begins with a PAX header for a Dockerfile. Sorted, owned by
    root, modified at 0. `inputs` are added under inputs/, by relative posix path; files among them are streamed.

    Raises FlagbenchError: (usage) an input that cannot be read; (build failed) one that became shorter meanwhile.
    """
    members: Inputs = {**rendered.files, **{f"{INPUTS}/{name}": content for name, content in inputs.items()}}
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
                        f"the build input {source} became shorter while it was read",
                        remedy="build again when nothing writes to it",
                        code=ExitCode.BUILD_FAILED,
                    )
                yield chunk
    except OSError as error:
        raise FlagbenchError(
            f"the build input {source} cannot be read: {reason(error)}",
            remedy="make it a readable file, or leave it out",
        ) from None
    yield _padding(size)


def _header(path: str, kind: bytes, size: int, mode: int) -> bytes:
    member = tarfile.TarInfo(path)
    member.type, member.size, member.mode, member.mtime = kind, size, mode, 0
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
