"""A repository of images in a bucket, its addresses, and its keys: the paths of a registry's API.

Served at a host's root, a bucket can be pulled from. `v2/` answers the question whether there is a registry;
`v2/NAME/blobs/sha256:...` and `v2/NAME/manifests/sha256:...` never change; `v2/NAME/manifests/TAG` alone is replaced.
Clients ask nothing but GET and HEAD of these paths, so a server of files is enough, if it keeps the Content-Type of
manifests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flagbench.console.progress import Progress
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.image_reference import DIGEST, find_reference
from flagbench.images.docker_archive import (
    MANIFEST_TYPE,
    Config,
    Descriptor,
    ImageManifest,
    Layer,
    damaged_image,
    decode,
    digest_of,
)
from flagbench.system.files import reason
from flagbench.system.user_folders import cache_folder
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3.bucket import Bucket
from flagbench_core.s3.client import transfer_config
from flagbench_core.s3.errors import S3Error
from flagbench_core.s3.profiles import Address, parse_address
from flagbench_core.s3.transfers import abort_leftovers, get_file, put_file
from flagbench_core.scratch import scratch

_EXAMPLE = "s3://BUCKET/flagbench/distilbert:cpu"
_SHORT = 12
"""Hexadecimal digits that tell one image from another, as the engine shows them."""
_BLOB = re.compile(rf"v2/(?P<name>.+)/blobs/(?P<digest>{DIGEST})")
_BLOB_TYPE = "application/octet-stream"
_MANIFEST_BYTES = 4 * 2**20
"""The size limit of a manifest, as registries have it."""
Put = Literal["present", "copied", "uploaded"]
"""How a blob came to its place: it was there, the server copied it from another repository, or it was sent."""


@dataclass(frozen=True)
class BucketImage:
    """An image in a bucket."""

    bucket: Address
    """Without a prefix."""
    name: str
    """Repository, such as `flagbench/distilbert`."""
    tag: str | None
    digest: str | None
    """`sha256:<64 hex>` of its manifest; it decides where there is a tag, too."""

    @property
    def reference(self) -> str:
        """What to ask for: the digest, else the tag."""
        return self.digest or self.tag or ""

    @property
    def local_name(self) -> str:
        """The name that the engine gives it. Where only a digest is known, its first digits take the tag's place."""
        if self.tag is not None:
            return f"{self.name}:{self.tag}"
        return f"{self.name}:sha256-{self.reference.removeprefix('sha256:')[:_SHORT]}"

    @property
    def url(self) -> str:
        """As `parse_bucket_image` takes it."""
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        address, question, options = self.bucket.url.partition("?")
        return f"{address}/{self.name}{tag}{digest}{question}{options}"


@dataclass(frozen=True)
class StoredImage:
    """An image of a repository, and which of its blobs the repository has."""

    manifest: ImageManifest
    layers: Mapping[str, Layer]
    """Those that the repository has, by diff id."""
    complete: bool
    """Whether the repository has every blob."""


def is_in_bucket(image: str) -> bool:
    """Whether an image is named by its address in a bucket, which may be malformed."""
    return image.lower().startswith("s3:")


def parse_bucket_image(text: str) -> BucketImage:
    """The parts of `s3://BUCKET/NAME[:TAG][@sha256:DIGEST]`, which may end in `?profile=NAME`.

    Raises FlagbenchError (usage) if it is malformed, or names neither a tag nor a digest.
    """
    with s3_errors():
        address = parse_address(text)
    path = address.prefix.rstrip("/")
    if not path:
        raise FlagbenchError(f"no image is named in {address.url}", remedy=_remedy())
    # With a host before it, the path's first part is never taken for one.
    reference = find_reference(f"localhost/{path}")
    if reference is None:
        raise FlagbenchError(f"{brief(path)} is not the name of an image in a bucket", remedy=_remedy())
    if reference.tag is None and reference.digest is None:
        raise FlagbenchError(f"{brief(path)} has neither a tag nor a digest", remedy=_remedy())
    return BucketImage(Address(address.bucket, "", address.profile), reference.path, reference.tag, reference.digest)


