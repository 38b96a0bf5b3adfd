"""Objects in a bucket of an S3 server, each with its sha256 in its metadata, never overwritten.

A put is one request that the server refuses where the key is taken, so two writers never mix and a reader never sees
half of an object. It is sent again where its answer was lost; if the key is taken then, the object is read, and equal
bytes are ours.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cached_property
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

from flagbench._version import __version__
from flagbench.errors import ExitCode
from flagbench.redaction import has_userinfo, redact
from flagbench.stores.blobs import INDEX, INDEX_BYTES, Blob, Health, ListingDenied, StoreError, Unread, damaged
from flagbench.stores.profiles import PROFILES, Address, Profile, profile_of

CONNECTIONS = 16
_ATTEMPTS = 5
_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_CONFLICTS, _CONFLICT_SECONDS = 25, 0.2
_TAKEN = {"PreconditionFailed", "FileAlreadyExists"}
_MISSING = {"NoSuchKey", "404", "NotFound"}
_NETWORK = "check the network and AWS_ENDPOINT_URL, then try again"
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_REMEDIES = {
    "NoSuchBucket": "create the bucket, or name another one; AWS_ENDPOINT_URL says on which server it is",
    "AccessDenied": "use a key that may read and write there",
    "403": "use a key that may read and write there",
    "InvalidAccessKeyId": f"set {_KEYS} to keys of this server",
    "SignatureDoesNotMatch": f"set {_KEYS} to keys of this server",
    "RequestTimeTooSkewed": "set this machine's clock, which differs too much from the server's",
    "ExpiredToken": "renew the session's credentials",
    "MissingContentLength": "name the kind of server: s3://BUCKET/PREFIX?profile=ceph",
    "SecondLevelDomainForbidden": "name the kind of server: s3://BUCKET/PREFIX?profile=oss",
    "NotImplemented": "name the kind of server with ?profile=; `flagbench store doctor` tries what it does",
    "QuotaExceeded": "free some of the bucket's quota, or name another store with --store",
    "AuthorizationHeaderMalformed": "set AWS_REGION to the bucket's region",
    "IllegalLocationConstraintException": "set AWS_REGION to the bucket's region",
    "PermanentRedirect": "set AWS_REGION to the bucket's region",
}

Answer = TypeVar("Answer")


class _BrokenOff(StoreError):
    """The connection broke in the middle of an answer."""


class BucketBlobs:
    """Objects below a prefix of a bucket; the server is AWS_ENDPOINT_URL, else Amazon's."""

    def __init__(self, address: Address) -> None:
        self.address = address

    readers = CONNECTIONS
    """Objects that are worth reading at a time."""

    @property
    def url(self) -> str:
        """s3://bucket/prefix."""
        return self.address.url

    def location(self, key: str) -> str:
        """The object's URL."""
        return f"s3://{self.address.bucket}/{self.address.prefix}{key}"

    @cached_property
    def profile(self) -> Profile:
        """The kind of server this is."""
        return self._client[1]

    @property
    def one_winner(self) -> bool:
        """As the kind of server promises."""
        return self.profile.one_winner

    @cached_property
    def endpoint(self) -> str:
        """The server's URL."""
        return str(self._client[0].meta.endpoint_url)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Keep an object; see Blobs.put_if_absent."""
        name = key.rpartition("/")[2]
        if self._overwrites:
            raise self._unsafe(name)
        for attempt in range(_CONFLICTS):
            try:
                answer = self._put(key, content)
            except StoreError as error:
                cause = error.__cause__
                if _code(cause) in _TAKEN or _status(cause) == HTTPStatus.PRECONDITION_FAILED:
                    if (held := self._holds(key, content)) is not None:
                        return held
                elif _code(cause) != "ConditionalRequestConflict" or attempt == _CONFLICTS - 1:
                    raise
                # Another writer is at it; the next answer says how that ended.
                time.sleep(_CONFLICT_SECONDS)
                continue
            if answer.get("VersionId") not in (None, "null") and not self.profile.versioned:
                # The server did not say before that it keeps versions; another's may be the first.
                with suppress(StoreError):
                    self._ask("delete_object", Key=self._key(key), VersionId=answer["VersionId"])
                raise self._unsafe(name)
            return True
        raise StoreError(
            f"{self.location(key)} was not stored: it was written and deleted by others again and again",
            remedy="store the record again",
        )

    def get(self, key: str, limit: int) -> bytes:
        """The bytes of an object, checked; see Blobs.get."""
        location = self.location(key)
        try:
            content, expected = self._read(key, limit)
        except StoreError as error:
            if _code(error.__cause__) in _MISSING:
                raise damaged(location, "does not exist") from error
            raise Unread(error.message, remedy=error.remedy, code=ExitCode.DATA) from error
        if len(content) > limit:
            raise damaged(location, f"is larger than {limit} bytes")
        if expected is None:
            raise damaged(location, "has no sha256 in its metadata")
        if expected != hashlib.sha256(content).hexdigest():
            raise damaged(location, "does not match its checksum: it changed after it was stored")
        return content

    def list(self, prefix: str) -> Iterator[Blob]:
        """The objects whose key begins so; see Blobs.list. Raises ListingDenied where the key may not list."""
        asked: dict[str, Any] = {"Prefix": self._key(prefix)}
        while True:
            try:
                page = self._ask("list_objects_v2", **asked)
            except StoreError as error:
                kind = ListingDenied if _code(error.__cause__) == "AccessDenied" else StoreError
                raise kind(error.message, remedy=error.remedy, code=ExitCode.USAGE) from error
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):  # what a browser of buckets makes for an empty folder
                    key = found["Key"].removeprefix(self.address.prefix)
                    yield Blob(key, found["Size"], f"{found['Size']}-{found['ETag'].strip(chr(34))}")
            if not page.get("IsTruncated"):
                return
            if token := page.get("NextContinuationToken"):
                asked["ContinuationToken"] = token
            else:  # a server that knows the older listing alone
                asked["StartAfter"] = page["Contents"][-1]["Key"]

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._ask("delete_object", Key=self._key(key))

    def clear(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        for blob in [*self.list(prefix)]:
            self.delete(blob.key)

    def read_index(self) -> bytes:
        """The cached listing, the only object that is ever overwritten; see Blobs.read_index."""
        try:
            return self._read(INDEX, INDEX_BYTES)[0]
        except StoreError:
            return b""

    def write_index(self, content: bytes) -> None:
        """Keep the cached listing; a failure is ignored, such as that of a key that may only read."""
        with suppress(StoreError):
            self._put(INDEX, content)

    def health(self) -> Health:
        """Whether objects could be put now, as far as is known without writing."""
        try:
            overwrites = self._overwrites
            next(self.list("results/"), None)
        except ListingDenied:
            detail = f"{self.url} at {self.endpoint}: this key may not list; whether it may write is not known"
            return Health(True, detail)
        except StoreError as error:
            return Health(False, error.message, error.remedy, writable=False)
        if overwrites:
            unsafe = self._unsafe("a record")
            return Health(False, unsafe.message, unsafe.remedy, writable=False)
        promise = (
            "" if self.profile.one_winner else "; two writers of one key at the same time may overwrite each other"
        )
        return Health(True, f"{self.url} at {self.endpoint} ({self.profile.title}){promise}")

    def _key(self, key: str) -> str:
        return f"{self.address.prefix}{key}"

    def _holds(self, key: str, content: bytes) -> bool | None:
        """Whether a taken key holds these bytes, as after a put whose answer was lost; None: it was deleted since."""
        try:
            there, checksum = self._read(key, len(content))
        except StoreError as error:
            if _code(error.__cause__) in _MISSING:
                return None
            raise StoreError(
                f"{self.location(key)} is taken, and cannot be compared: {error.message}",
                remedy="use a key that may read there, too, to see whether it is the same record",
            ) from error
        if there == content and checksum != hashlib.sha256(content).hexdigest():
            raise StoreError(
                f"{self.location(key)} has the same bytes, but not their sha256 in its metadata",
                remedy="remove it with `flagbench results rm`, then store the record again",
            )
        return there == content

    def _read(self, key: str, limit: int) -> tuple[bytes, str | None]:
        """At most one byte more than `limit` of an object, and the sha256 that it was put with."""

        def read(client: Any) -> tuple[bytes, str | None]:
            from botocore.exceptions import BotoCoreError
            from urllib3.exceptions import HTTPError

            answer = client.get_object(Bucket=self.address.bucket, Key=self._key(key))
            try:
                with closing(answer["Body"]) as body:
                    content = body.read(limit + 1)
            except (BotoCoreError, HTTPError, OSError) as error:
                raise _BrokenOff(f"{what}: {redact(str(error))}", remedy=_NETWORK) from error
            if len(content) < min(answer.get("ContentLength", 0), limit + 1):
                raise _BrokenOff(f"{what}: the answer broke off", remedy=_NETWORK)
            return content, answer["Metadata"].get("sha256")

        what = f"{self.location(key)} was not read"
        for _ in range(_ATTEMPTS - 1):
            with suppress(_BrokenOff):
                return self._try(read, what)
        return self._try(read, what)

    def _put(self, key: str, content: bytes) -> dict[str, Any]:
        """Put an object; it overwrites only if it is the index (see `_client`)."""
        md5 = hashlib.md5(content, usedforsecurity=False).digest()
        return self._ask(
            "put_object",
            Key=self._key(key),
            Body=content,
            ContentType="application/json",
            ContentMD5=base64.b64encode(md5).decode(),
            Metadata={"sha256": hashlib.sha256(content).hexdigest()},
            what=f"{self.location(key)} was not confirmed as stored",
        )

    def _ask(self, operation: str, what: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Have the server do something with the bucket. Raises StoreError with botocore's error as its cause."""
        return self._try(
            lambda client: getattr(client, operation)(Bucket=self.address.bucket, **arguments),
            what or f"{self.url} at {self.endpoint} cannot be used",
        )

    @cached_property
    def _overwrites(self) -> bool:
        """Whether a put may take the place of an object because the bucket keeps versions, or has kept them.

        False on a server that knows no versions. Raises StoreError where the key may not ask.
        """
        if self.profile.versioned:
            return False
        try:
            status = self._ask("get_bucket_versioning").get("Status")
        except StoreError as error:
            if _status(error.__cause__) in (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
                return False  # if it does keep some, the answer to a put says so
            if _code(error.__cause__) == "AccessDenied":
                raise StoreError(
                    f"{self.url}: this key may not ask whether the bucket keeps versions, where a put may overwrite",
                    remedy="allow the key s3:GetBucketVersioning",
                ) from error
            raise
        return status is not None

    def _unsafe(self, name: str) -> StoreError:
        return StoreError(
            f"{name} was not stored in {self.url}: the bucket keeps versions, and there a later put may take the "
            "place of a record",
            remedy="use a bucket without versions",
        )

    def _try(self, action: Callable[[Any], Answer], what: str) -> Answer:
        """What an action on the client returns. Raises StoreError with the client's error as its cause."""
        from botocore import exceptions

        try:
            return action(self._client[0])
        except exceptions.ClientError as error:
            told = error.response.get("Error", {})
            code, status = _code(error), _status(error)
            words = " ".join(
                str(word) for word in (status, code, told.get("Message")) if word and word != str(status)
            )
            remedy = _REMEDIES.get(code, "see the server's answer, or name another store with --store")
            raise StoreError(f"{what}: the server answers {redact(words)}", remedy=remedy) from error
        except (exceptions.BotoCoreError, ValueError) as error:
            raise StoreError(f"{what}: {redact(str(error))}", remedy=_remedy(error)) from error

    @cached_property
    def _client(self) -> tuple[Any, Profile]:
        """A client that threads can share, and the profile it follows. Raises StoreError (USAGE) without boto3."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise StoreError(
                f"{self.url} needs boto3, which is not installed",
                remedy="pip install 'flagbench[s3]'",
                code=ExitCode.USAGE,
            ) from error
        try:
            session = boto3.Session()
            region = session.region_name or "us-east-1"
            profile = PROFILES.get(self.address.profile or "")
            if profile is None:  # the endpoint, with all that may set it, is known to a client alone
                profile = profile_of(session.client("s3", region_name=region).meta.endpoint_url)
            config = Config(
                signature_version="s3v4",
                s3={"addressing_style": profile.addressing},
                request_checksum_calculation=profile.checksums,
                response_checksum_validation=profile.checksums,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                max_pool_connections=CONNECTIONS,
                user_agent_extra=f"flagbench/{__version__}",
            )
            client = session.client("s3", region_name=region, config=config)
            if has_userinfo(client.meta.endpoint_url):
                raise ValueError("the endpoint contains credentials")
            client.meta.events.register("before-sign.s3.PutObject", lambda request, **_: _forbid(request, profile))
            return client, profile
        except (BotoCoreError, ValueError) as error:
            raise StoreError(
                f"{self.url} cannot be used: {redact(str(error))}",
                remedy="correct the AWS_ variables or ~/.aws/config",
                code=ExitCode.USAGE,
            ) from error


def _forbid(request: Any, profile: Profile) -> None:
    """Have a put never overwrite, but for the index. Not an argument of boto3, which knows Amazon's header alone."""
    if not urlsplit(request.url).path.endswith(f"/{INDEX}"):
        for name, value in profile.create.items():
            request.headers[name] = value


def _answer(error: BaseException | None) -> dict[str, Any]:
    """What the server answered; empty where it did not. Some of botocore's errors have an answer that is None."""
    return getattr(error, "response", None) or {}


def _code(error: BaseException | None) -> str:
    """S3's word for what went wrong; empty where the server did not answer."""
    return str(_answer(error).get("Error", {}).get("Code", ""))


def _status(error: BaseException | None) -> int | None:
    """The status of the answer."""
    status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None if status is None else int(status)


def _remedy(error: Exception) -> str:
    """What to do where no server answered."""
    from botocore import exceptions

    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return f"set {_KEYS}"
    if isinstance(error, exceptions.SSLError):
        return "set AWS_CA_BUNDLE to the certificates of the server's authority"
    return _NETWORK
