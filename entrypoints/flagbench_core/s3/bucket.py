"""Puts, reads, lists and deletes small objects in a bucket. Each has its sha256 in its metadata.

A create-only put is one request that the server refuses if the key is taken, so two writers never mix and a reader
never sees half of an object. It is sent again if its answer was lost. If the key is taken then, the object is read:
if it has the same bytes, the first request succeeded.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from flagbench_core.s3.client import ATTEMPTS, broke_off, errors_of_boto3, explained, open_client
from flagbench_core.s3.errors import S3Error
from flagbench_core.s3.profiles import Address, Profile

_CONFLICT = "ConditionalRequestConflict"
"""S3's error code for a create-only put of a key that another writer is putting."""
_CONFLICTS = 25
"""How many times a put is sent again after _CONFLICT: for 5 s, in which another put of a small object ends."""
_CONFLICT_SECONDS = 0.2
_MARK, _MARK_CONTENT = "results/store-v1.json", b'{"schema": "store/v1"}\n'
"""The object that marks a prefix as a store. Putting it before a run shows whether records can be kept."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Listed:
    """An object as a listing shows it."""

    key: str
    """The key without the prefix of the bucket's address."""
    size: int
    """Bytes."""
    etag: str
    """A value of the server that changes when the content does."""


@dataclass(frozen=True)
class Head:
    """The metadata of an object."""

    size: int
    """Bytes."""
    sha256: str | None
    """The sha256 that the writer stated, 64 hexadecimal digits; None if it stated none."""


class StoredBytes(NamedTuple):
    """The content of an object, which may have been cut off at a limit."""

    content: bytes
    sha256: str | None
    """The sha256 that the writer stated, which was not compared with the content; None if it stated none."""


