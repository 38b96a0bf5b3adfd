"""Opens the boto3 client for a bucket's server, and turns the errors of boto3 into S3Error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from flagbench_core.redaction import has_userinfo, redact
from flagbench_core.s3.errors import S3Error
from flagbench_core.s3.profiles import PROFILES, Address, Profile, profile_of

ATTEMPTS = 5
"""How many times a request is sent, and how many times an object is read whose answer breaks off."""
CONNECTIONS = 16
"""The connections that a client keeps open, and so the number of objects that are worth reading at the same time."""
_DOWNLOAD_ATTEMPTS = 3
"""How many times a part of a large object is read whose answer breaks off. If the server does not answer at all, each
of these is ATTEMPTS requests of _READ_SECONDS."""
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
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
    """A client that threads can share, and the profile of its server.

    Raises S3Error (usage) if boto3 is not installed, or if its settings are wrong.
    """
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
        if profile is None:  # a variable or a file may set the endpoint: only a client knows it
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
        client.meta.events.register(
            "before-sign.s3.PutObject", lambda request, **_: _translate_create_only(request, profile)
        )
        client.meta.events.register("before-parse.s3", _refuse_page)
        return client, profile
    except (BotoCoreError, ValueError, OSError) as error:  # OSError: a credential_process that cannot be started
        explanation = explained(error, f"{address.url} cannot be used")
        raise S3Error(explanation.message, explanation.remedy, usage=True) from error


@lru_cache
def transfer_config() -> Any:
    """The settings of boto3's transfers of files: by its defaults, in parts of 8 MiB, ten at a time."""
    from boto3.s3.transfer import TransferConfig

    # On some machines boto3 would choose its other client, written in C, which raises other errors.
    return TransferConfig(num_download_attempts=_DOWNLOAD_ATTEMPTS, preferred_transfer_client="classic")


@lru_cache
def errors_of_boto3() -> tuple[type[BaseException], ...]:
    """The exceptions that a call of boto3 may raise; they have no common base class."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from s3transfer.exceptions import RetriesExceededError
    from urllib3.exceptions import HTTPError  # raised if the answer of an error breaks off

    return (ClientError, BotoCoreError, Boto3Error, RetriesExceededError, HTTPError, ValueError)


def explained(error: BaseException, failure: str = "") -> S3Error:
    """The S3Error for an exception of boto3; its message begins with `failure`."""
    from botocore import exceptions
    from s3transfer.exceptions import RetriesExceededError
    from urllib3.exceptions import HTTPError

    beginning = ""
    if failure:
        beginning = f"{failure}: "
    if isinstance(error.__context__, exceptions.ClientError) and not isinstance(error, exceptions.ClientError):
        error = error.__context__  # the error of a transfer hides the one with the server's answer
    if isinstance(error, exceptions.ClientError):
        return _explain_answer(error.response, beginning)
    # SSLError and the error of a transfer are among the network's errors below, so they come first.
    if isinstance(error, exceptions.SSLError):
        remedy = "set AWS_CA_BUNDLE to the certificates of the server's authority"
        return S3Error(f"{beginning}{redact(str(error))}", remedy)
    if isinstance(error, RetriesExceededError):
        return S3Error(f"{beginning}{redact(str(error.last_exception))}", _NETWORK, network=True)
    network_errors = (
        HTTPError,
        exceptions.IncompleteReadError,
        exceptions.HTTPClientError,
        exceptions.ConnectionError,
    )
    if isinstance(error, network_errors):
        return S3Error(f"{beginning}{redact(str(error))}", _NETWORK, network=True)
    remedy = _SETTINGS
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        remedy = f"set {KEYS}"
    return S3Error(f"{beginning}{redact(str(error))}", remedy)


def _explain_answer(response: Mapping[str, Any], beginning: str) -> S3Error:
    """The S3Error for a server's answer that is an error; its message begins with `beginning`."""
    answer = response["Error"]
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    code = str(answer.get("Code", ""))
    words = [str(status)]
    for word in (code, str(answer.get("Message") or "")):
        if word not in ("", str(status)):
            words.append(word)
    answer_text = redact(" ".join(words))
    message = f"{beginning}the server answers {answer_text}"
    may_succeed_later = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
    remedy = _REMEDIES.get(code, _REFUSED)
    return S3Error(message, remedy, code=code, status=status, network=may_succeed_later)


def broke_off(error: BaseException | None) -> bool:
    """Whether an exception of boto3 says that an answer ended in the middle of its body."""
    from botocore.exceptions import IncompleteReadError, ResponseStreamingError

    return isinstance(error, (IncompleteReadError, ResponseStreamingError))


def _refuse_page(response_dict: Any, **_: Any) -> None:
    """Raise S3Error for an answer that is a page of HTML, which boto3 would take for success."""
    if response_dict["status_code"] < HTTPStatus.BAD_REQUEST and _is_page(response_dict["headers"]):
        raise S3Error(_PAGE, _NETWORK, network=True)


def _is_page(headers: Mapping[str, str]) -> bool:
    """Whether an answer without an error is a page of HTML. An object that is HTML itself comes with its ETag."""
    content_type = str(headers.get("content-type", "")).lower()
    if not content_type.startswith("text/html") or "etag" in headers:
        return False
    return headers.get("content-length") != "0"


def _translate_create_only(request: Any, profile: Profile) -> None:
    """Replace Amazon's header for a create-only put, the only one that boto3 knows, with those of the server."""
    if request.headers.get(_CREATE_ONLY):
        del request.headers[_CREATE_ONLY]
        for name, header in profile.create.items():
            request.headers[name] = header
