"""The kinds of S3 servers as data, and the addresses of buckets.

Servers differ in how a put that must not overwrite is written, and in what they promise about it. The profile of a
server is chosen by its host name, or by the address of the bucket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from flagbench_core.s3.errors import S3Error

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_EXAMPLE = "s3://BUCKET/PREFIX"


@dataclass(frozen=True)
class Profile:
    """A kind of server."""

    name: str
    title: str
    hosts: tuple[str, ...] = ()
    """The ends of the host names of a public service. For other servers, an address names the profile:
    `?profile=ceph`."""
    addressing: str = "path"
    """Where a URL has the bucket: in the `path`, in the host (`virtual`), or as boto3 decides (`auto`)."""
    checksums: str = "when_required"
    """When boto3 adds its own checksums to requests. Over TLS it sends them as trailers of chunks, which several
    servers refuse."""
    create: dict[str, str] = field(default_factory=lambda: {"If-None-Match": "*"})
    """The headers with which a put never overwrites."""
    one_winner: bool = True
    """Whether exactly one of several such puts of a key at the same time succeeds. Otherwise several may be told
    that they did."""
    known: bool = True
    """Whether the kind of server is known. Otherwise this profile is what most servers do."""
    versioned: bool = False
    """Whether such puts do not overwrite in a bucket that keeps versions, either."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "aws",
            "Amazon S3",
            hosts=("amazonaws.com", "amazonaws.com.cn"),
            addressing="auto",
            checksums="when_supported",
            versioned=True,
        ),
        Profile("ceph", "Ceph object gateway"),
        Profile("swift", "OpenStack Swift", one_winner=False),
        Profile(
            "oss",
            "Alibaba Cloud OSS",
            hosts=("aliyuncs.com",),
            addressing="virtual",
            create={"x-oss-forbid-overwrite": "true"},
        ),
        Profile("s3", "a server that speaks S3", known=False),
    )
}
"""The profiles by name.

Ceph is tested by tests/storage, with version 16.2. Swift 2.38 was measured once, with boto3 alone: of 32 puts at the
same time, up to ten were told that they had succeeded. AWS and OSS follow their documentation of conditional writes
and of PutObject. `s3` is any other server: `flagbench store doctor` finds out what it does.
"""


@dataclass(frozen=True)
class Address:
    """A bucket, and the prefix of the keys in it."""

    bucket: str
    prefix: str
    """Empty, or a path that ends in a slash."""
    profile: str | None
    """The name of the profile that the address states; None if it states none."""

    @property
    def url(self) -> str:
        """The address as a URL, as `parse_address` reads it."""
        url = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        if self.profile:
            url += f"?profile={self.profile}"
        return url


def parse_address(url: str) -> Address:
    """The parts of `s3://bucket/prefix?profile=NAME`.

    Raises S3Error (usage). Its message does not repeat parts of the address that may be a secret.
    """
    if not url.isprintable():
        raise _address_error("it contains a character that cannot be printed")
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise _address_error("it is not a URL") from error
    bucket = parts.netloc
    # A secret may contain slashes, and then the bucket's name ends within it.
    if "@" in bucket or ":" in bucket or not url[3:].startswith("//"):
        remedy = f"write {_EXAMPLE}, and give keys as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise _address_error("after s3:// there has to be the name of a bucket, and no credentials", remedy)
    if not _BUCKET.fullmatch(bucket):
        raise _address_error(f"{bucket[:80]!r} cannot be the name of a bucket")
    names = [name for name in parts.path.split("/") if name]
    if any(name in (".", "..") for name in names) or parts.fragment:
        raise _address_error("its prefix is not a plain path")
    profile = options.pop("profile", None)
    if options:
        raise _address_error("the only option of an address is the profile", f"write {_EXAMPLE}?profile=ceph")
    if profile is not None and profile not in PROFILES:
        raise _address_error("unknown profile", f"choose from {', '.join(PROFILES)}")
    return Address(bucket, "".join(f"{name}/" for name in names), profile)


def profile_of(endpoint: str) -> Profile:
    """The profile of the endpoint's host, else `s3`."""
    host = urlsplit(endpoint).hostname or ""
    for profile in PROFILES.values():
        if any(host == end or host.endswith(f".{end}") for end in profile.hosts):
            return profile
    return PROFILES["s3"]


def _address_error(reason: str, remedy: str = f"write {_EXAMPLE}") -> S3Error:
    return S3Error(f"the address of a bucket cannot be used: {reason}", remedy, usage=True)
