"""Large objects: files to and from a bucket by boto3's own transfers, in parts of which several are under way.

A transfer that was killed starts from the beginning; the parts that an upload left are then removed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from flagbench.s3.bucket import Bucket
from flagbench.s3.checksums import sha256_of
from flagbench.s3.client import transfer_config
from flagbench.s3.errors import S3Error

_ENDED = ("NoSuchUpload", "NoSuchKey")
"""What a server says of an upload in parts that was completed or aborted."""


class Show(Protocol):
    """Shows the progress of a transfer."""

    def __call__(self, count: int, /) -> None:
        """`count`: bytes that were transferred since the last call; negative where they are transferred again."""


def put_file(
    bucket: Bucket,
    key: str,
    path: Path,
    sha256: str,
    *,
    content_type: str = "application/octet-stream",
    show: Show = lambda count: None,
    **more: Any,
) -> bool:
    """Keep a file under a key that contains its sha256. Whether it was sent: False where it was there already.

    The end of an upload in parts overwrites even where a put would not; because the key names the content, two
    writers of one key write the same bytes. `more`: further ExtraArgs of boto3's upload_file, such as ACL.

    Raises S3Error, of which `damaged` where other bytes are there, and OSError where the file cannot be read.
    """
    if sha256 not in key:
        raise ValueError(f"the key {key!r} does not name its content")
    size = path.stat().st_size
    if _is_there(bucket, key, size, sha256):
        show(size)
        return False
    arguments = {"ContentType": content_type, "Metadata": {"sha256": sha256}, **more}
    where, name = bucket.address.bucket, bucket.name(key)
    try:
        bucket.attempt(
            lambda client: client.upload_file(
                str(path), where, name, ExtraArgs=arguments, Callback=_locked(show), Config=transfer_config()
            ),
            f"{bucket.location(key)} was not confirmed as stored",
        )
    except S3Error as error:
        # The upload ended already: the answer was lost, or another writer of the same file has finished first.
        if error.code not in _ENDED or _is_there(bucket, key, size, sha256) is False:
            raise
    if size >= transfer_config().multipart_threshold:
        _abort_leftovers(bucket, name)
    return True


def get_file(
    bucket: Bucket, key: str, path: Path, *, size: int, sha256: str, show: Show = lambda count: None
) -> None:
    """Download an object to `path`, whole or not at all, and verify its sha256. For one process at a time.

    A file that is there with these bytes is left as it is.

    Raises S3Error, of which `damaged` where the object has other bytes, and OSError where the file cannot be written.
    """
    if path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256:
        show(size)
        return
    part = path.with_name(f".{path.name}.part")  # the next attempt overwrites what a kill leaves
    try:
        download(bucket, key, part, show)
        found = sha256_of(part)
        if found != sha256:
            raise S3Error(
                f"{bucket.location(key)} has the sha256 {found}, not {sha256}: it was changed or damaged",
                "put it there again",
                damaged=True,
            )
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def download(bucket: Bucket, key: str, path: Path, show: Show = lambda count: None) -> None:
    """Write an object to a file, which is incomplete after an error. Raises S3Error and OSError."""
    with path.open("wb") as file:
        _receive(bucket, key, file, show)
        file.flush()
        os.fsync(file.fileno())


def sum_of_object(bucket: Bucket, key: str, show: Show = lambda count: None) -> str:
    """The sha256 of an object, which is read and kept nowhere. Raises S3Error."""
    found = hashlib.sha256()
    _receive(bucket, key, SimpleNamespace(write=found.update), show)
    return found.hexdigest()


def _receive(bucket: Bucket, key: str, target: Any, show: Show) -> None:
    where, name = bucket.address.bucket, bucket.name(key)
    bucket.attempt(
        lambda client: client.download_fileobj(where, name, target, Callback=_locked(show), Config=transfer_config()),
        f"{bucket.location(key)} was not read",
    )


def _locked(show: Show) -> Show:
    """Boto3 calls it from several threads."""
    lock = threading.Lock()

    def shown(count: int) -> None:
        with lock:
            show(count)

    return shown


def _is_there(bucket: Bucket, key: str, size: int, sha256: str) -> bool | None:
    """Whether an object is there; None where the key may not ask."""
    try:
        head = bucket.head(key)
    except S3Error as error:
        if error.denied:
            return None
        raise
    if head is None:
        return False
    if (head.size, head.sha256) != (size, sha256):
        raise S3Error(
            f"{bucket.location(key)} is there with other bytes, or without the sha256 of these in its metadata",
            "remove it, then upload it again",
            damaged=True,
        )
    return True


def _abort_leftovers(bucket: Bucket, name: str) -> None:
    """Remove the parts that killed uploads of this object left, which no listing of objects shows.

    Another writer that is still sending the same file is told NoSuchUpload, and finds the object.
    """
    with suppress(S3Error):  # a key that may not list or abort uploads
        for upload in bucket.ask("list_multipart_uploads", Prefix=name).get("Uploads", ()):
            if upload["Key"] == name:
                bucket.ask("abort_multipart_upload", Key=name, UploadId=upload["UploadId"])
