"""Presigned requests: one URL that does one thing to one key, until it expires, without the bucket's keys.

Signed with version 4, which binds headers: the holder of a put's URL can neither leave out the header with which it
never overwrites, nor send another number of bytes. botocore's signer is used directly, because boto3's own
`generate_presigned_url` knows no header but Amazon's, and may choose version 2, which binds none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from flagbench.s3.bucket import Bucket
from flagbench.s3.errors import S3Error

LONGEST = 7 * 24 * 3600
"""Seconds: the longest life of a URL signed with version 4."""
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Presigned:
    """A request that the holder of its URL may make."""

    url: str
    """A credential."""
    headers: Mapping[str, str]
    """Those that have to be sent as they are here; without them the server refuses."""


def presign_put(bucket: Bucket, key: str, size: int, seconds: int) -> Presigned:
    """A create-only put of `size` bytes, for `seconds`. Raises S3Error (usage)."""
    headers = {**bucket.profile.create, "Content-Length": str(size)}
    return _presigned(bucket, "put_object", "PUT", key, headers, seconds)


def presign_head(bucket: Bucket, key: str, seconds: int) -> Presigned:
    """The question whether there is an object, and which. Raises S3Error (usage)."""
    return _presigned(bucket, "head_object", "HEAD", key, {}, seconds)


def _presigned(
    bucket: Bucket, operation: str, method: str, key: str, headers: dict[str, str], seconds: int
) -> Presigned:
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    if not 0 < seconds <= LONGEST:
        raise ValueError(f"a URL cannot be signed for {seconds} seconds")
    where = {"Bucket": bucket.address.bucket, "Key": bucket.name(key)}
    # For the address alone, which is in its path or its host: the signature is ours.
    address = bucket.attempt(
        lambda client: client.generate_presigned_url(operation, Params=where), f"{bucket.url} cannot be signed for"
    )
    request = AWSRequest(method=method, url=address.partition("?")[0], headers=headers)
    S3SigV4QueryAuth(bucket.credentials, "s3", bucket.client.meta.region_name, expires=seconds).add_auth(request)
    signed = Presigned(str(request.url), {name: value for name, value in headers.items() if name != "Content-Length"})
    _check(bucket, signed, {"host", *(name.lower() for name in headers)})
    return signed


def _check(bucket: Bucket, signed: Presigned, bound: set[str]) -> None:
    """Raise S3Error unless the URL says that version 4 signed it, and exactly these headers."""
    said = parse_qs(urlsplit(signed.url).query)
    algorithm, names = said.get("X-Amz-Algorithm", [""])[0], said.get("X-Amz-SignedHeaders", [""])[0]
    if algorithm != _ALGORITHM or set(names.split(";")) != bound or "X-Amz-Signature" not in said:
        raise S3Error(
            f"{bucket.url}: this boto3 signs a URL with {algorithm or 'another version'} and the headers {names!r}, "
            f"not {';'.join(sorted(bound))!r}",
            "install a newer boto3: `pip install --upgrade boto3`",
            usage=True,
        )


def certificates() -> str | None:
    """The file or folder of trusted certificates that the environment or ~/.aws/config names, as for the client."""
    import botocore.session

    found = botocore.session.get_session().get_config_variable("ca_bundle")
    return str(found) if found else None


def temporary(bucket: Bucket) -> Any:
    """Whether the credentials are a session's: a URL then ends with the session, whatever it says itself."""
    return bool(bucket.credentials.token)
