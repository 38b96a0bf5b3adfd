"""The objects of images in a bucket: asked for, created once, replaced, published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from typing import Any

from flagbench.oci.manifest import MANIFEST_BYTES
from flagbench.s3 import Address, Bucket, Head, S3Error

_CHUNK = 2**20
_REFUSED_CONDITIONS = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.NOT_IMPLEMENTED)
"""Statuses, beside 412, of a conditional put that another writer came before, or that the server does not know."""


class ImageObjects:
    """Objects of a bucket, readable for everyone if that was asked for. Every method raises S3Error."""

    def __init__(self, address: Address, *, public: bool) -> None:
        self.bucket = Bucket(address)
        self.acl: dict[str, Any] = {"ACL": "public-read"} if public else {}
        """Arguments of boto3 for what is put: an ACL, or nothing."""

    def head(self, key: str) -> Head | None:
        """What is known of an object; None if it does not exist, or the key may not ask."""
        try:
            return self.bucket.head(key)
        except S3Error as error:
            if error.denied:
                return None
            raise

    def readable(self, key: str) -> bytes | None:
        """A manifest; None if it does not exist, or the key may not read it."""
        try:
            return self.bucket.read(key, MANIFEST_BYTES)[0]
        except S3Error as error:
            if error.missing or error.denied:
                return None
            raise

    def is_hidden(self, key: str) -> bool:
        """Whether the key may not ask for an object."""
        try:
            self.bucket.head(key)
        except S3Error as error:
            if error.denied:
                return True
            raise
        return False

    def create(self, key: str, content: bytes, media_type: str, *, compare: bool = True) -> None:
        """Put an object unless it is there. Raises S3Error (damaged) where others are to `compare`, and differ."""
        if self.bucket.create(key, content, media_type, **self.acl) is not None:
            return
        if compare and self._other_than(key, content):
            location = self.bucket.location(key)
            raise S3Error(f"{location} does not match its digest", "remove it, then push again", damaged=True)
        self.publish(key)

    def _other_than(self, key: str, content: bytes) -> bool:
        """Whether an object has other bytes; False where the key may not read it."""
        try:
            return self.bucket.read(key, MANIFEST_BYTES)[0] != content
        except S3Error as error:
            if error.denied:
                return False
            raise

    def replaced(self, key: str, before: Head | None, content: bytes, media_type: str) -> bool:
        """Put an object in place of what it was `before`. Whether that was so, as far as the server can tell."""
        # Ceph 16.2 compares the ETag without quotes; Amazon S3 takes it with and without.
        options: dict[str, Any] = {"create": True} if before is None else {"IfMatch": before.etag}
        try:
            self.bucket.put(key, content, media_type, **options, **self.acl)
        except S3Error as error:
            if not error.taken and not error.missing and error.status not in _REFUSED_CONDITIONS:
                raise
            if before is None or self.head(key) != before:
                return False
            # The server does not know If-Match of a put, or has other words for an ETag.
            self.bucket.put(key, content, media_type, **self.acl)
        return True

    def publish(self, key: str) -> None:
        """Let everyone read an object that was there, if that was asked for."""
        if self.acl:
            self.bucket.ask("put_object_acl", Key=self.bucket.name(key), **self.acl)

    def chunks(self, key: str, head: Head, begin: int) -> Iterator[bytes]:
        """The bytes of an object from `begin` on, as long as the connection lasts."""
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        what = f"{self.bucket.location(key)} was not read"
        asked: dict[str, Any] = {"Range": f"bytes={begin}-", "IfMatch": f'"{head.etag}"'}
        answer = self.bucket.ask("get_object", Key=self.bucket.name(key), what=what, **asked)
        try:
            with closing(answer["Body"]) as body:
                yield from body.iter_chunks(_CHUNK)
        except (BotoCoreError, HTTPError, OSError) as error:
            raise S3Error(f"{what}: the answer broke off", "check the network, then try again") from error
