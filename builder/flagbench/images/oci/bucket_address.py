"""Addresses of images in a bucket, `s3://BUCKET/NAME:TAG`, and of the buckets they are pushed to. Asks no server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flagbench.errors import FlagbenchError
from flagbench.image_reference import find_reference
from flagbench.terminal import brief
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3.errors import S3Error
from flagbench_core.s3.profiles import Address, parse_address

_EXAMPLE = "s3://BUCKET/flagbench/distilbert:cpu"
_SHORT = 12
"""Hexadecimal digits that tell one image from another, as the engine shows them."""


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


def is_in_bucket(image: str) -> bool:
    """Whether an image is named by its address in a bucket, well or badly."""
    return image.lower().startswith("s3:")


def parse_bucket_image(text: str) -> BucketImage:
    """The parts of `s3://BUCKET/NAME[:TAG][@sha256:DIGEST]`, which may end in `?profile=NAME`.

    Raises FlagbenchError (usage) where it is not one, or names neither a tag nor a digest.
    """
    with s3_errors():
        address = parse_address(text)
    path = address.prefix.rstrip("/")
    # With a host before it, the path's first part is never taken for one.
    found = find_reference(f"localhost/{path}") if path else None
    if found is None:
        problem = f"{brief(path)} is not the name of an image in a bucket"
        raise FlagbenchError(problem if path else f"no image is named in {address.url}", remedy=_remedy())
    if found.tag is None and found.digest is None:
        raise FlagbenchError(f"{brief(path)} has neither a tag nor a digest", remedy=_remedy())
    return BucketImage(Address(address.bucket, "", address.profile), found.path, found.tag, found.digest)


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
        usage = error.usage or error.no_bucket
        code = ExitCode.USAGE if usage else ExitCode.DATA if error.damaged else ExitCode.ENGINE
        remedy = error.remedy
        if error.code == "AccessControlListNotSupported":
            remedy = "leave out --public, and let a policy of the bucket make v2/ readable for everyone"
        raise FlagbenchError(error.message, remedy=remedy, code=code) from error


def _remedy() -> str:
    return f"write {_EXAMPLE}, or {_EXAMPLE.rpartition(':')[0]}@sha256:DIGEST"
