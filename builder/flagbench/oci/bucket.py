"""A repository in a bucket, whose keys are the paths of a registry's API: served at a host's root, it can be pulled.

`v2/` answers the question whether there is a registry; `v2/NAME/blobs/sha256:...` and `v2/NAME/manifests/sha256:...`
never change; `v2/NAME/manifests/TAG` alone is replaced. Clients ask nothing but GET and HEAD of these paths, so a
server of files is enough, if it keeps the Content-Type of manifests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from flagbench.images import DIGEST
from flagbench.oci.bucket_address import s3_errors
from flagbench.oci.manifest import MANIFEST_TYPE, Blob, damaged, digest_of
from flagbench.progress import Progress
from flagbench.s3.client import open_client
from flagbench.s3.profiles import Address

_BLOB = re.compile(rf"v2/(?P<name>.+)/blobs/(?P<digest>{DIGEST})")
_MANIFEST_BYTES = 4 * 2**20
"""The size limit of a manifest, as registries have it."""
_ABANDONED = timedelta(days=1)
"""Age of an upload in parts that a killed push left. A younger one may belong to a push that still runs."""
_HIDDEN = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""Statuses of an object that does not exist, or that this key may not read."""

Put = Literal["present", "copied", "uploaded"]
"""How a blob came to its place: it was there, the server copied it from another repository, or it was sent."""


class ImageBucket:
    """One repository; every method raises FlagbenchError: usage (2) without that bucket, data (3), network (15)."""

    def __init__(self, address: Address, name: str, *, public: bool = False) -> None:
        """`name`: such as flagbench/distilbert. `public`: let everyone read what is put, or is there already."""
        self.url = f"s3://{address.bucket}/{name}"
        self._bucket = address.bucket
        self._name = name
        self._acl = {"ACL": "public-read"} if public else {}
        with s3_errors():
            self._client = open_client(address)[0]

    def begin(self) -> None:
        """Say that there is a registry: the first write, which finds out whether the bucket takes any."""
        self._put("v2/", b"{}", "application/json")

    def holds(self, blob: Blob) -> bool:
        """Whether the repository has a blob, as far as this key may ask; then it is made public if that was asked."""
        key = self._blob_key(blob)
        with s3_errors(f"{self.url} cannot be asked for a layer"):
            try:
                if self._client.head_object(Bucket=self._bucket, Key=key)["ContentLength"] != blob.size:
                    return False  # damaged: it is sent again
            except self._client.exceptions.ClientError as error:
                if _status(error) in _HIDDEN:
                    return False
                raise
            if self._acl:
                self._client.put_object_acl(Bucket=self._bucket, Key=key, **self._acl)
        return True

    def put_blob(self, blob: Blob, path: Path, progress: Progress) -> Put:
        """Keep a blob, whose bytes are in a file; a blob that another repository of the bucket has is copied."""
        if self.holds(blob):
            return "present"
        if self._is_copied(blob):
            return "copied"
        options = {"ContentType": "application/octet-stream", **self._acl}
        with (
            s3_errors(f"{self.url}: a layer was not sent"),
            progress.bar(f"sending {blob.digest[7:19]}", blob.size) as advance,
        ):
            self._client.upload_file(
                str(path), self._bucket, self._blob_key(blob), ExtraArgs=options, Callback=advance
            )
        return "uploaded"

    def put_manifest(self, content: bytes, tags: Sequence[str]) -> None:
        """Keep a manifest under its digest, then its tags: only now the image can be seen."""
        for reference in (digest_of(content), *tags):
            self._put(self._manifest_key(reference), content, MANIFEST_TYPE)
        self._abort_leftovers()

    def read_manifest(self, reference: str) -> bytes | None:
        """A manifest by tag or digest; None if it does not exist."""
        key = self._manifest_key(reference)
        with s3_errors(f"{self.url} cannot be read"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=key)
            except self._client.exceptions.NoSuchKey:
                return None
            content: bytes = answer["Body"].read() if answer["ContentLength"] <= _MANIFEST_BYTES else b""
        if reference.startswith("sha256:") and digest_of(content) != reference:
            raise damaged(f"s3://{self._bucket}/{key} does not match its digest")
        return content

    def fetch_blob(self, blob: Blob, path: Path, advance: Callable[[int], None]) -> None:
        """Download a blob, unchecked, into a file, which appears when it is complete. Raises OSError, too."""
        key = self._blob_key(blob)
        with s3_errors(f"{self.url}: a layer was not read"):
            try:
                self._client.download_file(self._bucket, key, str(path), Callback=advance)
            except self._client.exceptions.ClientError as error:
                if _status(error) == HTTPStatus.NOT_FOUND:
                    raise damaged(f"s3://{self._bucket}/{key}, which a manifest names, is missing") from None
                raise

    def _is_copied(self, blob: Blob) -> bool:
        """Have the server copy a blob from another repository of the bucket. Whether it did."""
        source = self._elsewhere.get((blob.digest, blob.size))
        if source is None:
            return False
        options = {"ContentType": "application/octet-stream", "MetadataDirective": "REPLACE", **self._acl}
        with s3_errors(f"{self.url}: a layer was not copied"):
            try:
                origin = {"Bucket": self._bucket, "Key": source}
                self._client.copy(origin, self._bucket, self._blob_key(blob), ExtraArgs=options)
            except self._client.exceptions.ClientError as error:
                if _status(error) in _HIDDEN:  # removed meanwhile, or not for this key to read
                    return False
                raise
        return True

    @cached_property
    def _elsewhere(self) -> dict[tuple[str, int], str]:
        """Keys of the blobs of all other repositories, by digest and size; a listing has a hundred images a page."""
        found = {}
        with s3_errors(f"{self.url} cannot be listed"):
            try:
                for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix="v2/"):
                    for listed in page.get("Contents", ()):
                        if (blob := _BLOB.fullmatch(listed["Key"])) and blob["name"] != self._name:
                            found[blob["digest"], listed["Size"]] = listed["Key"]
            except self._client.exceptions.ClientError as error:
                if _status(error) not in _HIDDEN:
                    raise
        return found

    def _abort_leftovers(self) -> None:
        """Abort what killed pushes left in this repository; where the key may not, it stays."""
        before = datetime.now(timezone.utc) - _ABANDONED
        with suppress(self._client.exceptions.ClientError):
            listed = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=f"v2/{self._name}/blobs/")
            for upload in listed.get("Uploads", ()):
                if upload["Initiated"] < before:
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

    def _put(self, key: str, content: bytes, media_type: str) -> None:
        with s3_errors(f"s3://{self._bucket}/{key} was not written"):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content, ContentType=media_type, **self._acl)

    def _blob_key(self, blob: Blob) -> str:
        return f"v2/{self._name}/blobs/{blob.digest}"

    def _manifest_key(self, reference: str) -> str:
        return f"v2/{self._name}/manifests/{reference}"


def _status(error: Any) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
