"""A repository of images in a bucket: its addresses, and its keys, which are the paths of a registry's API.

`flagbench push` writes images with `ImageBucket`, and `flagbench pull` reads them. If the bucket is served at the
root of a host, Docker and Kubernetes can pull from it as from a registry. The object `v2/` tells a client that there
is a registry; `v2/NAME/blobs/sha256:...` and `v2/NAME/manifests/sha256:...` never change; only
`v2/NAME/manifests/TAG` is replaced. Clients send nothing but GET and HEAD of these paths, so a server of files is
enough, if it keeps the Content-Type of manifests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flagbench.console.progress import Progress
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.image_reference import DIGEST, try_parse_reference
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
"""Hexadecimal digits of a digest in a name or in progress: docker's own output shows as many."""
_BLOB_KEY = re.compile(rf"v2/(?P<name>.+)/blobs/(?P<digest>{DIGEST})")
_BLOB_TYPE = "application/octet-stream"
_MANIFEST_BYTES = 4 * 2**20
"""The most bytes of a manifest: what the OCI distribution specification has every registry accept."""
BlobOrigin = Literal["present", "copied", "uploaded"]
"""How a blob got into its repository: it was already there, the server copied it from another repository of the
bucket, or it was uploaded."""


@dataclass(frozen=True)
class BucketImage:
    """An image in a bucket."""

    bucket: Address
    """The bucket's address, without a prefix."""
    name: str
    """The name of its repository, such as `flagbench/distilbert`."""
    tag: str | None
    """Its tag; None if only its digest was given."""
    digest: str | None
    """`sha256:<64 hex>` of its manifest; None if only a tag was given. It takes precedence over the tag."""

    @property
    def reference(self) -> str:
        """The digest, else the tag: the last part of the key of its manifest."""
        return self.digest or self.tag or ""

    @property
    def local_name(self) -> str:
        """Its name in the engine, `NAME:TAG`. Without a tag, the first digits of the digest replace it."""
        if self.tag is not None:
            return f"{self.name}:{self.tag}"
        return f"{self.name}:sha256-{short_digest(self.reference)}"

    @property
    def url(self) -> str:
        """Its address, `s3://BUCKET/NAME[:TAG][@sha256:DIGEST][?profile=NAME]`, as `parse_bucket_image` reads it."""
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        address, question, options = self.bucket.url.partition("?")
        return f"{address}/{self.name}{tag}{digest}{question}{options}"


@dataclass(frozen=True)
class StoredImage:
    """An image of a repository, and those of its blobs that the repository has."""

    manifest: ImageManifest
    layers: Mapping[str, Layer]
    """The layers that the repository has, by diff id, the digest of the uncompressed layer."""
    complete: bool
    """Whether the repository has every blob."""


def is_in_bucket(image: str) -> bool:
    """Whether an image is named by an address in a bucket, even a malformed one."""
    return image.lower().startswith("s3:")


def parse_bucket_image(text: str) -> BucketImage:
    """Parse `s3://BUCKET/NAME[:TAG][@sha256:DIGEST]`, which may end in `?profile=NAME`.

    Raises FlagbenchError (USAGE) if the address is malformed, or has neither a tag nor a digest.
    """
    with s3_errors():
        address = parse_address(text)
    path = address.prefix.rstrip("/")
    if not path:
        raise FlagbenchError(f"no image is named in {address.url}", remedy=_remedy())
    # The host in front keeps the first part of the path from being read as one.
    reference = try_parse_reference(f"localhost/{path}")
    if reference is None:
        raise FlagbenchError(f"{brief(path)} is not the name of an image in a bucket", remedy=_remedy())
    if reference.tag is None and reference.digest is None:
        raise FlagbenchError(f"{brief(path)} has neither a tag nor a digest", remedy=_remedy())
    bucket = Address(address.bucket, "", address.profile)
    return BucketImage(bucket, reference.path, reference.tag, reference.digest)


def parse_image_bucket(url: str) -> Address:
    """Parse the address of a bucket that images are pushed to.

    Raises FlagbenchError (USAGE) if it has a prefix: clients look for images only at the root of a host.
    """
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
    """Turn an S3Error into a FlagbenchError.

    Its code is USAGE also for a bucket that does not exist, DATA for damaged data, and else ENGINE (ENGINE).
    """
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
    """Say how the address of an image in a bucket is written."""
    return f"write {_EXAMPLE}, or {_EXAMPLE.rpartition(':')[0]}@sha256:DIGEST"


