"""What each kind of S3 server promises and must be asked for: data, chosen by endpoint or by an address."""

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
    """The ends of its host names; a server on a host of one's own is named in the address: `?profile=ceph`."""
    addressing: str = "path"
    """Where a URL has the bucket: in the `path`, in the host (`virtual`), or as boto3 decides (`auto`)."""
    checksums: str = "when_required"
    """When boto3 sends checksums of its own. Sent as trailers of chunks, which it does over TLS, several servers
    refuse them."""
    create: dict[str, str] = field(default_factory=lambda: {"If-None-Match": "*"})
    """The headers with which a put never overwrites."""
    one_winner: bool = True
    """Whether one of several puts of a key at the same time wins; else each may be told that it has."""
    known: bool = True
    """Whether the kind of server is known; else this profile is what most servers do."""
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
"""Ceph: tests/storage, with 16.2. Swift 2.38 was measured once, with boto3 alone: of 32 puts at the same time, up to
ten were told that they had won. AWS and OSS: as their documentation of conditional writes and of PutObject has it.
`s3` is any other server: `flagbench store doctor` finds out what it does."""


@dataclass(frozen=True)
class Address:
    """A bucket, and the prefix of the keys in it."""

    bucket: str
    prefix: str
    """Empty, or a path that ends in a slash."""
    profile: str | None
    """As named in the address."""

    @property
    def url(self) -> str:
        """As `parse_address` takes it."""
        chosen = f"?profile={self.profile}" if self.profile else ""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/") + chosen


def parse_address(url: str) -> Address:
    """The parts of `s3://bucket/prefix?profile=NAME`. Raises S3Error (usage), without what may be a key."""
    if not url.isprintable():
        raise _unusable("it contains a character that cannot be printed")
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise _unusable("it is not a URL") from error
    bucket = parts.netloc
    # A secret may contain slashes, and then the bucket's name ends within it.
    if "@" in bucket or ":" in bucket or not url[3:].startswith("//"):
        remedy = f"write {_EXAMPLE}, and give keys as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise _unusable("after s3:// there has to be the name of a bucket, and no credentials", remedy)
    if not _BUCKET.fullmatch(bucket):
        raise _unusable(f"{bucket[:80]!r} cannot be the name of a bucket")
    names = [name for name in parts.path.split("/") if name]
    if any(name in (".", "..") for name in names) or parts.fragment:
        raise _unusable("its prefix is not a plain path")
    profile = options.pop("profile", None)
    if options:
        raise _unusable("the only option of an address is the profile", f"write {_EXAMPLE}?profile=ceph")
    if profile is not None and profile not in PROFILES:
        raise _unusable("unknown profile", f"choose from {', '.join(PROFILES)}")
    return Address(bucket, "".join(f"{name}/" for name in names), profile)


def profile_of(endpoint: str) -> Profile:
    """The profile of the endpoint's host, else `s3`."""
    host = urlsplit(endpoint).hostname or ""
    for profile in PROFILES.values():
        if any(host == end or host.endswith(f".{end}") for end in profile.hosts):
            return profile
    return PROFILES["s3"]


def _unusable(why: str, remedy: str = f"write {_EXAMPLE}") -> S3Error:
    return S3Error(f"the address of a bucket cannot be used: {why}", remedy, usage=True)
