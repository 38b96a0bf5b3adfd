"""Asking a container registry which manifest a tag names now: anonymous, one HEAD request."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path

from flagbench.locks.read import SHA256

TIMEOUT = 20.0
"""Seconds for each of the three requests."""

# A tag may name an index of platforms or one image, in docker's words or in OCI's.
_ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)
# A site chooses neither of these two, so they are no manifest's: a name without a host means, by the format of image
# references, this index, and the index's images are served by this host.
_DEFAULT_INDEX = "docker.io"
_DEFAULT_REGISTRY = f"registry-1.{_DEFAULT_INDEX}"
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class RegistryError(Exception):
    """Why the digest could not be learnt, in a few words without addresses or credentials."""


@dataclass(frozen=True)
class Reference:
    """An image's name taken apart, as docker does it."""

    host: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, image: str) -> Reference:
        """`debian:12` is the default registry, library/debian, 12; a host has a dot, a colon or is localhost."""
        first, slash, rest = image.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            host, path = first, rest
        else:
            host, path = _DEFAULT_INDEX, image
        repository, _, tag = path.partition(":")
        if host in (_DEFAULT_INDEX, f"index.{_DEFAULT_INDEX}"):
            host = _DEFAULT_REGISTRY
            repository = repository if "/" in repository else f"library/{repository}"
        return cls(host, repository, tag or "latest")

    @property
    def url(self) -> str:
        """Of the manifest. A registry on this machine is asked without TLS, as docker does."""
        scheme = "http" if self.host.split(":")[0] in ("localhost", "127.0.0.1") else "https"
        return f"{scheme}://{self.host}/v2/{self.repository}/manifests/{self.tag}"


def base_digest(image: str, ca_bundle: Path | None = None) -> str:
    """`sha256:<64 hex>` of the manifest that the tag of `image` names.

    Proxies are taken from the environment. A registry that wants a login is not asked twice.

    Raises:
        RegistryError: it could not be reached, refused, or gave no digest.
    """
    context = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    reference = Reference.parse(image)
    headers = {"Accept": _ACCEPT}
    try:
        try:
            answer = _head(opener, reference.url, headers)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.UNAUTHORIZED:
                raise
            token = _token(opener, error.headers, reference)
            answer = _head(opener, reference.url, {**headers, "Authorization": f"Bearer {token}"})
    except urllib.error.HTTPError as error:
        raise RegistryError(_refusal(error.code)) from None
    except (OSError, ValueError, HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        cause = str(cause).strip() or type(cause).__name__
        raise RegistryError(f"the registry {reference.host} could not be reached: {cause}") from None
    digest = answer.get("Docker-Content-Digest", "")
    if not SHA256.fullmatch(digest):
        raise RegistryError(f"the registry {reference.host} gave no digest")
    return digest


def _head(opener: urllib.request.OpenerDirector, url: str, headers: Mapping[str, str]) -> Message:
    request = urllib.request.Request(url, headers=dict(headers), method="HEAD")
    with opener.open(request, timeout=TIMEOUT) as answer:
        found: Message = answer.headers
        return found


def _token(opener: urllib.request.OpenerDirector, headers: Message, reference: Reference) -> str:
    """A pull token for anybody, from where the registry says that tokens are."""
    kind, _, rest = headers.get("WWW-Authenticate", "").partition(" ")
    challenge = dict(_PARAMETER.findall(rest))
    realm = challenge.get("realm", "")
    if kind.lower() != "bearer" or not realm.startswith(("https://", "http://")):
        raise RegistryError("it wants a login")
    query = {"scope": challenge.get("scope") or f"repository:{reference.repository}:pull"}
    if "service" in challenge:
        query["service"] = challenge["service"]
    with opener.open(f"{realm}?{urllib.parse.urlencode(query)}", timeout=TIMEOUT) as answer:
        body = json.load(answer)
    token = body.get("token") or body.get("access_token") if isinstance(body, dict) else None
    if not isinstance(token, str):
        raise RegistryError("it gave no token to an anonymous reader")
    return token


def _refusal(code: int) -> str:
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "the registry wants a login"
    if code == HTTPStatus.NOT_FOUND:
        return "the registry does not know this tag (any more)"
    return f"the registry answered {code}"