class Bucket:
    """Objects below a prefix of a bucket; the server is AWS_ENDPOINT_URL, else Amazon's. Threads may share it.

    Every method raises S3Error.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._keeps_checked = False
        """Whether an object was put and could then be read with its sha256."""

    @property
    def url(self) -> str:
        """The address of the bucket: s3://bucket/prefix."""
        return self.address.url

    def location(self, key: str) -> str:
        """The URL of an object: s3://bucket/prefix/key."""
        return f"s3://{self.address.bucket}/{self.name(key)}"

    def name(self, key: str) -> str:
        """The key of an object as the server knows it: with the prefix."""
        return f"{self.address.prefix}{key}"

    @cached_property
    def client(self) -> Any:
        """The boto3 client, for requests that have no method here: see `ask` and `attempt`."""
        return self._opened[0]

    @cached_property
    def profile(self) -> Profile:
        """The kind of server that the bucket is on, and what it supports."""
        return self._opened[1]

    @cached_property
    def endpoint(self) -> str:
        """The server's URL."""
        return str(self.client.meta.endpoint_url)

    @cached_property
    def keeps_versions(self) -> bool:
        """Whether a create-only put may overwrite an object because the bucket keeps versions, or did so before.

        The server is asked once. False on a server without versions, and on one where such puts are safe anyway.
        """
        if self.profile.versioned:
            return False
        try:
            return "Status" in self.ask("get_bucket_versioning")
        except S3Error as error:
            if error.status in (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
                return False
            if error.denied:
                message = f"this key may not ask whether {self.url} keeps versions (s3:GetBucketVersioning)"
                raise S3Error(message, error.remedy, code=error.code, status=error.status) from error
            raise

    def unsafe_error(self, key: str) -> S3Error:
        """The error for a bucket in which a create-only put may overwrite."""
        return S3Error(
            f"{key.rpartition('/')[2]} was not stored in {self.url}: the bucket keeps versions, and there a later "
            "put may take the place of an object",
            "use a bucket without versions",
        )

    def check_keeps(self) -> None:
        """Check whether this key may write objects that can then be read, by putting _MARK, which stays in the store.

        Raises S3Error, `denied` for a key that may only read.
        """
        if self._keeps_checked:
            return
        if self.keeps_versions:
            raise self.unsafe_error("a record")
        try:
            self.put(_MARK, _MARK_CONTENT, create=True)
        except S3Error as error:
            if not error.taken and error.code != _CONFLICT:
                raise
        self._check_kept(_MARK, _MARK_CONTENT)

    def _check_kept(self, key: str, content: bytes) -> None:
        """Check after the first put that the object exists with its sha256; later calls do nothing.

        A key that may only write cannot be checked.
        """
        if self._keeps_checked:
            return
        failure = f"{self.location(key)} was put, but cannot be read"
        remedy = "use a server that keeps the metadata of objects: `flagbench store doctor` tests one"
        try:
            answer = self.ask("head_object", failure, Key=self.name(key))
        except S3Error as error:
            if not error.denied:
                raise
        else:
            if answer["Metadata"].get("sha256") != hashlib.sha256(content).hexdigest():
                damage = "has lost its sha256"
                raise S3Error(f"{failure}: the server did not keep its sha256", remedy, damage=damage)
        self._keeps_checked = True

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Put an object that is never overwritten. Returns False if `key` was taken by an object with other bytes.

        If another writer is putting the same key, some servers refuse the request until that has ended; it is then
        sent again. After an error the object does not exist, unless the answer of the server was lost, or the server
        keeps no metadata.
        """
        if self.keeps_versions:
            raise self.unsafe_error(key)
        for _ in range(_CONFLICTS):
            try:
                self.put(key, content, create=True)
            except S3Error as error:
                if not error.taken and error.code != _CONFLICT:
                    raise
                if error.taken:
                    stored = self._read_if_exists(key, len(content))
                    if stored is not None:
                        return stored == StoredBytes(content, hashlib.sha256(content).hexdigest())
            else:
                self._check_kept(key, content)
                return True
            time.sleep(_CONFLICT_SECONDS)
        raise S3Error(f"{self.location(key)} was not stored: other writers kept changing it", "store it again")

    def _read_if_exists(self, key: str, limit: int) -> StoredBytes | None:
        """As `read`; None if there is no object, as when it was deleted in the meantime."""
        try:
            return self.read(key, limit)
        except S3Error as error:
            if error.missing:
                return None
            raise

    def put(self, key: str, content: bytes, *, create: bool = False, kind: str = "application/json") -> None:
        """Put an object with one request. With `create` the server refuses a key that is taken: see S3Error.taken."""
        condition: dict[str, str] = {}
        if create:
            condition = {"IfNoneMatch": "*"}  # `open_client` translates it for servers that use another header
        self.ask(
            "put_object",
            f"{self.location(key)} was not confirmed as stored",
            Key=self.name(key),
            Body=content,
            ContentType=kind,
            Metadata={"sha256": hashlib.sha256(content).hexdigest()},
            **condition,
        )

    def read(self, key: str, limit: int) -> StoredBytes:
        """The content of an object. If it is larger than `limit` bytes, the first `limit` + 1 bytes."""

        def get_object(client: Any) -> StoredBytes:
            answer = client.get_object(Bucket=self.address.bucket, Key=self.name(key))
            with closing(answer["Body"]) as body:
                # botocore checks the length of a body only if it is read to its end, without an amount.
                amount = None
                if answer["ContentLength"] > limit:
                    amount = limit + 1
                content = body.read(amount)
            return StoredBytes(content, answer["Metadata"].get("sha256"))

        failure = f"{self.location(key)} was not read"
        for _ in range(ATTEMPTS - 1):
            try:
                return self.attempt(get_object, failure)
            except S3Error as error:
                if not broke_off(error.__cause__):
                    raise
        return self.attempt(get_object, failure)

    def get(self, key: str, limit: int) -> bytes:
        """The content of an object, which must match its sha256 and have at most `limit` bytes."""
        stored = self.read(key, limit)
        damage = ""
        if len(stored.content) > limit:
            damage = f"is larger than {limit} bytes"
        elif stored.sha256 is None:
            damage = "has no sha256 in its metadata"
        elif stored.sha256 != hashlib.sha256(stored.content).hexdigest():
            damage = "does not match its checksum: it changed after it was stored"
        if damage:
            raise S3Error(f"{self.location(key)} {damage}", "remove it, then store it again", damage=damage)
        return stored.content

    def head(self, key: str) -> Head | None:
        """The metadata of an object; None if it does not exist, or this key may not ask."""
        try:
            answer = self.ask("head_object", f"{self.location(key)} cannot be asked for", Key=self.name(key))
        except S3Error as error:
            if error.missing or error.denied:
                return None
            raise
        return Head(answer["ContentLength"], answer["Metadata"].get("sha256"))

    def list(self, prefix: str) -> Iterator[Listed]:
        """The objects whose key begins with `prefix`. They are listed page by page, as the caller needs them."""
        paginator = self.client.get_paginator("list_objects_v2")
        pages = iter(paginator.paginate(Bucket=self.address.bucket, Prefix=self.name(prefix)))
        while page := self.attempt(lambda _: next(pages, None), self._unusable):
            for listed in page.get("Contents", ()):
                if listed["Key"].endswith("/"):  # web consoles create such objects for empty folders
                    continue
                key = listed["Key"][len(self.address.prefix) :]
                yield Listed(key, listed["Size"], listed["ETag"].strip('"'))

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is not an error."""
        self.ask("delete_object", Key=self.name(key))

    def ask(self, operation: str, failure: str | None = None, **arguments: Any) -> dict[str, Any]:
        """The server's answer to an operation of boto3's client on this bucket, such as `head_object`.

        `failure` begins the message of an error.
        """

        def call(client: Any) -> dict[str, Any]:
            answer: dict[str, Any] = getattr(client, operation)(Bucket=self.address.bucket, **arguments)
            return answer

        return self.attempt(call, failure or self._unusable)

    def attempt(self, action: Callable[[Any], Result], failure: str) -> Result:
        """The result of an action on boto3's client. Its error becomes an S3Error that begins with `failure`."""
        client = self.client
        try:
            return action(client)
        except errors_of_boto3() as error:
            raise explained(error, failure) from error

    @property
    def _unusable(self) -> str:
        return f"{self.url} at {self.endpoint} cannot be used"

    @cached_property
    def _opened(self) -> tuple[Any, Profile]:
        return open_client(self.address)
