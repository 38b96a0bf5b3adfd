"""Asks a container registry which manifest a tag names now, with the credentials of docker's configuration."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from requests import RequestException, Response, Session

from flagbench.images import ImageReference, parse_reference
from flagbench.locks.pylock import SHA256
from flagbench.locks.registry_login import ACCEPT, RegistryError, authorize, cause, refusal, repository_url
from flagbench.locks.session import TIMEOUT, PlainSession


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
            raise RegistryError(f"the registry {host} could not be reached: {cause(error)}") from None
    if not answer.ok:
        raise RegistryError(refusal(answer.status_code))
    digest = answer.headers.get("Docker-Content-Digest", "")
    if not SHA256.fullmatch(digest):
        raise RegistryError(f"the registry {host} gave no digest")
    return digest


def manifest_url(reference: ImageReference) -> str:
    """The URL of an image's manifest."""
    return f"{repository_url(reference)}/manifests/{reference.tag or 'latest'}"


def _head(session: Session, reference: ImageReference) -> Response:
    """The manifest's headers; a registry that wants credentials says so in its first answer."""
    url = manifest_url(reference)
    session.headers["Accept"] = ACCEPT
    answer = session.head(url, timeout=TIMEOUT, allow_redirects=True)
    if answer.status_code != HTTPStatus.UNAUTHORIZED:
        return answer
    authorization = authorize(session, answer, reference)
    if authorization is None:
        return answer
    return session.head(url, headers={"Authorization": authorization}, timeout=TIMEOUT, allow_redirects=True)
