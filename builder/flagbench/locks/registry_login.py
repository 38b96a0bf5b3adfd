"""How a registry is addressed, and how its challenges are answered with the credentials of docker's configuration."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from docker.auth import INDEX_NAME, load_config  # type: ignore[import-untyped]
from docker.errors import DockerException  # type: ignore[import-untyped]
from docker.utils.config import find_config_file  # type: ignore[import-untyped]
from requests import Response, Session
from requests.auth import HTTPBasicAuth
from requests.utils import parse_dict_header

from flagbench.files import reason
from flagbench.images import ImageReference
from flagbench.locks.session import TIMEOUT
from flagbench.redaction import redact

# A tag may name an index of platforms or one image, in docker's words or in OCI's.
ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)


_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class RegistryError(Exception):
    """Why a registry did not do what it was asked, without credentials."""

    def __init__(self, problem: str, *, refused: bool = False) -> None:
        """`refused`: it does not accept the account, or the lack of one."""
        super().__init__(problem)
        self.refused = refused


def repository_url(reference: ImageReference) -> str:
    """The URL of an image's repository. A registry on this machine is asked without TLS, as docker does."""
    index = _index(reference)
    host = f"registry-1.{index}" if index == INDEX_NAME else index
    scheme = "http" if host.split(":")[0] in ("localhost", "127.0.0.1") else "https"
    return f"{scheme}://{host}/v2/{repository_path(reference)}"


def repository_path(reference: ImageReference) -> str:
    """The name of an image's repository, as its registry knows it."""
    is_official = _index(reference) == INDEX_NAME and "/" not in reference.path
    return f"library/{reference.path}" if is_official else reference.path


def authorize(
    session: Session, answer: Response, reference: ImageReference, scopes: Sequence[str] = ()
) -> str | None:
    """The header `Authorization` with which a refused request (401) is to be repeated.

    None: docker is not configured with an account that would help.

    Args:
        scopes: what a token is asked for, such as `repository:NAME:pull,push`; by default what the registry names in
            its challenge.

    Raises RegistryError: the account was refused, docker's credentials cannot be read, or no token was given.
    """
    account = _account(_index(reference))
    scheme, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
    challenge = parse_dict_header(rest)
    realm = challenge.get("realm") or ""
    if scheme.lower() == "bearer" and realm.startswith(("https://", "http://")):
        origin = urlsplit(repository_url(reference))
        # A password is sent over TLS only, unless the registry itself is on this machine.
        trusted = realm.startswith(("https://", f"{origin.scheme}://{origin.netloc}/"))
        asked = list(scopes) or [challenge.get("scope") or f"repository:{repository_path(reference)}:pull"]
        return f"Bearer {_token(session, challenge, asked, account if trusted else {})}"
    if scheme.lower() == "basic" and "Username" in account:
        user, password = _basic(account)
        return "Basic " + b64encode(f"{user}:{password}".encode()).decode("ascii")
    return None


def has_account(reference: ImageReference) -> bool:
    """Whether docker is configured with credentials for an image's registry."""
    return bool(_account(_index(reference)))


def _index(reference: ImageReference) -> str:
    """The name under which docker stores the credentials of an image's registry."""
    return INDEX_NAME if reference.host in ("", f"index.{INDEX_NAME}") else reference.host


def _account(index: str) -> dict[str, str]:
    """What docker is configured with for a registry: Username and Password, or IdentityToken; empty without any."""
    _require_json()
    try:
        found = load_config().resolve_authconfig(index) or {}
    except (DockerException, OSError, ValueError) as error:
        raise RegistryError(f"docker's credentials could not be read: {type(error).__name__}") from None
    # A credential helper's answer is capitalised, an entry of config.json is not.
    return {key[:1].upper() + key[1:]: str(value) for key, value in found.items() if value}


def _require_json() -> None:
    """Raise RegistryError if docker's config.json is not JSON, which docker's library takes for one without accounts.

    A .dockercfg, as docker wrote it long ago, need not be.
    """
    file = Path(find_config_file() or "")
    if file.name != "config.json":
        return
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not JSON"
        raise RegistryError(f"docker's credentials could not be read from {file}: {why}") from None
    if not isinstance(content, dict):
        raise RegistryError(f"docker's credentials could not be read from {file}: it is not a JSON object")


def _token(session: Session, challenge: dict[str, str | None], scopes: list[str], account: dict[str, str]) -> str:
    """A token from the realm of the challenge, for the account or, without one, for anybody."""
    realm = challenge["realm"] or ""
    query: dict[str, str | list[str]] = {"scope": scopes}
    if service := challenge.get("service"):
        query["service"] = service
    if refresh := account.get("IdentityToken"):
        # RFC 6749: scopes of a form are one value.
        form = {
            **query,
            "scope": " ".join(scopes),
            "grant_type": "refresh_token",
            "client_id": "flagbench",
            "refresh_token": refresh,
        }
        # Redirected, it would take the token to another host.
        answer = session.post(realm, data=form, timeout=TIMEOUT, allow_redirects=False)
    else:
        # As text, requests would encode it as Latin-1.
        auth = HTTPBasicAuth(*(part.encode() for part in _basic(account))) if "Username" in account else None
        answer = session.get(realm, params=query, auth=auth, timeout=TIMEOUT)
    if not answer.ok:
        raise RegistryError(refusal(answer.status_code), refused=answer.status_code in _REFUSED)
    try:
        body = answer.json()
    except ValueError:
        body = None
    token = body.get("token") or body.get("access_token") if isinstance(body, dict) else None
    if not isinstance(token, str):
        raise RegistryError("the registry gave no token")
    return token


def _basic(account: dict[str, str]) -> tuple[str, str]:
    return account["Username"], account.get("Password", "")


def cause(error: BaseException) -> str:
    """The innermost reason of an error of requests, which wraps urllib3's, which wraps the system's."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return redact(str(error)) or type(error).__name__


def refusal(code: int) -> str:
    if code in _REFUSED:
        return "the registry wants a login that may read this image: `docker login`"
    if code == HTTPStatus.NOT_FOUND:
        return "the registry does not know this tag (any more)"
    return f"the registry answered {code}"
