"""HTTP sessions for registries and package indexes: retries that honour Retry-After, certificates, accounts."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3 import Retry

Origin = tuple[str, str, int]
"""Scheme, host and port: an account is for one of these, and never sent to another."""
_PORTS = {"http": 80, "https": 443}
_INDEX_NAME = re.compile(r"[A-Za-z0-9_.-]+=(?=[A-Za-z][A-Za-z0-9+.-]*://)")
TIMEOUT = 60.0
"""Seconds without a byte after which a request fails."""
RETRIES = Retry(
    total=4,
    connect=1,
    backoff_factor=0.5,
    backoff_max=30.0,
    retry_after_max=60,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("HEAD", "GET", "POST"),
    raise_on_status=False,
)


class PlainSession(Session):
    """A session that sends no account, and trusts `ca_bundle` (PEM), else the certificates of this machine."""

    def __init__(self, ca_bundle: Path | None, retries: Retry | int = RETRIES) -> None:
        super().__init__()
        self.auth = lambda request: request  # not that of netrc
        system = ssl.get_default_verify_paths()
        configured = os.environ.get("REQUESTS_CA_BUNDLE")
        self.verify = str(ca_bundle) if ca_bundle else configured or system.cafile or system.capath or True
        self.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(max_retries=retries))

    def merge_environment_settings(self, url, proxies, stream, verify, cert):  # type: ignore[no-untyped-def]
        """As requests, except that a variable of the environment does not beat --ca-bundle."""
        return super().merge_environment_settings(
            url, proxies, stream, self.verify if verify is None else verify, cert
        )


class IndexSession(PlainSession):
    """Sends each index of uv's environment its account, to its own origin alone, and other hosts that of netrc.

    Each redirection is looked up again.
    """

    def __init__(
        self, environment: Mapping[str, str], ca_bundle: Path | None, retries: Retry | int = RETRIES
    ) -> None:
        super().__init__(ca_bundle, retries)
        self.auth = self._authorized
        self._accounts: dict[Origin, HTTPBasicAuth] = {}
        for url in [*index_urls(environment), *environment.get("UV_FIND_LINKS", "").split(",")]:
            if (where := _origin(url.strip())) and "@" in urlsplit(url).netloc:
                self._accounts.setdefault(where, _account_of(url.strip()))

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        prepared_request.headers.pop("Authorization", None)
        self._authorized(prepared_request)

    def _authorized(self, request: PreparedRequest) -> PreparedRequest:
        url = request.url or ""
        where = _origin(url)
        if "@" in urlsplit(url).netloc:
            return _account_of(url)(request)
        if where and where in self._accounts:
            return self._accounts[where](request)
        found = get_netrc_auth(url)
        return HTTPBasicAuth(*(part.encode() for part in found))(request) if found else request


def index_urls(environment: Mapping[str, str]) -> list[str]:
    """The indexes in uv's environment, the default one first; their URLs may hold accounts."""
    urls = [*environment.get("UV_DEFAULT_INDEX", "").split(), *environment.get("UV_INDEX", "").split()]
    return [_INDEX_NAME.sub("", url, count=1) for url in urls]


def _origin(url: str) -> Origin | None:
    """What the account of a URL is for; None if it has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port else None


def _account_of(url: str) -> HTTPBasicAuth:
    parts = urlsplit(url)
    # As text, requests would encode it as Latin-1.
    return HTTPBasicAuth(unquote(parts.username or "").encode(), unquote(parts.password or "").encode())
