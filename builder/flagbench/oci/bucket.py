"""A repository in a bucket, whose keys are the paths of a registry's API: served at a host's root, it can be pulled.

`v2/` answers the question whether there is a registry; `v2/NAME/blobs/sha256:...` and `v2/NAME/manifests/sha256:...`
are written once; `v2/NAME/manifests/TAG` alone is ever replaced. Since clients ask nothing but GET and HEAD of these
paths, a server of files is enough, if it keeps the Content-Type of manifests.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import DIGEST
from flagbench.oci.bucket_address import s3_errors
from flagbench.oci.bucket_objects import ImageObjects
from flagbench.oci.manifest import MANIFEST_BYTES, media_type_of
from flagbench.oci.model import UPDATES, Blob, Change, Descriptor, Progress, Put, contended, digest_of
from flagbench.s3 import Address, S3Error, get_file, put_file
from flagbench.s3.client import ATTEMPTS, NETWORK

_ROOT = "v2/"
_BLOB = re.compile(rf"v2/(?P<name>.+)/blobs/(?P<digest>{DIGEST})")
_BYTES = "application/octet-stream"
_COPIED_WHOLE = 2**30
"""Bytes: a larger object is copied in parts, as one request for all of it may take longer than an answer may."""


class BucketPlace:
    """A repository in a bucket; see Place. Threads may share it."""

    def __init__(self, address: Address, name: str, *, public: bool = False) -> None:
        """`name`: the repository, such as flagbench/distilbert. `public`: let everyone read what is put."""
        self._objects = ImageObjects(address, public=public)
        self._bucket = self._objects.bucket
        self._name = name
        # One file at a time: it is sent in parts, as many at once as a connection is worth, each of them in memory.
        self._sending = threading.Lock()
        self._copies: set[str] = set()

    @property
    def url(self) -> str:
        """s3://BUCKET/NAME."""
        return self._bucket.location(self._name)

    @property
    def public(self) -> bool:
        """Whether everyone may read what is put; see Place."""
        return bool(self._objects.acl)

    def require_bucket(self) -> None:
        """Raise FlagbenchError (usage) if the bucket does not exist; a key that may not list learns it later."""
        with s3_errors():
            try:
                self._bucket.ask("list_objects_v2", MaxKeys=1)
            except S3Error as error:
                if not error.denied:
                    raise

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob; see Place."""
        with s3_errors():
            return self._objects.head(self._blob_key(digest)) is not None

    def put_blob(self, blob: Blob, show: Progress) -> Put:
        """Keep a blob; see Place. Copied by the server, if another repository of the bucket has it."""
        found = blob.descriptor
        key, sha256 = self._blob_key(found.digest), found.digest.removeprefix("sha256:")
        with s3_errors():
            if self._holds(key, found):
                self._objects.publish(key)
                return "copied" if found.digest in self._copies else "present"
            if self._copied(key, found):
                self._copies.add(found.digest)
                return "copied"
            path = blob.path(show)
            with self._sending:
                sent = put_file(self._bucket, key, path, sha256, content_type=_BYTES, show=show, **self._objects.acl)
            # An upload in parts may have been begun without the ACL, by a push that was interrupted.
            self._objects.publish(key)
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
                begin = done
                try:
                    for chunk in self._objects.chunks(key, head, begin):
                        done += len(chunk)
                        yield chunk
                    broken = S3Error(f"{self._bucket.location(key)} was not read: the answer broke off", NETWORK)
                except S3Error as error:
                    if error.code:
                        raise
                    broken = error
                attempts = 1 if done > begin else attempts + 1
                if attempts == ATTEMPTS:
                    raise broken

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
            self._objects.create(_ROOT, b"{}", "application/json", compare=False)
            self._objects.create(self._manifest_key(digest_of(content)), content, media_type)
            for reference in references:
                self._bucket.put(self._manifest_key(reference), content, media_type, **self._objects.acl)
        return False

    def update_manifest(self, tag: str, media_type: str, change: Change) -> None:
        """Replace the manifest under a tag; see Place. Servers that know If-Match lose no change of another process.

        A key that may not read creates it, and leaves one that is there as it is.
        """
        key = self._manifest_key(tag)
        with s3_errors():
            for _ in range(UPDATES):
                head = self._objects.head(key)  # before it is read: what comes between is noticed
                seen = self._objects.readable(key)
                content = change(seen)
                if content is None:
                    break
                self._objects.create(self._manifest_key(digest_of(content)), content, media_type)
                replaced = self._objects.replaced(key, head, content, media_type)
                if not replaced and seen is None and self._objects.is_hidden(key):
                    return
            else:
                raise contended(tag, self.url)
            if seen is not None and self.public:
                self._objects.create(self._manifest_key(digest_of(seen)), seen, media_type)
                self._objects.publish(key)

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

    def _holds(self, key: str, found: Descriptor) -> bool:
        """Whether an object is the blob. Raises S3Error (damaged) where it is another."""
        head = self._objects.head(key)
        if head is None:
            return False
        problem = None
        if head.size != found.size:
            problem = f"has {head.size} bytes, not {found.size}"
        elif head.sha256 not in (None, found.digest.removeprefix("sha256:")):
            problem = f"has the sha256 {head.sha256} in its metadata"
        if problem:
            raise S3Error(
                f"{self._bucket.location(key)} {problem}: it is damaged", "remove it, then push again", damaged=True
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
                    source, key, ContentType=_BYTES, Metadata=kept, MetadataDirective="REPLACE", **self._objects.acl
                )
            else:
                origin = {"Bucket": self._bucket.address.bucket, "Key": self._bucket.name(source)}
                self._bucket.ask("copy_object", Key=self._bucket.name(key), CopySource=origin, **self._objects.acl)
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

    def _type(self, key: str) -> str:
        head = self._bucket.head(key)
        return "" if head is None else head.content_type

    def _missing(self, digest: str) -> FlagbenchError:
        return FlagbenchError(
            f"{self.url} lacks the blob {digest}, which its manifest names",
            remedy="push the image again",
            code=ExitCode.DATA,
        )
