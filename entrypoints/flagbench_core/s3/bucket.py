"""Small objects in a bucket, each with its sha256 in its metadata: put once, read whole, listed, deleted.

A create-only put is one request that the server refuses if the key is taken, so two writers never mix and a
reader never sees half of an object. It is sent again if its answer was lost; if the key is taken then, the object
is read, and equal bytes are ours.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, TypeVar

from flagbench_core.s3.client import ATTEMPTS, broke_off, errors_of_boto3, explained, open_client
from flagbench_core.s3.errors import S3Error
from flagbench_core.s3.profiles import Address, Profile

_CONFLICTS, _CONFLICT_SECONDS = 25, 0.2
_CONFLICT = "ConditionalRequestConflict"
_MARK, _MARK_CONTENT = "results/store-v1.json", b'{"schema": "store/v1"}\n'
"""The object that says that a prefix is a store. Its put shows before a run whether records can be kept."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Listed:
    """An object as a listing shows it."""

    key: str
    """Below the prefix of the bucket's address."""
    size: int
    """Bytes."""
    etag: str
    """Changes when the content does."""


@dataclass(frozen=True)
class Head:
    """The metadata of an object."""

    size: int
    """Bytes."""
    sha256: str | None
    """As the writer stated, 64 hexadecimal digits; None if it stated none."""


