"""HTTP sessions for registries and package indexes: retries that honour Retry-After, certificates, accounts."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3 import Retry

from flagbench.locks.model import canonical

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

Origin = tuple[str, str | None, int | None]
"""Scheme, host and port: an account is for one of these, and never sent to another."""
_PORTS = {"http": 80, "https": 443}
_INDEX_NAME = re.compile(r"[A-Za-z0-9_.-]+=(?=[A-Za-z][A-Za-z0-9+.-]*://)")
REFUSED = "wants an account, or refuses the one it was given"
REMEDY = (
    "give an account that may read the index: in the URL of --pip-source or of pip's configuration, or in netrc; "
    "a proxy's account in the URL of the proxy"
)
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)
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
            with suppress(ValueError):  # uv will report it
                origin, account = _parse(url.strip())
                if account:
                    self._accounts.setdefault(origin, account)

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        prepared_request.headers.pop("Authorization", None)
        self._authorized(prepared_request)

    def _authorized(self, request: PreparedRequest) -> PreparedRequest:
        url = request.url or ""
        origin, account = _parse(url)
        account = account or self._accounts.get(origin)
        if account is None and (found := get_netrc_auth(url)):
            account = _basic(*found)
        return account(request) if account else request


def index_urls(environment: Mapping[str, str]) -> list[str]:
    """The indexes in uv's environment, the default one first; their URLs may hold accounts."""
    urls = [*environment.get("UV_DEFAULT_INDEX", "").split(), *environment.get("UV_INDEX", "").split()]
    return [_INDEX_NAME.sub("", url, count=1) for url in urls]


def _parse(url: str) -> tuple[Origin, HTTPBasicAuth | None]:
    """The origin of a URL and the account in it. Raises ValueError."""
    parts = urlsplit(url)
    origin = (parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme))
    account = _basic(unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
    return origin, account


def _basic(user: str, password: str) -> HTTPBasicAuth:
    # As text, requests would encode it as Latin-1.
    return HTTPBasicAuth(user.encode(), password.encode())


def refusing_indexes(stack: Stack, environment: Mapping[str, str], ca_bundle: Path | None) -> dict[str, int]:
    """The indexes that refuse every direct requirement of a stack: URL as configured, to HTTP status.

    One refused package is not enough: some indexes refuse every package that they do not have.

    Args:
        environment: uv's, see `Sources.uv_environment`.
        ca_bundle: certificates (PEM) to trust instead of the system's.
    """
    if environment.get("UV_NO_INDEX"):
        return {}
    names = [canonical(line.partition("==")[0].strip()) for line in (*stack.build.packages, *stack.build.optional)]
    names += [canonical(package.name) for package in stack.build.compiled]
    names += [canonical(package.name) for package in stack.build.other_python]
    with IndexSession(environment, ca_bundle, retries=0) as session:
        asked = {index: _refusal(session, index, names) for index in index_urls(environment)}
    return {index: status for index, status in asked.items() if status is not None}


def _refusal(session: Session, index: str, names: Iterable[str]) -> int | None:
    """The HTTP status with which an index refuses all of the packages; None if it does not."""
    status = None
    for name in names:
        try:
            with session.get(f"{index.rstrip('/')}/{name}/", timeout=TIMEOUT, stream=True) as answer:
                status = answer.status_code
        except (RequestException, ValueError):
            return None
        if status not in _REFUSALS:
            return None
    return status