def short_digest(digest: str) -> str:
    """Shorten `sha256:<64 hex>` to the first digits of the hash, for a name or for progress."""
    return digest.removeprefix("sha256:")[:_SHORT]


def _ignore_progress(count: int) -> None:
    """Do nothing with the number of bytes that arrived."""


class ImageBucket:
    """One repository in a bucket.

    Every method raises FlagbenchError: USAGE if there is no such bucket, DATA for damaged data, else ENGINE.
    """

    def __init__(self, address: Address, name: str, *, public: bool = False) -> None:
        """Open the repository `name`, such as flagbench/distilbert.

        Args:
            public: let everyone read the blobs and manifests that are pushed.
        """
        self.url = f"s3://{address.bucket}/{name}"
        self._bucket = Bucket(address)
        self._name = name
        self._acl: dict[str, Any] = {"ACL": "public-read"} if public else {}
        """Further arguments of S3 requests that write an object."""
        self._keys_elsewhere: dict[tuple[str, int], str] | None = None
        """Keys of the blobs of all other repositories, by digest and size; None until they are listed."""

    def begin(self) -> None:
        """Write the object that tells clients that there is a registry.

        As the first write of a push, it finds out whether the bucket accepts any.
        """
        with s3_errors():
            self._put("v2/", b"{}", "application/json")

    def put_blob(self, blob: Descriptor, path: Path, progress: Progress) -> BlobOrigin:
        """Put a blob, whose bytes are in a file, into the repository, unless it is there already.

        A blob that another repository of the bucket has is copied by the server instead of being uploaded.
        """
        key = self._blob_key(blob)
        with s3_errors():
            if self._keep_existing(blob):
                return "present"
            source = self._find_elsewhere(blob)
            if source is not None:
                with suppress(S3Error):  # It was removed meanwhile, or may not be read: the blob is uploaded.
                    self._copy(source, key, blob)
                    return "copied"
            with progress.bar(f"sending {short_digest(blob.digest)}", blob.size) as show:
                uploaded = put_file(self._bucket, key, path, _hash_of(blob), show=show, **self._acl)
        # False if another push put the same blob at the same time.
        return "uploaded" if uploaded else "present"

    def put_manifest(self, content: bytes, tags: Sequence[str]) -> None:
        """Put a manifest under its digest and then under tags, which makes the image visible to clients.

        Call it last: every blob that the manifest names has to be there.
        """
        with s3_errors():
            for reference in (digest_of(content), *tags):
                self._put(self._manifest_key(reference), content, MANIFEST_TYPE)

    def read_manifest(self, reference: str) -> bytes | None:
        """Read a manifest by tag or digest; None if it does not exist.

        Raises FlagbenchError (DATA), too, if its content does not match the digest.
        """
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

    def reuse_image(self, tag: str, folder: Path) -> StoredImage | None:
        """Find the image under a tag, and those of its blobs that another push of it need not send.

        Damaged blobs of it are deleted. The result is None if there is no such image, if its manifest or
        configuration is damaged, or if it may not be read: then it has to be pushed as a new image.

        Args:
            folder: a temporary folder for its configuration.
        """
        path = folder / "config.json"
        try:
            manifest = decode(self.read_manifest(tag) or b"", ImageManifest, f"the manifest of {self.url}:{tag}")
            self.get_blob(manifest.config, path)
            config = decode(path.read_bytes(), Config, f"the configuration of {self.url}:{tag}")
        except FlagbenchError:
            return None
        diff_ids = config.rootfs.diff_ids
        if len(diff_ids) != len(manifest.layers):
            return None
        layers: dict[str, Layer] = {}
        with s3_errors():
            for diff_id, layer in zip(diff_ids, manifest.layers, strict=True):
                if self._keep_existing(layer):
                    layers[diff_id] = layer
            has_all_layers = len(layers) == len(set(diff_ids))
            complete = has_all_layers and self._keep_existing(manifest.config)
        return StoredImage(manifest, layers, complete)

    def get_blob(self, blob: Descriptor, path: Path, show: Callable[[int], None] = _ignore_progress) -> None:
        """Download a blob to a file, and compare it with its digest.

        Args:
            show: is called with the number of bytes of each part that arrives.

        Raises OSError, too, if the file cannot be written, and FlagbenchError (DATA) if there is no such blob.
        """
        with s3_errors():
            try:
                key = self._blob_key(blob)
                get_file(self._bucket, key, path, size=blob.size, sha256=_hash_of(blob), show=show)
            except S3Error as error:
                if error.missing:
                    raise damaged_image(f"{self.url} lacks the blob {blob.digest}, which a manifest names") from None
                raise

    def _put(self, key: str, content: bytes, media_type: str) -> None:
        """Write a small object, or replace it."""
        name = self._bucket.name(key)
        self._bucket.ask("put_object", Key=name, Body=content, ContentType=media_type, **self._acl)

    def _copy(self, source: str, key: str, blob: Descriptor) -> None:
        """Have the server copy a blob from the key `source` to `key`; a large one is copied in parts."""
        bucket = self._bucket.address.bucket
        origin = {"Bucket": bucket, "Key": self._bucket.name(source)}
        attributes = {
            "ContentType": _BLOB_TYPE,
            "Metadata": {"sha256": _hash_of(blob)},
            "MetadataDirective": "REPLACE",
            **self._acl,
        }
        name = self._bucket.name(key)
        self._bucket.attempt(
            lambda client: client.copy(origin, bucket, name, ExtraArgs=attributes, Config=transfer_config()),
            f"{self._bucket.location(source)} was not copied",
        )
        abort_leftovers(self._bucket, name, blob.size)

    def _keep_existing(self, blob: Descriptor) -> bool:
        """Keep a blob that the repository already has; False if it has none, or a damaged one, which is deleted.

        If the repository is public, the blob is made public, too: an earlier push may have been private.
        """
        key = self._blob_key(blob)
        head = self._bucket.head(key)
        if head is None:
            return False
        if head.size != blob.size:
            self._bucket.delete(key)
            return False
        if self._acl:
            self._bucket.ask("put_object_acl", Key=self._bucket.name(key), **self._acl)
        return True

    def _find_elsewhere(self, blob: Descriptor) -> str | None:
        """Find the key of the same blob in another repository; None if there is none. Lists the bucket once."""
        if self._keys_elsewhere is None:
            self._keys_elsewhere = self._list_elsewhere()
        return self._keys_elsewhere.get((blob.digest, blob.size))

    def _list_elsewhere(self) -> dict[tuple[str, int], str]:
        """List the keys of the blobs of all other repositories, by digest and size; none if listing is denied.

        One request lists 1000 keys, the blobs of about a hundred images.
        """
        keys = {}
        try:
            for listed in self._bucket.list("v2/"):
                match = _BLOB_KEY.fullmatch(listed.key)
                if match is not None and match["name"] != self._name:
                    keys[match["digest"], listed.size] = listed.key
        except S3Error as error:
            if not error.denied:
                raise
        return keys

    def _blob_key(self, blob: Descriptor) -> str:
        return f"v2/{self._name}/blobs/{blob.digest}"

    def _manifest_key(self, reference: str) -> str:
        return f"v2/{self._name}/manifests/{reference}"


def _hash_of(blob: Descriptor) -> str:
    """The sha256 of a blob as 64 hexadecimal digits, as S3 metadata has it."""
    return blob.digest.removeprefix("sha256:")


@contextmanager
def blob_folder() -> Iterator[Path]:
    """Create a temporary folder for the blobs of one push or pull, in this user's cache: /tmp may be in memory.

    Raises FlagbenchError (ENGINE) for every OSError inside the `with` block, such as a full disk.
    """
    parent = cache_folder() / "blobs"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with scratch(str(parent)) as folder:
            yield Path(folder)
    except OSError as error:
        raise FlagbenchError(
            f"{parent}, where layers are kept meanwhile, cannot be used: {reason(error)}",
            remedy="free some space there, or set XDG_CACHE_HOME to another folder",
            code=ExitCode.ENGINE,
        ) from error