def parse_image_bucket(url: str) -> Address:
    """The bucket that images are pushed to. Raises FlagbenchError (usage) for a prefix, which no client can pull."""
    with s3_errors():
        address = parse_address(url)
    if address.prefix:
        folder = address.prefix.rstrip("/")
        raise FlagbenchError(
            f"{address.url} cannot be a registry: clients ask for /v2/ at the root of a host, not below /{folder}/",
            remedy=f"push to s3://{address.bucket}; to serve it from elsewhere, have a web server rewrite: "
            f"location /v2/ {{ proxy_pass https://SERVER/{address.bucket}/v2/; }}",
        )
    return address


@contextmanager
def s3_errors() -> Iterator[None]:
    """Turns an S3Error into a FlagbenchError: usage (2; no such bucket), damaged data (3), else the network (15)."""
    try:
        yield
    except S3Error as error:
        code = ExitCode.ENGINE
        if error.damaged:
            code = ExitCode.DATA
        if error.usage or error.no_bucket:
            code = ExitCode.USAGE
        remedy = error.remedy
        if error.code == "AccessControlListNotSupported":
            remedy = "leave out --public, and let a policy of the bucket make v2/ readable for everyone"
        raise FlagbenchError(error.message, remedy=remedy, code=code) from error


def _remedy() -> str:
    return f"write {_EXAMPLE}, or {_EXAMPLE.rpartition(':')[0]}@sha256:DIGEST"


