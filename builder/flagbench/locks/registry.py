"""Asking a container registry which manifest a tag names now, with the credentials that docker is configured with."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from docker.auth import INDEX_NAME, load_config, resolve_repository_name  # type: ignore[import-untyped]
from docker.errors import DockerException  # type: ignore[import-untyped]
from docker.utils import parse_repository_tag  # type: ignore[import-untyped]
from requests import RequestException, Response, Session
from requests.utils import parse_dict_header

from flagbench.locks.pylock import SHA256
from flagbench.locks.session import TIMEOUT, new_session

# A tag may name an index of platforms or one image, in docker's words or in OCI's.
_ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)
_DEFAULT_REGISTRY = f"registry-1.{INDEX_NAME}"
"""The host that serves the images of the index that a name without a host means."""


class RegistryError(Exception):
    """Why the digest could not be learnt, in a few words without addresses or credentials."""


@dataclass(frozen=True)
class Reference:
    """An image's name, taken apart as docker does it."""

    index: str
    """What docker's credentials are stored under."""
    repository: str
    tag: str

    @classmethod
    def parse(cls, image: str) -> Reference:
        """`debian:12` is docker.io, library/debian, 12."""
        index, rest = resolve_repository_name(image)
        repository, tag = parse_repository_tag(rest)
        if index == INDEX_NAME and "/" not in repository:
            repository = f"library/{repository}"
        return cls(index, repository, tag or "latest")

    @property
    def host(self) -> str:
        """The registry that serves the image."""
        return _DEFAULT_REGISTRY if self.index == INDEX_NAME else self.index

    @property
    def url(self) -> str:
        """Of the manifest. A registry on this machine is asked without TLS, as docker does."""
        scheme = "http" if self.host.split(":")[0] in ("localhost", "127.0.0.1") else "https"
        return f"{scheme}://{self.host}/v2/{self.repository}/manifests/{self.tag}"


def base_digest(image: str, ca_bundle: Path | None = None) -> str:
    """`sha256:<64 hex>` of the manifest that the tag of `image` names.

    Proxies are taken from the environment, credentials from docker's configuration and its credential helpers.

    Raises:
        RegistryError: the registry could not be reached, refused, or gave no digest.
    """
    reference = Reference.parse(image)
    with new_session(ca_bundle) as session:
        try:
            answer = _head(session, reference)
        except (RequestException, ValueError) as error:
            raise RegistryError(f"the registry {reference.host} could not be reached: {_cause(error)}") from None
    if not answer.ok:
        raise RegistryError(_refusal(answer.status_code))
    digest = answer.headers.get("Docker-Content-Digest", "")
    if not SHA256.fullmatch(digest):
        raise RegistryError(f"the registry {reference.host} gave no digest")
    return digest


def _head(session: Session, reference: Reference) -> Response:
    """The manifest's headers; a registry that wants to know who asks says so in its first answer."""
    url = reference.url
    session.headers["Accept"] = _ACCEPT
    answer = session.head(url, timeout=TIMEOUT, allow_redirects=True)
    if answer.status_code != HTTPStatus.UNAUTHORIZED:
        return answer
    account = _account(reference.index)
    scheme, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
    challenge = parse_dict_header(rest)
    realm = challenge.get("realm") or ""
    if scheme.lower() == "bearer" and realm.startswith(("https://", "http://")):
        # A password never leaves TLS, unless the registry itself is on this machine.
        known = account if realm.startswith(("https://", url.partition("/v2/")[0] + "/")) else {}
        authorization = f"Bearer {_token(session, challenge, reference.repository, known)}"
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
    """A pull token from where the registry says that tokens are, for the account or, without one, for anybody."""
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


def _cause(error: Exception) -> str:
    """The innermost reason of an error of requests, which wraps urllib3's."""
    reason: object = error
    while isinstance(reason, Exception) and reason.args:
        inner = getattr(reason.args[0], "reason", None) or next(
            (arg for arg in reason.args if isinstance(arg, Exception)), None
        )
        if inner is None:
            break
        reason = inner
    return str(reason).rpartition("): ")[2].strip() or type(reason).__name__


def _refusal(code: int) -> str:
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "the registry wants a login that may read this image: `docker login`"
    if code == HTTPStatus.NOT_FOUND:
        return "the registry does not know this tag (any more)"
    return f"the registry answered {code}"