class Bucket:
    """Objects below a prefix of a bucket; the server is AWS_ENDPOINT_URL, else Amazon's. Threads may share it.

    Every method raises S3Error.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._checked = False

    @property
    def url(self) -> str:
        """s3://bucket/prefix."""
        return self.address.url

    def location(self, key: str) -> str:
        """The URL of an object."""
        return f"s3://{self.address.bucket}/{self.name(key)}"

    def name(self, key: str) -> str:
        """The key of an object in the bucket: with the prefix."""
        return f"{self.address.prefix}{key}"

    @cached_property
    def client(self) -> Any:
        """The boto3 client, for what no method here does: see `ask` and `attempt`."""
        return self._opened[0]

    @cached_property
    def profile(self) -> Profile:
        """The kind of server this is."""
        return self._opened[1]

    @cached_property
    def endpoint(self) -> str:
        """The server's URL."""
        return str(self.client.meta.endpoint_url)

    @cached_property
    def keeps_versions(self) -> bool:
        """Whether a create-only put may take the place of an object because the bucket keeps versions, or kept them.

        False on a server without versions, and on one where such puts are safe in spite of them.
        """
        if self.profile.versioned:
            return False
        try:
            return "Status" in self.ask("get_bucket_versioning")
        except S3Error as error:
            if error.status in (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
                return False
            if error.denied:
                what = f"this key may not ask whether {self.url} keeps versions (s3:GetBucketVersioning)"
                raise S3Error(what, error.remedy, code=error.code, status=error.status) from error
            raise

    def unsafe(self, key: str) -> S3Error:
        """The error for a bucket in which a create-only put may overwrite."""
        return S3Error(
            f"{key.rpartition('/')[2]} was not stored in {self.url}: the bucket keeps versions, and there a later "
            "put may take the place of an object",
            "use a bucket without versions",
        )

    def check_keeps(self) -> None:
        """Find out whether this key may write and what it writes can be read: puts _MARK, which stays in the store.

        Raises S3Error, `denied` for a key that may only read.
        """
        if self._checked:
            return
        if self.keeps_versions:
            raise self.unsafe("a record")
        try:
            self.put(_MARK, _MARK_CONTENT, create=True)
        except S3Error as error:
            if not error.taken and error.code != _CONFLICT:
                raise
        self._check_kept(_MARK, _MARK_CONTENT)

    def _check_kept(self, key: str, content: bytes) -> None:
        """Check once, after a put, that the object exists with its sha256. A key that may only write cannot ask."""
        if self._checked:
            return
        what = f"{self.location(key)} was put, but cannot be read"
        remedy = "use a server that keeps the metadata of objects: `flagbench store doctor` tests one"
        try:
            answer = self.ask("head_object", what, Key=self.name(key))
        except S3Error as error:
            if not error.denied:
                raise
        else:
            if answer["Metadata"].get("sha256") != hashlib.sha256(content).hexdigest():
                raise S3Error(f"{what}: the server did not keep its sha256", remedy, damaged=True)
        self._checked = True

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Keep an object that is never overwritten. Returns whether `key` holds these bytes now, and not others.

        While another writer is at it, which not every server waits for, the put is sent again. Nothing is kept if
        this fails, unless the answer of the server was lost for good, or it keeps no metadata.
        """
        if self.keeps_versions:
            raise self.unsafe(key)
        for _ in range(_CONFLICTS):
            try:
                self.put(key, content, create=True)
            except S3Error as error:
                if not error.taken and error.code != _CONFLICT:
                    raise
                if error.taken:
                    holds = self._holds(key, content)
                    if holds is not None:
                        return holds
            else:
                self._check_kept(key, content)
                return True
            time.sleep(_CONFLICT_SECONDS)
        raise S3Error(f"{self.location(key)} was not stored: other writers kept changing it", "store it again")

    def _holds(self, key: str, content: bytes) -> bool | None:
        """Whether a taken key holds these bytes, as after a put whose answer was lost; None: it was deleted since."""
        try:
            return self.read(key, len(content)) == (content, hashlib.sha256(content).hexdigest())
        except S3Error as error:
            if error.missing:
                return None
            raise

    def put(self, key: str, content: bytes, *, create: bool = False, kind: str = "application/json") -> None:
        """Put an object with one request. With `create` the server refuses a key that is taken: see S3Error.taken."""
        more: dict[str, str] = {}
        if create:
            more = {"IfNoneMatch": "*"}  # or what the kind of server has for it: see `open_client`
        self.ask(
            "put_object",
            f"{self.location(key)} was not confirmed as stored",
            Key=self.name(key),
            Body=content,
            ContentType=kind,
            Metadata={"sha256": hashlib.sha256(content).hexdigest()},
            **more,
        )

    def read(self, key: str, limit: int) -> tuple[bytes, str | None]:
        """At most one byte more than `limit` of an object, and the sha256 that it was put with, unchecked."""
        what = f"{self.location(key)} was not read"

        def read(client: Any) -> tuple[bytes, str | None]:
            answer = client.get_object(Bucket=self.address.bucket, Key=self.name(key))
            with closing(answer["Body"]) as body:
                # botocore compares the length of a body only if it is read to its end.
                content = body.read() if answer["ContentLength"] <= limit else body.read(limit + 1)
            return content, answer["Metadata"].get("sha256")

        for _ in range(ATTEMPTS - 1):
            try:
                return self.attempt(read, what)
            except S3Error as error:
                if not broke_off(error.__cause__):
                    raise
        return self.attempt(read, what)

    def get(self, key: str, limit: int) -> bytes:
        """The bytes of an object, checked against the sha256 that they were put with."""
        content, expected = self.read(key, limit)
        problem = None
        if len(content) > limit:
            problem = f"is larger than {limit} bytes"
        elif expected is None:
            problem = "has no sha256 in its metadata"
        elif expected != hashlib.sha256(content).hexdigest():
            problem = "does not match its checksum: it changed after it was stored"
        if problem:
            raise S3Error(f"{self.location(key)} {problem}", "remove it, then store it again", damaged=True)
        return content

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
        """The objects whose key begins so."""
        paginator = self.client.get_paginator("list_objects_v2")
        pages = iter(paginator.paginate(Bucket=self.address.bucket, Prefix=self.name(prefix)))
        while page := self.attempt(lambda _: next(pages, None), self._unusable):
            for listed in page.get("Contents", ()):
                if listed["Key"].endswith("/"):  # what a browser of buckets makes for an empty folder
                    continue
                key = listed["Key"][len(self.address.prefix) :]
                yield Listed(key, listed["Size"], listed["ETag"].strip('"'))

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is not an error."""
        self.ask("delete_object", Key=self.name(key))

    def ask(self, operation: str, what: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Have the server do something with the bucket; `what` begins the message of an error."""
        return self.attempt(
            lambda client: getattr(client, operation)(Bucket=self.address.bucket, **arguments),
            what or self._unusable,
        )

    def attempt(self, action: Callable[[Any], Answer], what: str) -> Answer:
        """What an action on boto3's client returns; an error of it becomes an S3Error that begins with `what`."""
        client, raised = self.client, errors_of_boto3()
        try:
            return action(client)
        except raised as error:
            raise explained(error, what) from error

    @property
    def _unusable(self) -> str:
        return f"{self.url} at {self.endpoint} cannot be used"

    @cached_property
    def _opened(self) -> tuple[Any, Profile]:
        return open_client(self.address)