class ImageBucket:
    """One repository; every method raises FlagbenchError: usage (2) without that bucket, data (3), network (15)."""

    def __init__(self, address: Address, name: str, *, public: bool = False) -> None:
        """`name`: such as flagbench/distilbert. `public`: let everyone read its blobs and manifests."""
        self.url = f"s3://{address.bucket}/{name}"
        self._bucket = Bucket(address)
        self._name = name
        self._acl: dict[str, Any] = {"ACL": "public-read"} if public else {}

    def begin(self) -> None:
        """Say that there is a registry: the first write, which finds out whether the bucket takes any."""
        with s3_errors():
            self._put("v2/", b"{}", "application/json")

    def put_blob(self, blob: Descriptor, path: Path, progress: Progress) -> Put:
        """Keep a blob, whose bytes are in a file; a blob that another repository of the bucket has is copied."""
        key, sha256 = self._blob_key(blob), blob.digest.removeprefix("sha256:")
        with s3_errors():
            if self._holds(blob):
                return "present"
            if source := self._blobs_elsewhere.get((blob.digest, blob.size)):
                with suppress(S3Error):  # removed meanwhile, or not for this key to read: it is sent
                    self._copy(source, key, blob)
                    return "copied"
            with progress.bar(f"sending {sha256[:12]}", blob.size) as show:
                sent = put_file(self._bucket, key, path, sha256, show=show, **self._acl)
        return "uploaded" if sent else "present"

    def put_manifest(self, content: bytes, tags: Sequence[str]) -> None:
        """Keep a manifest under its digest, then its tags: only now the image can be seen."""
        with s3_errors():
            for reference in (digest_of(content), *tags):
                self._put(self._manifest_key(reference), content, MANIFEST_TYPE)

    def read_manifest(self, reference: str) -> bytes | None:
        """A manifest by tag or digest; None if it does not exist."""
        with s3_errors():
            try:
                content, _ = self._bucket.read(self._manifest_key(reference), _MANIFEST_BYTES)
            except S3Error as error:
                if error.missing:
                    return None
                raise
        if reference.startswith("sha256:") and digest_of(content) != reference:
            raise damaged_image(f"the manifest {reference} of {self.url} does not match its digest")
        return content

    def find_image(self, tag: str, folder: Path) -> StoredImage | None:
        """The image under a tag, and which of its blobs the repository has.

        None if there is no such image, if it is damaged, or if this key may not read it: then it is pushed as a new
        image.
        """
        path = folder / "config.json"
        try:
            manifest = decode(self.read_manifest(tag) or b"", ImageManifest, f"the manifest of {self.url}:{tag}")
            self.get_blob(manifest.config, path, lambda count: None)
            diff_ids = decode(path.read_bytes(), Config, f"the configuration of {self.url}:{tag}").rootfs.diff_ids
        except FlagbenchError:
            return None
        if len(diff_ids) != len(manifest.layers):
            return None
        with s3_errors():
            layers = {
                diff_id: layer for diff_id, layer in zip(diff_ids, manifest.layers, strict=True) if self._holds(layer)
            }
            complete = len(layers) == len(set(diff_ids)) and self._holds(manifest.config)
        return StoredImage(manifest, layers, complete)

    def get_blob(self, blob: Descriptor, path: Path, show: Callable[[int], None]) -> None:
        """Download a blob and verify it. Raises OSError, too."""
        with s3_errors():
            try:
                sha256 = blob.digest.removeprefix("sha256:")
                get_file(self._bucket, self._blob_key(blob), path, size=blob.size, sha256=sha256, show=show)
            except S3Error as error:
                if error.missing:
                    raise damaged_image(f"{self.url} lacks the blob {blob.digest}, which a manifest names") from None
                raise

    def _put(self, key: str, content: bytes, media_type: str) -> None:
        name = self._bucket.name(key)
        self._bucket.ask("put_object", Key=name, Body=content, ContentType=media_type, **self._acl)

    def _copy(self, source: str, key: str, blob: Descriptor) -> None:
        """Have the server copy a blob, in parts where it is large."""
        place = self._bucket.address.bucket
        origin = {"Bucket": place, "Key": self._bucket.name(source)}
        kept = {
            "ContentType": _BLOB_TYPE,
            "Metadata": {"sha256": blob.digest.removeprefix("sha256:")},
            "MetadataDirective": "REPLACE",
            **self._acl,
        }
        name = self._bucket.name(key)
        self._bucket.attempt(
            lambda client: client.copy(origin, place, name, ExtraArgs=kept, Config=transfer_config()),
            f"{self._bucket.location(source)} was not copied",
        )
        abort_leftovers(self._bucket, name, blob.size)

    def _holds(self, blob: Descriptor) -> bool:
        """Whether the repository has a blob that this key may see. Such a blob is made public in a public bucket."""
        key = self._blob_key(blob)
        head = self._bucket.head(key)
        if head is None:
            return False
        if head.size != blob.size:  # damaged: it is sent again
            self._bucket.delete(key)
            return False
        if self._acl:
            self._bucket.ask("put_object_acl", Key=self._bucket.name(key), **self._acl)
        return True

    @cached_property
    def _blobs_elsewhere(self) -> dict[tuple[str, int], str]:
        """Keys of the blobs of all other repositories, by digest and size; a listing has a hundred images a page."""
        keys = {}
        try:
            for listed in self._bucket.list("v2/"):
                blob = _BLOB.fullmatch(listed.key)
                if blob is not None and blob["name"] != self._name:
                    keys[blob["digest"], listed.size] = listed.key
        except S3Error as error:
            if not error.denied:
                raise
        return keys

    def _blob_key(self, blob: Descriptor) -> str:
        return f"v2/{self._name}/blobs/{blob.digest}"

    def _manifest_key(self, reference: str) -> str:
        return f"v2/{self._name}/manifests/{reference}"


@contextmanager
def blob_folder() -> Iterator[Path]:
    """A temporary folder for blobs on their way, on the disk of this user's cache: /tmp may be in memory.

    An OSError, as of a full disk, becomes a FlagbenchError (engine).
    """
    place = cache_folder() / "blobs"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with scratch(str(place)) as folder:
            yield Path(folder)
    except OSError as error:
        raise FlagbenchError(
            f"{place}, where layers are kept meanwhile, cannot be used: {reason(error)}",
            remedy="free some space there, or set XDG_CACHE_HOME to another folder",
            code=ExitCode.ENGINE,
        ) from error
