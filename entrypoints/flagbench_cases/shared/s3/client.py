# A copy of builder/flagbench/s3/client.py, made by `flagbench manifests compile`.
"""The boto3 client of a kind of server, and its errors explained."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flagbench_cases.shared.credentials import has_userinfo, redact
from flagbench_cases.shared.s3.errors import S3Error
from flagbench_cases.shared.s3.profiles import PROFILES, Address, Profile, profile_of

ATTEMPTS = 5
"""Of a request, and of a whole answer that broke off."""
CONNECTIONS = 16
"""Kept by a client: as many objects are worth reading at a time."""
_DOWNLOAD_ATTEMPTS = 3
"""Of a part whose bytes break off. Where the server is silent, each is ATTEMPTS requests of _READ_SECONDS."""
NETWORK = "check the network and AWS_ENDPOINT_URL, then try again"
_CONNECT_SECONDS, _READ_SECONDS = 10, 60
KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_LOGIN = ("SSO", "Token", "Credential", "Login", "Profile")
"""In the names of boto3's errors about credentials that it could not get."""
_CREATE_ONLY = "If-None-Match"
_REMEDIES = {
    "NoSuchBucket": "create the bucket, or name another one; AWS_ENDPOINT_URL says on which server it is",
    "AccessDenied": "use a key that may read and write there",
    "403": "use a key that may read and write there",
    "InvalidAccessKeyId": f"set {KEYS} to keys of this server",
    "SignatureDoesNotMatch": f"set {KEYS} to keys of this server",
    "RequestTimeTooSkewed": "set this machine's clock, which differs too much from the server's",
    "ExpiredToken": "renew the session's credentials",
    "MissingContentLength": "name the kind of server: s3://BUCKET/PREFIX?profile=ceph",
    "SecondLevelDomainForbidden": "name the kind of server: s3://BUCKET/PREFIX?profile=oss",
    "NotImplemented": "name the kind of server with ?profile=; `flagbench store doctor` tries what it does",
    "QuotaExceeded": "free some of the bucket's quota, or use another bucket",
    "AuthorizationHeaderMalformed": "set AWS_REGION to the bucket's region",
    "IllegalLocationConstraintException": "set AWS_REGION to the bucket's region",
    "PermanentRedirect": "set AWS_REGION to the bucket's region",
}


def open_client(address: Address) -> tuple[Any, Profile, Any]:
    """A client that threads can share, its profile and its session. Raises S3Error (usage) without boto3."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        remedy = "pip install 'flagbench[s3]', in a checkout of flagbench pip install -e '.[s3]'"
        raise S3Error(f"{address.url} needs boto3, which is not installed", remedy, usage=True) from error
    try:
        session = boto3.Session()
        region = session.region_name or "us-east-1"
        profile = PROFILES.get(address.profile or "")
        if profile is None:  # the endpoint, with all that may set it, is known to a client alone
            profile = profile_of(session.client("s3", region_name=region).meta.endpoint_url)
        config = Config(
            # boto3's own choice for presigned URLs is version 2, which does not bind If-None-Match.
            signature_version="s3v4",
            s3={"addressing_style": profile.addressing},
            request_checksum_calculation=profile.checksums,
            response_checksum_validation=profile.checksums,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            max_pool_connections=CONNECTIONS,
            user_agent_extra="flagbench",
        )
        client = session.client("s3", region_name=region, config=config)
        if has_userinfo(client.meta.endpoint_url):
            raise ValueError("the endpoint contains credentials")
        client.meta.events.register("before-sign.s3.PutObject", lambda request, **_: _translate(request, profile))
        return client, profile, session
    except (BotoCoreError, ValueError, OSError) as error:  # OSError: a credential_process that cannot be started
        found = explained(error, f"{address.url} cannot be used")
        remedy = found.remedy if found.remedy != NETWORK else "correct the AWS_ variables or ~/.aws/config"
        raise S3Error(found.message, remedy, usage=True) from error


@lru_cache
def transfer_config() -> Any:
    """How boto3 transfers files: in parts of 8 MiB, ten at a time."""
    from boto3.s3.transfer import TransferConfig

    # boto3's other client, in C, is chosen by the machine and has other errors.
    return TransferConfig(num_download_attempts=_DOWNLOAD_ATTEMPTS, preferred_transfer_client="classic")


@lru_cache
def errors_of_boto3() -> tuple[type[BaseException], ...]:
    """What a call of boto3 may raise: not all of it has a common base."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from s3transfer import exceptions
    from urllib3.exceptions import HTTPError  # where an error's answer breaks off

    transfer = (kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception))
    return (ClientError, BotoCoreError, Boto3Error, HTTPError, ValueError, *transfer)


def explained(error: BaseException, what: str = "") -> S3Error:
    """What boto3 raises, as an S3Error whose message begins with `what`."""
    from botocore import exceptions
    from s3transfer.exceptions import RetriesExceededError
    from urllib3.exceptions import HTTPError

    broken_off = isinstance(error, (RetriesExceededError, HTTPError))
    if isinstance(error, RetriesExceededError):
        error = error.last_exception
    elif isinstance(error.__context__, exceptions.ClientError) and not isinstance(error, exceptions.ClientError):
        error = error.__context__  # of a transfer that failed: it has the server's answer
    begins = f"{what}: " if what else ""
    answer = _answer(error)
    told = answer.get("Error", {})
    code, status = str(told.get("Code", "")), answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if isinstance(error, exceptions.ClientError):
        words = " ".join(str(word) for word in (status, code, told.get("Message")) if word and word != str(status))
        remedy = _REMEDIES.get(code, "see the server's answer, or use another bucket")
        failed = status is not None and (status >= 500 or status == 429)
        return S3Error(
            f"{begins}the server answers {redact(words)}", remedy, code=code, status=status, network=failed
        )
    remedy = NETWORK
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        remedy = f"set {KEYS}"
    elif any(word in type(error).__name__ for word in _LOGIN):
        remedy = f"log in again (as with `aws sso login`), correct ~/.aws/config, or set {KEYS}"
    elif isinstance(error, exceptions.SSLError):
        remedy = "set AWS_CA_BUNDLE to the certificates of the server's authority"
    connections = (exceptions.HTTPClientError, exceptions.ConnectionError)
    failed = isinstance(error, connections) and not isinstance(error, exceptions.SSLError)
    return S3Error(f"{begins}{redact(str(error))}", remedy, network=failed or broken_off)


def _translate(request: Any, profile: Profile) -> None:
    """Say "create only" as the kind of server has it: boto3 knows Amazon's header alone."""
    if request.headers.get(_CREATE_ONLY):
        del request.headers[_CREATE_ONLY]
        for name, value in profile.create.items():
            request.headers[name] = value


def _answer(error: BaseException) -> dict[str, Any]:
    """What the server answered; empty where it did not. Some of botocore's errors have an answer that is None."""
    return getattr(error, "response", None) or {}
