"""The boto3 client of a kind of server, and its errors explained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from flagbench_core.redaction import has_userinfo, redact
from flagbench_core.s3.errors import S3Error
from flagbench_core.s3.profiles import PROFILES, Address, Profile, profile_of

ATTEMPTS = 5
"""Of a request, and of a whole answer that broke off."""
CONNECTIONS = 16
"""Kept by a client: as many objects are worth reading at a time."""
_DOWNLOAD_ATTEMPTS = 3
"""Of a part whose bytes break off. Where the server is silent, each is ATTEMPTS requests of _READ_SECONDS."""
_CONNECT_SECONDS, _READ_SECONDS = 10, 60
KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_NETWORK = "check the network and AWS_ENDPOINT_URL, then try again"
_SETTINGS = "correct the AWS_ variables or ~/.aws/config, or log in again"
_PERMISSION, _OTHER_SERVER = "give this key the permission, or use another key", f"set {KEYS} to keys of this server"
_REMEDIES = {
    "NoSuchBucket": "create the bucket, or name another one; AWS_ENDPOINT_URL says on which server it is",
    "AccessDenied": _PERMISSION,
    "403": _PERMISSION,
    "InvalidAccessKeyId": _OTHER_SERVER,
    "SignatureDoesNotMatch": _OTHER_SERVER,
}
_REFUSED = "see the server's answer; the address can name the kind of server: s3://BUCKET/PREFIX?profile=ceph"
_CREATE_ONLY = "If-None-Match"
_PAGE = "the answer is a page of HTML, such as a proxy's login page, and not that of an S3 server"


def open_client(address: Address) -> tuple[Any, Profile]:
    """A client that threads can share, and its profile. Raises S3Error (usage) without boto3."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        remedy = "run `pip install -e '.[s3]'` in the checkout of flagbench"
        raise S3Error(f"{address.url} needs boto3, which is not installed", remedy, usage=True) from error
    try:
        session = boto3.Session()
        region = session.region_name or "us-east-1"
        profile = PROFILES.get(address.profile or "")
        if profile is None:  # the endpoint, with all that may set it, is known to a client alone
            profile = profile_of(session.client("s3", region_name=region).meta.endpoint_url)
        config = Config(
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
        client.meta.events.register("before-parse.s3", _refuse_page)
        return client, profile
    except (BotoCoreError, ValueError, OSError) as error:  # OSError: a credential_process that cannot be started
        explanation = explained(error, f"{address.url} cannot be used")
        raise S3Error(explanation.message, explanation.remedy, usage=True) from error


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
    from s3transfer.exceptions import RetriesExceededError
    from urllib3.exceptions import HTTPError  # raised if the answer of an error breaks off

    return (ClientError, BotoCoreError, Boto3Error, RetriesExceededError, HTTPError, ValueError)


def explained(error: BaseException, what: str = "") -> S3Error:
    """What boto3 raises, as an S3Error whose message begins with `what`."""
    from botocore import exceptions
    from s3transfer.exceptions import RetriesExceededError
    from urllib3.exceptions import HTTPError

    begins = f"{what}: " if what else ""
    if isinstance(error.__context__, exceptions.ClientError) and not isinstance(error, exceptions.ClientError):
        error = error.__context__  # of a transfer that failed: it has the server's answer
    if isinstance(error, exceptions.ClientError):
        return _explain_answer(error.response, begins)
    broken_off = (RetriesExceededError, HTTPError, exceptions.IncompleteReadError)
    failed = isinstance(error, (*broken_off, exceptions.HTTPClientError, exceptions.ConnectionError))
    remedy = _NETWORK if failed else _SETTINGS
    if isinstance(error, exceptions.SSLError):
        failed, remedy = False, "set AWS_CA_BUNDLE to the certificates of the server's authority"
    elif isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        remedy = f"set {KEYS}"
    elif isinstance(error, RetriesExceededError):
        error = error.last_exception
    return S3Error(f"{begins}{redact(str(error))}", remedy, network=failed)


def _explain_answer(response: Mapping[str, Any], begins: str) -> S3Error:
    """An answer of the server that is an error, after the words with which the message begins."""
    answer = response["Error"]
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    code = str(answer.get("Code", ""))
    words = [str(status)]
    for word in (code, str(answer.get("Message") or "")):
        if word not in ("", str(status)):
            words.append(word)
    message = f"{begins}the server answers {redact(' '.join(words))}"
    failed = status >= 500 or status == 429
    return S3Error(message, _REMEDIES.get(code, _REFUSED), code=code, status=status, network=failed)


def broke_off(error: BaseException | None) -> bool:
    """Whether what boto3 raised says that an answer ended in the middle of its body."""
    from botocore.exceptions import IncompleteReadError, ResponseStreamingError

    return isinstance(error, (IncompleteReadError, ResponseStreamingError))


def _refuse_page(response_dict: Any, **_: Any) -> None:
    if response_dict["status_code"] < HTTPStatus.BAD_REQUEST and _is_page(response_dict["headers"]):
        raise S3Error(_PAGE, _NETWORK, network=True)


def _is_page(headers: Mapping[str, str]) -> bool:
    """Whether an answer without an error is a page of HTML. An object that is HTML itself comes with its ETag."""
    kind, length = str(headers.get("content-type", "")).lower(), headers.get("content-length")
    return kind.startswith("text/html") and "etag" not in headers and length != "0"


def _translate(request: Any, profile: Profile) -> None:
    """Say "create only" as the kind of server has it: boto3 knows Amazon's header alone."""
    if request.headers.get(_CREATE_ONLY):
        del request.headers[_CREATE_ONLY]
        for name, header in profile.create.items():
            request.headers[name] = header
