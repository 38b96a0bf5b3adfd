"""An object to a file, in parts; an interrupted download leaves those that were read."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from flagbench.s3.bucket import Bucket
from flagbench.s3.client import ATTEMPTS, NETWORK, explained
from flagbench.s3.errors import S3Error
from flagbench.s3.parts import Show, part_bytes, sha256_of
from flagbench.s3.threads import run_all


def get_file(
    bucket: Bucket, key: str, path: Path, *, size: int, sha256: str, show: Show = lambda count: None
) -> None:
    """Download an object to `path`, whole or not at all, checked against its sha256.

    Parts that an earlier, interrupted download left beside it are kept, if the object is still the same one. A file
    that is there with these bytes is left as it is.

    Raises S3Error, of which `damaged` where the object has other bytes, and OSError where the file cannot be written.
    """
    download = _Download(bucket, key, path, size)
    with _locked(download.part) as file:
        if path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256:
            download.forget()  # another process has read it meanwhile
            show(size)
            return
        resumed = download.receive(file, show)
        found = sha256_of(download.part)
        if found != sha256 and resumed:
            # Of what was there before, a crash of the machine may have lost some bytes, and not the note of them.
            download.journal.unlink(missing_ok=True)
            download.receive(file, lambda count: None)
            found = sha256_of(download.part)
        if found == sha256:
            download.part.replace(path)
        download.forget()
    if found != sha256:
        raise S3Error(
            f"{bucket.location(key)} has the sha256 {found}, not {sha256}: it was changed or damaged",
            "put it there again",
            damaged=True,
        )


def sum_of_object(bucket: Bucket, key: str, size: int, show: Show = lambda count: None) -> str:
    """The sha256 of an object of `size` bytes, read in parts and kept nowhere. Raises S3Error."""
    head = bucket.head(key)
    if head is None:
        raise S3Error(f"{bucket.location(key)} does not exist", "put it there first", code="NoSuchKey")
    found, step = hashlib.sha256(), part_bytes(size)
    for begin in range(0, size, step):
        content = _read_part(bucket, key, begin, min(step, size - begin), head.etag)
        found.update(content)
        show(len(content))
    return found.hexdigest()


def download(bucket: Bucket, key: str, path: Path) -> None:
    """Read an object whose sha256 nobody knows to a new file, in parts; an interrupted download begins again.

    Raises S3Error, of which `missing` or `taken` where the object is gone or was replaced meanwhile, and OSError
    where the file cannot be written.
    """
    head = bucket.head(key)
    if head is None:
        raise S3Error(f"{bucket.location(key)} does not exist", "put it there first", code="NoSuchKey")
    size, etag, step = head.size, head.etag, part_bytes(head.size)
    with path.open("xb") as file:

        def task(begin: int) -> Callable[[], None]:
            def receive() -> None:
                content = _read_part(bucket, key, begin, min(step, size - begin), etag)
                _write(file, content, begin)

            return receive

        run_all(task(begin) for begin in range(0, size, step))


def _write(file: BinaryIO, content: bytes, begin: int) -> None:
    """Write all of it: on a disk that is full after some of it, a single call writes that and is no error.

    Raises OSError, and ValueError for a file that was closed since, as after Ctrl-C.
    """
    left = memoryview(content)
    while left:
        count = os.pwrite(file.fileno(), left, begin)
        left, begin = left[count:], begin + count


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """An open file for reading and writing, created where it is missing, that one process has at a time.

    Closed at the end, and no longer written to by threads that then still wait for a server.
    """
    while True:
        with open(path, "r+b", buffering=0, opener=_create) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The process that had it before may have given the file its final name meanwhile.
            if _is_at(file, path):
                yield file
                return


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o644)


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class _Download:
    """A download in parts to a file beside its final name; a second file says which parts it has, of which object."""

    def __init__(self, bucket: Bucket, key: str, path: Path, size: int) -> None:
        self.bucket, self.key, self.size = bucket, key, size
        self.part = path.with_name(f".{path.name}.part")
        self.journal = path.with_name(f".{path.name}.part.json")
        self.step = part_bytes(size)

    def receive(self, file: BinaryIO, show: Show) -> bool:
        """Read what is missing into the open file. Whether something was there."""
        head = self.bucket.head(self.key)
        if head is None:
            raise S3Error(f"{self.bucket.location(self.key)} does not exist", "put it there first", code="NoSuchKey")
        if head.size != self.size:
            raise S3Error(
                f"{self.bucket.location(self.key)} has {head.size} bytes, not {self.size}: it was changed or damaged",
                "put it there again",
                damaged=True,
            )
        done = self._done(head.etag)
        resumed, lock = bool(done), threading.Lock()
        file.truncate(self.size)

        def receive_part(begin: int) -> None:
            length = min(self.step, self.size - begin)
            if begin not in done:
                _write(file, _read_part(self.bucket, self.key, begin, length, head.etag), begin)
            with lock:
                done.add(begin)
                self._note(head.etag, done)
                show(length)

        def task(begin: int) -> Callable[[], None]:
            return lambda: receive_part(begin)

        run_all(task(begin) for begin in range(0, self.size, self.step))
        os.fsync(file.fileno())
        return resumed

    def forget(self) -> None:
        """Remove both files."""
        for path in (self.part, self.journal):
            with suppress(FileNotFoundError):
                path.unlink()

    def _done(self, etag: str) -> set[int]:
        """The beginnings of the parts that are there; empty where they are another object's."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(self.journal.read_bytes())
            if known["object"] == [etag, self.size, self.step] and self.part.stat().st_size == self.size:
                return {int(begin) for begin in known["parts"]}
        return set()

    def _note(self, etag: str, done: set[int]) -> None:
        """Remember the parts that are there. Written in place of the last note, which a kill leaves whole."""
        new = self.journal.with_name(f"{self.journal.name}.new")
        new.write_text(json.dumps({"object": [etag, self.size, self.step], "parts": sorted(done)}))
        new.replace(self.journal)


def _read_part(bucket: Bucket, key: str, begin: int, length: int, etag: str) -> bytes:
    """Some bytes of an object, read again where an answer broke off; of no other object than that with this ETag."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    what = f"{bucket.location(key)} was not read"
    broken: S3Error | None = None
    for _ in range(ATTEMPTS):
        answer = bucket.ask(
            "get_object",
            Key=bucket.name(key),
            Range=f"bytes={begin}-{begin + length - 1}",
            IfMatch=f'"{etag}"',
            what=what,
        )
        try:
            with closing(answer["Body"]) as body:
                content: bytes = body.read(length + 1)  # no more, if Range was ignored
        except (BotoCoreError, HTTPError, OSError) as error:
            broken = S3Error(f"{what}: {explained(error).message}", NETWORK)
            continue
        if len(content) == length:
            return content
        broken = S3Error(f"{what}: the answer broke off", NETWORK)
    assert broken is not None
    raise broken
