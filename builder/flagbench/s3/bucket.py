"""Small objects in a bucket, each with its sha256 in its metadata: put once, read whole, listed, deleted.

A create-only put is one request that the server refuses where the key is taken, so two writers never mix and a
reader never sees half of an object. It is sent again where its answer was lost; if the key is taken then, the object
is read, and equal bytes are ours.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any, TypeVar

from flagbench.s3.client import ATTEMPTS, KEYS, NETWORK, errors_of_boto3, explained, open_client
from flagbench.s3.errors import S3Error
from flagbench.s3.profiles import Address, Profile

_CONFLICTS, _CONFLICT_SECONDS = 25, 0.2

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
    modified: datetime
    """When it was put, by the server's clock."""


@dataclass(frozen=True)
class Head:
    """What is known of an object without reading it."""

    size: int
    """Bytes."""
    etag: str
    sha256: str | None
    """As the writer said, 64 hexadecimal digits; None where it said nothing."""
    content_type: str


class _BrokenOff(S3Error):
    """The connection broke in the middle of an answer."""


class Bucket:
    """Objects below a prefix of a bucket; the server is AWS_ENDPOINT_URL, else Amazon's. Threads may share it.

    Every method raises S3Error.
    """

    def __init__(self, address: Address) -> None:
        self.address = address

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

    @property
    def credentials(self) -> Any:
        """What the client signs with, as botocore has it. Raises S3Error (usage) where there is nothing."""
        found = self._opened[2].get_credentials()
        if found is None:
            raise S3Error(f"{self.url}: there are no credentials to sign with", f"set {KEYS}", usage=True)
        return found.get_frozen_credentials()

    @cached_property
    def keeps_versions(self) -> bool:
        """Whether a create-only put may take the place of an object because the bucket keeps versions, or kept them.

        False on a server that knows no versions, and where such puts are safe in spite of them.
        """
        if self.profile.versioned:
            return False
        try:
            status = self.ask("get_bucket_versioning").get("Status")
        except S3Error as error:
            if error.status in (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
                return False  # if it does keep some, the answer to a put says so
            if error.code == "AccessDenied":
                raise S3Error(
                    f"{self.url}: this key may not ask whether the bucket keeps versions, where a put may overwrite",
                    "allow the key s3:GetBucketVersioning",
                    code=error.code,
                ) from error
            raise
        return status is not None

    def put_if_absent(self, key: str, content: bytes, content_type: str = "application/json") -> bool:
        """Keep an object that is never overwritten. Whether `key` holds these bytes now: False where it holds others.

        Nothing is kept where this fails, unless the answer of the server was lost for good.
        """
        if self.keeps_versions:
            raise self.unsafe(key)
        for _ in range(_CONFLICTS):
            answer = self.create(key, content, content_type)
            if answer is None:
                held = self._holds(key, content)
                if held is not None:
                    return held
                time.sleep(_CONFLICT_SECONDS)
                continue
            if answer.get("VersionId") not in (None, "null") and not self.profile.versioned:
                # The server did not say before that it keeps versions; another's may be the first.
                with suppress(S3Error):
                    self.ask("delete_object", Key=self.name(key), VersionId=answer["VersionId"])
                raise self.unsafe(key)
            return True
        raise S3Error(
            f"{self.location(key)} was not stored: other writers kept changing it",
            "store it again",
        )

    def create(
        self, key: str, content: bytes, content_type: str = "application/json", **more: Any
    ) -> dict[str, Any] | None:
        """Put an object unless its key is taken; the server's answer, None where it is taken. `more` as in `put`.

        While another writer is at it, which not every server waits for, it is sent again.
        """
        for attempt in range(_CONFLICTS):
            try:
                return self.put(key, content, content_type, create=True, **more)
            except S3Error as error:
                if error.taken:
                    return None
                if error.code != "ConditionalRequestConflict" or attempt == _CONFLICTS - 1:
                    raise
                time.sleep(_CONFLICT_SECONDS)
        raise AssertionError("the last conflict is raised")

    def put(
        self,
        key: str,
        content: bytes,
        content_type: str = "application/json",
        *,
        create: bool = False,
        metadata: Mapping[str, str] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Put an object with one request; returns the answer. With `create` the server refuses a key that is taken.

        `metadata` is kept beside the sha256; `more` are further arguments of boto3's put_object.
        """
        if create:
            more["IfNoneMatch"] = "*"  # or what the kind of server has for it: see `open_client`
        return self.ask(
            "put_object",
            Key=self.name(key),
            Body=content,
            ContentType=content_type,
            Metadata={"sha256": hashlib.sha256(content).hexdigest(), **(metadata or {})},
            what=f"{self.location(key)} was not confirmed as stored",
            **more,
        )

    def read(self, key: str, limit: int) -> tuple[bytes, str | None]:
        """At most one byte more than `limit` of an object, and the sha256 that it was put with, unchecked."""
        what = f"{self.location(key)} was not read"

        def read(client: Any) -> tuple[bytes, str | None]:
            from botocore.exceptions import BotoCoreError
            from urllib3.exceptions import HTTPError

            answer = client.get_object(Bucket=self.address.bucket, Key=self.name(key))
            try:
                with closing(answer["Body"]) as body:
                    content = body.read(limit + 1)
            except (BotoCoreError, HTTPError, OSError) as error:
                raise _BrokenOff(f"{what}: {explained(error)}", NETWORK) from error
            if len(content) < min(answer.get("ContentLength", 0), limit + 1):
                raise _BrokenOff(f"{what}: the answer broke off", NETWORK)
            return content, answer["Metadata"].get("sha256")

        for _ in range(ATTEMPTS - 1):
            with suppress(_BrokenOff):
                return self.attempt(read, what)
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
            raise S3Error(f"{self.location(key)} {problem}", "store it again", damaged=True)
        return content

    def head(self, key: str) -> Head | None:
        """What is known of an object; None if it does not exist."""
        try:
            answer = self.ask("head_object", Key=self.name(key), what=f"{self.location(key)} cannot be asked for")
        except S3Error as error:
            if error.missing:
                return None
            raise
        sha256 = answer.get("Metadata", {}).get("sha256")
        return Head(answer["ContentLength"], answer["ETag"].strip('"'), sha256, answer.get("ContentType", ""))

    def list(self, prefix: str) -> Iterator[Listed]:
        """The objects whose key begins so."""
        asked: dict[str, Any] = {"Prefix": self.name(prefix)}
        while True:
            page = self.ask("list_objects_v2", **asked)
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):  # what a browser of buckets makes for an empty folder
                    key, etag = found["Key"][len(self.address.prefix) :], found["ETag"].strip('"')
                    yield Listed(key, found["Size"], etag, found["LastModified"])
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token or token == asked.get("ContinuationToken"):
                raise S3Error(
                    f"{self.url}: the server's listing stops early, without a continuation token",
                    "use a server that knows ListObjectsV2",
                    usage=True,
                )
            asked["ContinuationToken"] = token

    def copy(self, source: str, key: str, **more: Any) -> None:
        """Have the server copy an object, in parts where it is large. `more`: boto3's ExtraArgs of a copy."""
        origin = {"Bucket": self.address.bucket, "Key": self.name(source)}
        self.attempt(
            lambda client: client.copy(origin, self.address.bucket, self.name(key), ExtraArgs=more),
            f"{self.location(source)} was not copied to {self.location(key)}",
        )

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is not an error."""
        self.ask("delete_object", Key=self.name(key))

    def unsafe(self, key: str) -> S3Error:
        """The error for a bucket in which a create-only put may overwrite."""
        return S3Error(
            f"{key.rpartition('/')[2]} was not stored in {self.url}: the bucket keeps versions, and there a later "
            "put may take the place of an object",
            "use a bucket without versions",
        )

    def ask(self, operation: str, what: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Have the server do something with the bucket; `what` begins the message of an error."""
        return self.attempt(
            lambda client: getattr(client, operation)(Bucket=self.address.bucket, **arguments),
            what or f"{self.url} at {self.endpoint} cannot be used",
        )

    def attempt(self, action: Callable[[Any], Answer], what: str) -> Answer:
        """What an action on boto3's client returns; an error of it becomes an S3Error that begins with `what`."""
        client, raised = self.client, errors_of_boto3()
        try:
            return action(client)
        except raised as error:
            raise explained(error, what) from error

    def _holds(self, key: str, content: bytes) -> bool | None:
        """Whether a taken key holds these bytes, as after a put whose answer was lost; None: it was deleted since."""
        try:
            there, checksum = self.read(key, len(content))
        except S3Error as error:
            if error.missing:
                return None
            raise S3Error(
                f"{self.location(key)} is taken, and cannot be compared: {error.message}",
                "use a key that may read there, too, to see whether it is the same",
                code=error.code,
            ) from error
        if there == content and checksum != hashlib.sha256(content).hexdigest():
            raise S3Error(
                f"{self.location(key)} has the same bytes, but not their sha256 in its metadata",
                "remove it (a record with `flagbench results rm`), then store it again",
            )
        return there == content

    @cached_property
    def _opened(self) -> tuple[Any, Profile, Any]:
        return open_client(self.address)
