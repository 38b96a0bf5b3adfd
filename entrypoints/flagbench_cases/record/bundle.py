"""A node's bundle: the raw evidence of its ranks in one deterministic tar.gz, with a list of what is in it.

Equal evidence makes equal bytes: times, owners and order are fixed. It is written in little memory.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from typing import IO, Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from flagbench_cases.record import surroundings
from flagbench_cases.record.stores.store import Bundle
from flagbench_cases.shared import spool

SCHEMA = "bundle/v1"
MANIFEST = "MANIFEST.json"
KINDS = ("exit", "facts", "steps")
LAUNCHER, PLAN, TELEMETRY = "agent.json", "plan.json", "telemetry.jsonl"
_PIECE = 2**20
_LINE_BYTES = 2**24
"""A longer line is searched for credentials in pieces."""

Content = Tuple[int, Iterable[bytes]]
"""The size of a file, and its bytes."""


class Origin(NamedTuple):
    """What a bundle is of."""

    record_id: str
    run_id: str
    node: int
    config: Dict[str, Any]
    environment: Mapping[str, str]
    """Of the ranks; of it the bundle has what `surroundings` allows."""


def write(folder: str, spool_folder: str, ranks: Sequence[int], origin: Origin) -> Bundle:
    """Write the bundle of the ranks of a node to a file in `folder`. Raises OSError."""
    path = os.path.join(folder, "node-%d.tar.gz" % origin.node)
    listed: List[Dict[str, Any]] = []
    with open(path, "wb") as file:
        counting = _Hashing(file)
        # mtime and name would be in the header of the gzip stream.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=counting, mtime=0) as packed:
            with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for name, content in _contents(spool_folder, ranks, origin, folder):
                    listed.append(_add(archive, name, content))
                manifest = {
                    "schema": SCHEMA,
                    "record_id": origin.record_id,
                    "run_id": origin.run_id,
                    "node": origin.node,
                    "files": listed,
                }
                _add(archive, MANIFEST, _json(manifest))
        file.flush()
        os.fsync(file.fileno())
    return Bundle(path, origin.node, counting.sha256.hexdigest(), counting.size)


def _contents(spool_folder: str, ranks: Sequence[int], origin: Origin, folder: str) -> Iterator[Tuple[str, Content]]:
    """Every file of the bundle but the list of them, in order. `folder`: for temporary files."""
    known = surroundings.secrets(os.environ)
    cleaner = surroundings.Cleaner(known)
    yield "config.json", _json(origin.config)
    yield "environment.json", _json(surroundings.allowed(origin.environment, known))
    for name in (LAUNCHER, PLAN, TELEMETRY):
        path = os.path.join(spool_folder, name)
        if os.path.isfile(path):
            yield name, _cleaned(path, cleaner, folder)
    for rank in ranks:
        for kind in KINDS:
            path = spool.path_of(spool_folder, rank, kind)
            if os.path.isfile(path):
                content = _steps(path) if kind == "steps" else _cleaned(path, cleaner, folder)
                yield os.path.basename(path), content


def _add(archive: tarfile.TarFile, name: str, content: Content) -> Dict[str, Any]:
    """Add a file; returns its entry in the list."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = content[0], 0o644  # times and owners are 0
    stream = _Exact(content[1], info.size)
    archive.addfile(info, stream)  # type: ignore[arg-type]
    return {"path": name, "size": info.size, "sha256": stream.sha256.hexdigest()}


def _json(value: Any) -> Content:
    text = json.dumps(value, indent=1, sort_keys=True).encode("utf-8") + b"\n"
    return len(text), [text]


def _steps(path: str) -> Content:
    """The steps that a rank has taken. The rest of the file is space that was reserved for more."""
    size = min(os.path.getsize(path), spool.used_bytes(path))
    return size, _pieces(open(path, "rb"))


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        for piece in iter(lambda: file.read(_PIECE), b""):
            yield piece


def _cleaned(path: str, cleaner: surroundings.Cleaner, folder: str) -> Content:
    """A file of JSON lines without the credentials in their texts; other lines are unchanged, byte for byte."""
    clean = tempfile.SpooledTemporaryFile(_PIECE, dir=folder)
    with open(path, "rb") as file:
        for line in iter(lambda: file.readline(_LINE_BYTES), b""):
            clean.write(cleaner.line(line))
    size = clean.tell()
    clean.seek(0)
    return size, _pieces(clean)


class _Hashing(io.RawIOBase):
    """Passes on what is written, and sums it up."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, piece: Any) -> int:
        """Write all of a piece. Raises OSError."""
        self.sha256.update(piece)
        self.size += len(piece)
        self._file.write(piece)
        return len(piece)


class _Exact:
    """Reads `size` bytes of a sequence of pieces, and sums them up."""

    def __init__(self, pieces: Iterable[bytes], size: int) -> None:
        self._pieces, self._unread, self._left = iter(pieces), b"", size
        self.sha256 = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes, or those that are left. Raises OSError if there are fewer: the file was cut."""
        count = min(count, self._left)
        while len(self._unread) < count:
            piece = next(self._pieces, b"")
            if not piece:
                raise OSError("a file of the spool was cut while it was read")
            self._unread += piece
        found, self._unread = self._unread[:count], self._unread[count:]
        self._left -= count
        self.sha256.update(found)
        return found
