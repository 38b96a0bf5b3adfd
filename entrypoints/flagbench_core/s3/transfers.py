"""Copies large files to and from a bucket by boto3's transfers, which send several parts at a time.

Archives of images and bundles of runs are stored this way. A transfer that was killed starts from the beginning; the
parts that a killed upload left are removed after the next upload of the same object.
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
"""Bytes of a file that are read at a time to compute its checksum."""
_ENDED = ("NoSuchUpload", "NoSuchKey")
"""Error codes for an upload in parts that was completed or aborted; which one depends on the service."""


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
    **options: str,
) -> bool:
    """Upload a file to a key that contains its sha256. Returns whether it was sent: False if it existed.

    An upload in parts replaces an existing object, for which S3 has no condition as it has for a single put. This is
    safe because the key names the content: two writers of one key write the same bytes.

    Args:
        bucket: the bucket.
        key: the key of the object.
        path: the file.
        sha256: the sha256 of the file, hexadecimal, which becomes metadata of the object.
        content_type: the MIME type of the object.
        show: called by boto3's threads with the number of bytes that were sent since the last call, negative if they
            are sent again.
        options: further arguments of the upload, by boto3's names, such as ACL.

    Raises S3Error, `damaged` if the object has other bytes, and OSError if the file cannot be read.
    """
    size = path.stat().st_size
    name = bucket.name(key)
    if _exists(bucket, key, size, sha256):
        return False
    arguments: dict[str, Any] = {
        "ExtraArgs": {"ContentType": content_type, "Metadata": {"sha256": sha256}, **options},
        "Callback": show,
        "Config": transfer_config(),
    }
    try:
        bucket.attempt(
            lambda client: client.upload_file(str(path), bucket.address.bucket, name, **arguments),
            f"{bucket.location(key)} was not confirmed as stored",
        )
    except S3Error as error:
        # The upload has ended: the answer to its end was lost, or another writer of the same file finished first.
        if error.code not in _ENDED or not _exists(bucket, key, size, sha256):
            raise
    abort_leftovers(bucket, name, size)
    return True


def get_file(
    bucket: Bucket, key: str, path: Path, *, size: int, sha256: str, show: Callable[[int], None] | None = None
) -> None:
    """Download an object to `path`, completely or not at all, and verify its sha256.

    Two processes must not download to one path at a time. A file that has these bytes already is left as it is.
    `show` is called with the number of bytes that were received since the last call.

    Raises S3Error, `damaged` if the object has other bytes, and OSError if the file cannot be written.
    """
    has_size = path.is_file() and path.stat().st_size == size
    if has_size and sha256_of(path) == sha256:
        return
    part = path.with_name(f".{path.name}.part")  # the next attempt overwrites what a kill leaves
    try:
        _download(bucket, key, part, show)
        part_sha256 = sha256_of(part)
        if part_sha256 != sha256:
            damage = f"has the sha256 {part_sha256}, not {sha256}: it was changed or damaged"
            raise S3Error(
                f"{bucket.location(key)} {damage}",
                "put it there again",
                damage=damage,
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
    """Whether the bucket has an object with these bytes; False also if the credentials do not allow to ask.

    Raises S3Error, `damaged` if the object has other bytes.
    """
    head = bucket.head(key)
    if head is None:
        return False
    if (head.size, head.sha256) != (size, sha256):
        damage = "exists with other bytes, or without their sha256 in its metadata"
        raise S3Error(
            f"{bucket.location(key)} {damage}",
            "remove it, then upload it again",
            damage=damage,
        )
    return True


def abort_leftovers(bucket: Bucket, name: str, size: int) -> None:
    """Remove the parts that killed uploads and copies of an object left, which no listing of objects shows.

    `name` is the object's full name in the bucket and `size` its bytes: a small one is not sent in parts. Another
    writer that is still sending the same file gets the error NoSuchUpload, and then finds the object.
    """
    if size < transfer_config().multipart_threshold:
        return
    with suppress(S3Error):  # the credentials may not allow to list or abort uploads
        for upload in bucket.ask("list_multipart_uploads", Prefix=name).get("Uploads", ()):
            if upload["Key"] == name:
                bucket.ask("abort_multipart_upload", Key=name, UploadId=upload["UploadId"])
