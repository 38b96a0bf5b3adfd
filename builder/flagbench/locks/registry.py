"""Asks a container registry which manifest a tag names now, with the credentials of docker's configuration."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from docker.auth import INDEX_NAME, load_config  # type: ignore[import-untyped]
from docker.errors import DockerException  # type: ignore[import-untyped]
from requests import RequestException, Response, Session
from requests.utils import parse_dict_header

from flagbench.images import ImageReference, parse_reference
from flagbench.locks.pylock import SHA256
from flagbench.locks.session import TIMEOUT, PlainSession
from flagbench.redaction import redact

# A tag may name an index of platforms or one image, in docker's words or in OCI's.
_ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)


class RegistryError(Exception):
    """Why the registry gave no digest, without credentials."""


def base_digest(image: str, ca_bundle: Path | None = None) -> str:
    """`sha256:<64 hex>` of the manifest that the tag of `image` names.

    Proxies are taken from the environment, credentials from docker's configuration and its credential helpers.

    Raises RegistryError: the registry could not be reached, refused, or gave no digest.
    """
    reference = parse_reference(image)
    host = urlsplit(manifest_url(reference)).netloc
    with PlainSession(ca_bundle) as session:
        try:
            answer = _head(session, reference)
        except (RequestException, ValueError) as error:
            raise RegistryError(f"the registry {host} could not be reached: {_cause(error)}") from None
    if not answer.ok:
        raise RegistryError(_refusal(answer.status_code))
    digest = answer.headers.get("Docker-Content-Digest", "")
    if not SHA256.fullmatch(digest):
        raise RegistryError(f"the registry {host} gave no digest")
    return digest


def manifest_url(reference: ImageReference) -> str:
    """The URL of an image's manifest. A registry on this machine is asked without TLS, as docker does."""
    index = _index(reference)
    host = f"registry-1.{index}" if index == INDEX_NAME else index
    scheme = "http" if host.split(":")[0] in ("localhost", "127.0.0.1") else "https"
    return f"{scheme}://{host}/v2/{_repository(reference)}/manifests/{reference.tag or 'latest'}"


def _index(reference: ImageReference) -> str:
    """The name under which docker stores the credentials of an image's registry."""
    return INDEX_NAME if reference.host in ("", f"index.{INDEX_NAME}") else reference.host


def _repository(reference: ImageReference) -> str:
    is_official = _index(reference) == INDEX_NAME and "/" not in reference.path
    return f"library/{reference.path}" if is_official else reference.path


def _head(session: Session, reference: ImageReference) -> Response:
    """The manifest's headers; a registry that wants credentials says so in its first answer."""
    url = manifest_url(reference)
    session.headers["Accept"] = _ACCEPT
    answer = session.head(url, timeout=TIMEOUT, allow_redirects=True)
    if answer.status_code != HTTPStatus.UNAUTHORIZED:
        return answer
    account = _account(_index(reference))
    scheme, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
    challenge = parse_dict_header(rest)
    realm = challenge.get("realm") or ""
    if scheme.lower() == "bearer" and realm.startswith(("https://", "http://")):
        # A password is sent over TLS only, unless the registry itself is on this machine.
        known = account if realm.startswith(("https://", url.partition("/v2/")[0] + "/")) else {}
        authorization = f"Bearer {_token(session, challenge, _repository(reference), known)}"
        return session.head(url, headers={"Authorization": authorization}, timeout=TIMEOUT, allow_redirects=True)
    if scheme.lower() == "basic" and "Username" in account:
        return session.head(url, auth=_basic(account), timeout=TIMEOUT, allow_redirects=True)
    return answer


def _account(index: str) -> dict[str, str]:
    """What docker is configured with for a registry: Username and Password, or IdentityToken; empty without any."""
    try:
        found = load_config().resolve_authconfig(index) or {}
    except (DockerException, OSError, ValueError) as error:
        raise RegistryError(f"docker's credentials could not be read: {type(error).__name__}") from None
    # A credential helper's answer is capitalised, an entry of config.json is not.
    return {key[:1].upper() + key[1:]: str(value) for key, value in found.items() if value}


def _token(session: Session, challenge: dict[str, str | None], repository: str, account: dict[str, str]) -> str:
    """A pull token from the realm of the challenge, for the account or, without one, for anybody."""
    realm = challenge["realm"] or ""
    query = {"scope": challenge.get("scope") or f"repository:{repository}:pull"}
    if service := challenge.get("service"):
        query["service"] = service
    if refresh := account.get("IdentityToken"):
        form = {**query, "grant_type": "refresh_token", "client_id": "flagbench", "refresh_token": refresh}
        answer = session.post(realm, data=form, timeout=TIMEOUT)
    else:
        auth = _basic(account) if "Username" in account else None
        answer = session.get(realm, params=query, auth=auth, timeout=TIMEOUT)
    if not answer.ok:
        raise RegistryError(_refusal(answer.status_code))
    body = answer.json()
    token = body.get("token") or body.get("access_token") if isinstance(body, dict) else None
    if not isinstance(token, str):
        raise RegistryError("the registry gave no token")
    return token


def _basic(account: dict[str, str]) -> tuple[str, str]:
    return account["Username"], account.get("Password", "")


def _cause(error: BaseException) -> str:
    """The innermost reason of an error of requests, which wraps urllib3's, which wraps the system's."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return redact(str(error)) or type(error).__name__


def _refusal(code: int) -> str:
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "the registry wants a login that may read this image: `docker login`"
    if code == HTTPStatus.NOT_FOUND:
        return "the registry does not know this tag (any more)"
    return f"the registry answered {code}"
