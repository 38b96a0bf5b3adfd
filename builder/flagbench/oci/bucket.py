"""A repository in a bucket, whose keys are the paths of a registry's API: served at a host's root, it can be pulled.

`v2/` answers the question whether there is a registry; `v2/NAME/blobs/sha256:...` and `v2/NAME/manifests/sha256:...`
are written once; `v2/NAME/manifests/TAG` alone is ever replaced. Since clients ask nothing but GET and HEAD of these
paths, a server of files is enough, if it keeps the Content-Type of manifests.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import DIGEST
from flagbench.oci.bucket_address import s3_errors
from flagbench.oci.manifest import MANIFEST_BYTES, media_type_of
from flagbench.oci.model import Blob, Descriptor, Progress, Put, digest_of
from flagbench.s3 import Address, Bucket, Head, S3Error, get_file, put_file
from flagbench.s3.client import ATTEMPTS

_ROOT = "v2/"
_BLOB = re.compile(rf"v2/(?P<name>.+)/blobs/(?P<digest>{DIGEST})")
_BYTES = "application/octet-stream"
_CHUNK = 2**20
_COPIED_WHOLE = 2**30
"""Bytes: a larger object is copied in parts, as one request for all of it may take longer than an answer may."""


class BucketPlace:
    """A repository in a bucket; see Place. Threads may share it."""

    def __init__(self, address: Address, name: str, *, public: bool = False) -> None:
        """`name`: the repository, such as flagbench/distilbert. `public`: let everyone read what is put."""
        self._bucket = Bucket(address)
        self._name = name
        self._acl: dict[str, Any] = {"ACL": "public-read"} if public else {}
        # One file at a time: it is sent in parts, as many at once as a connection is worth, each of them in memory.
        self._sending = threading.Lock()

    @property
    def url(self) -> str:
        """s3://BUCKET/NAME."""
        return self._bucket.location(self._name)

    @property
    def public(self) -> bool:
        """Whether everyone may read what is put; see Place."""
        return bool(self._acl)

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob; see Place."""
        with s3_errors():
            return self._head(self._blob_key(digest)) is not None

    def put_blob(self, blob: Blob, show: Progress) -> Put:
        """Keep a blob; see Place. Copied by the server, if another repository of the bucket has it."""
        found = blob.descriptor
        key, sha256 = self._blob_key(found.digest), found.digest.removeprefix("sha256:")
        with s3_errors():
            if self._holds(key, found):
                self._publish(key)
                return "present"
            if self._copied(key, found):
                return "copied"
            path = blob.path(show)
            with self._sending:
                sent = put_file(self._bucket, key, path, sha256, content_type=_BYTES, show=show, **self._acl)
            if not sent:
                self._publish(key)
            return "uploaded" if sent else "present"

    def read_blob(self, digest: str) -> Iterator[bytes]:
        """Chunks of a blob, unchecked; see Place. An answer that breaks off is continued."""
        key = self._blob_key(digest)
        with s3_errors():
            head = self._bucket.head(key)
            if head is None:
                raise self._missing(digest)
            done, attempts = 0, 0
            while done < head.size:
                try:
                    for chunk in self._chunks(key, head, done):
                        done += len(chunk)
                        yield chunk
                except S3Error as error:
                    attempts += 1
                    if error.code or attempts == ATTEMPTS:
                        raise

    def fetch_blob(self, found: Descriptor, path: Path, show: Progress) -> None:
        """A blob as a file, in parts of which several are read at a time; checked against its digest.

        A download that was interrupted is resumed. Raises FlagbenchError as Place does, and OSError where the file
        cannot be written.
        """
        key, sha256 = self._blob_key(found.digest), found.digest.removeprefix("sha256:")
        with s3_errors():
            try:
                get_file(self._bucket, key, path, size=found.size, sha256=sha256, show=show)
            except S3Error as error:
                if error.missing:
                    raise self._missing(found.digest) from error
                raise

    def put_manifest(self, content: bytes, media_type: str, references: tuple[str, ...]) -> bool:
        """Keep a manifest under its digest, then its tags; see Place. A bucket lists no referrers."""
        with s3_errors():
            self._create(_ROOT, b"{}", "application/json")
            self._create(self._manifest_key(digest_of(content)), content, media_type)
            for reference in references:
                self._bucket.put(self._manifest_key(reference), content, media_type, **self._acl)
        return False

    def read_manifest(self, reference: str) -> tuple[bytes, str] | None:
        """A manifest by tag or digest, with its media type; see Place."""
        key = self._manifest_key(reference)
        with s3_errors():
            try:
                content, _ = self._bucket.read(key, MANIFEST_BYTES)
            except S3Error as error:
                if error.missing:
                    return None
                raise
            location = self._bucket.location(key)
            if len(content) > MANIFEST_BYTES:
                raise S3Error(f"{location} is larger than a manifest", "push the image again", damaged=True)
            if reference.startswith("sha256:") and digest_of(content) != reference:
                raise S3Error(f"{location} does not match its digest", "remove it, then push again", damaged=True)
            # The type that the object was kept with may be that of a later manifest, if a tag moves just now.
            return content, media_type_of(content) or self._type(key)

    def _blob_key(self, digest: str) -> str:
        return f"{_ROOT}{self._name}/blobs/{digest}"

    def _manifest_key(self, reference: str) -> str:
        return f"{_ROOT}{self._name}/manifests/{reference}"

    def _head(self, key: str) -> Head | None:
        """What is known of an object; None if it does not exist, or the key may not ask."""
        try:
            return self._bucket.head(key)
        except S3Error as error:
            if error.denied:
                return None
            raise

    def _holds(self, key: str, found: Descriptor) -> bool:
        """Whether an object is the blob. Raises S3Error (damaged) where it is another."""
        head = self._head(key)
        if head is None:
            return False
        if head.size != found.size:
            raise S3Error(
                f"{self._bucket.location(key)} has {head.size} bytes, not {found.size}: it is damaged",
                "remove it, then push again",
                damaged=True,
            )
        return True

    def _copied(self, key: str, found: Descriptor) -> bool:
        """Have the server copy a blob from another repository of the bucket. Whether it did."""
        source = self._elsewhere.get((found.digest, found.size))
        if source is None:
            return False
        try:
            if found.size > _COPIED_WHOLE:
                # In parts, an object's type and sha256 are not copied with it.
                kept = {"sha256": found.digest.removeprefix("sha256:")}
                self._bucket.copy(
                    source, key, ContentType=_BYTES, Metadata=kept, MetadataDirective="REPLACE", **self._acl
                )
            else:
                origin = {"Bucket": self._bucket.address.bucket, "Key": self._bucket.name(source)}
                self._bucket.ask("copy_object", Key=self._bucket.name(key), CopySource=origin, **self._acl)
        except S3Error as error:
            if error.missing or error.denied:  # removed meanwhile, or not for this key to read
                return False
            raise
        return True

    @cached_property
    def _elsewhere(self) -> dict[tuple[str, int], str]:
        """Keys of the blobs of all other repositories, by digest and size.

        One listing of `v2/`, read when the first blob is missing: an image has about ten blobs, so one page of a
        listing, a thousand keys, covers a hundred images. Asking each repository for each blob would be a request for
        every pair, and which repositories there are is known from a listing alone.
        """
        found = {}
        try:
            for listed in self._bucket.list(_ROOT):
                if (blob := _BLOB.fullmatch(listed.key)) and blob["name"] != self._name:
                    found[blob["digest"], listed.size] = listed.key
        except S3Error as error:
            if not error.denied:
                raise
        return found

    def _create(self, key: str, content: bytes, media_type: str) -> None:
        """Put an object unless it is there; one under another's digest is damaged."""
        try:
            self._bucket.put(key, content, media_type, create=True, **self._acl)
        except S3Error as error:
            if not error.taken and error.code != "ConditionalRequestConflict":
                raise
            there, _ = self._bucket.read(key, len(content))
            if key != _ROOT and there != content:
                location = self._bucket.location(key)
                raise S3Error(
                    f"{location} does not match its digest", "remove it, then push again", damaged=True
                ) from error
            self._publish(key)

    def _publish(self, key: str) -> None:
        """Let everyone read an object that was there, if that was asked for."""
        if self._acl:
            self._bucket.ask("put_object_acl", Key=self._bucket.name(key), **self._acl)

    def _type(self, key: str) -> str:
        head = self._bucket.head(key)
        return "" if head is None else head.content_type

    def _chunks(self, key: str, head: Head, begin: int) -> Iterator[bytes]:
        """The bytes of an object from `begin` on, as long as the connection lasts."""
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        what = f"{self._bucket.location(key)} was not read"
        asked: dict[str, Any] = {"Range": f"bytes={begin}-", "IfMatch": f'"{head.etag}"'}
        answer = self._bucket.ask("get_object", Key=self._bucket.name(key), what=what, **asked)
        try:
            with closing(answer["Body"]) as body:
                yield from body.iter_chunks(_CHUNK)
        except (BotoCoreError, HTTPError, OSError) as error:
            raise S3Error(f"{what}: the answer broke off", "check the network, then try again") from error

    def _missing(self, digest: str) -> FlagbenchError:
        return FlagbenchError(
            f"{self.url} lacks the blob {digest}, which its manifest names",
            remedy="push the image again",
            code=ExitCode.DATA,
        )
