"""Large objects: files to and from a bucket by boto3's own transfers, in parts of which several are under way.

A transfer that was killed starts from the beginning; the parts that an upload left are then removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flagbench_core.s3.bucket import Bucket
from flagbench_core.s3.client import transfer_config
from flagbench_core.s3.errors import S3Error

_CHUNK = 2**20
_ENDED = ("NoSuchUpload", "NoSuchKey")
"""The error code for an upload in parts that was completed or aborted."""


def sha256_of(path: Path) -> str:
    """The sha256 of a file, 64 hexadecimal digits. Raises OSError."""
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            checksum.update(chunk)
    return checksum.hexdigest()


def put_file(
    bucket: Bucket,
    key: str,
    path: Path,
    sha256: str,
    *,
    content_type: str = "application/octet-stream",
    show: Callable[[int], None] | None = None,
    **more: str,
) -> bool:
    """Keep a file under a key that contains its sha256. Returns whether it was sent: False if it existed.

    The end of an upload in parts overwrites even where a put would not; because the key names the content, two
    writers of one key write the same bytes.

    Args:
        show: called by boto3's threads with the bytes that were sent since the last call, negative if they are
            sent again.
        more: further arguments of the upload, as boto3 has them.

    Raises S3Error, `damaged` if the object has other bytes, and OSError if the file cannot be read.
    """
    size, name = path.stat().st_size, bucket.name(key)
    if _exists(bucket, key, size, sha256):
        return False
    options: dict[str, Any] = {
        "ExtraArgs": {"ContentType": content_type, "Metadata": {"sha256": sha256}, **more},
        "Callback": show,
        "Config": transfer_config(),
    }
    try:
        bucket.attempt(
            lambda client: client.upload_file(str(path), bucket.address.bucket, name, **options),
            f"{bucket.location(key)} was not confirmed as stored",
        )
    except S3Error as error:
        # The upload ended already: the answer was lost, or another writer of the same file has finished first.
        if error.code not in _ENDED or not _exists(bucket, key, size, sha256):
            raise
    abort_leftovers(bucket, name, size)
    return True


def get_file(
    bucket: Bucket, key: str, path: Path, *, size: int, sha256: str, show: Callable[[int], None] | None = None
) -> None:
    """Download an object to `path`, whole or not at all, and verify its sha256. For one process at a time.

    A file that already has these bytes is left as it is.

    Raises S3Error, `damaged` if the object has other bytes, and OSError if the file cannot be written.
    """
    if path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256:
        return
    part = path.with_name(f".{path.name}.part")  # the next attempt overwrites what a kill leaves
    try:
        _download(bucket, key, part, show)
        part_sha256 = sha256_of(part)
        if part_sha256 != sha256:
            raise S3Error(
                f"{bucket.location(key)} has the sha256 {part_sha256}, not {sha256}: it was changed or damaged",
                "put it there again",
                damaged=True,
            )
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _download(bucket: Bucket, key: str, path: Path, show: Callable[[int], None] | None = None) -> None:
    """Write an object to a file, which is incomplete after an error. `show` as in `put_file`.

    Raises S3Error and OSError.
    """
    options = {"Callback": show, "Config": transfer_config()}
    with path.open("wb") as file:
        bucket.attempt(
            lambda client: client.download_fileobj(bucket.address.bucket, bucket.name(key), file, **options),
            f"{bucket.location(key)} was not read",
        )
        file.flush()
        os.fsync(file.fileno())


def _exists(bucket: Bucket, key: str, size: int, sha256: str) -> bool:
    """Whether a file exists; False if the key may not ask."""
    head = bucket.head(key)
    if head is None:
        return False
    if (head.size, head.sha256) != (size, sha256):
        raise S3Error(
            f"{bucket.location(key)} exists with other bytes, or without their sha256 in its metadata",
            "remove it, then upload it again",
            damaged=True,
        )
    return True


def abort_leftovers(bucket: Bucket, name: str, size: int) -> None:
    """Remove the parts that killed uploads and copies of this object left, which no listing of objects shows.

    Another writer that is still sending the same file is told NoSuchUpload, and finds the object.
    """
    if size < transfer_config().multipart_threshold:
        return
    with suppress(S3Error):  # a key that may not list or abort uploads
        for upload in bucket.ask("list_multipart_uploads", Prefix=name).get("Uploads", ()):
            if upload["Key"] == name:
                bucket.ask("abort_multipart_upload", Key=name, UploadId=upload["UploadId"])
