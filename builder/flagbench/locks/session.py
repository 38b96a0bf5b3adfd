"""HTTP sessions for registries and package indexes: retries that honour Retry-After, certificates, accounts.

requests and urllib3 are docker-py's own dependencies; they also bring proxies, netrc and the parsing of challenges.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3 import Retry

from flagbench.locks.urls import Origin, index_urls, origin

TIMEOUT = 60.0
"""Seconds without an answer, or without a byte of it, after which a request is given up."""
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


def new_session(ca_bundle: Path | None, retries: Retry | int = RETRIES) -> Session:
    """A session that sends no account; `ca_bundle` holds certificates (PEM) to trust instead of the system's."""
    return _prepared(Session(), ca_bundle, retries)


def index_session(environment: Mapping[str, str], ca_bundle: Path | None, retries: Retry | int = RETRIES) -> Session:
    """A session that sends each index of uv's environment its account; netrc has those of the other hosts."""
    return _prepared(_IndexSession(environment), ca_bundle, retries)


def _prepared(session: Session, ca_bundle: Path | None, retries: Retry | int) -> Session:
    session.auth = session.auth or (lambda request: request)  # not that of netrc
    session.verify = str(ca_bundle) if ca_bundle else True
    session.headers["Accept-Encoding"] = "identity"
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retries))
    return session


class _IndexSession(Session):
    """Sends accounts to their own origin alone; each redirection is looked up again."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.auth = self._authorized
        self._accounts: dict[Origin, HTTPBasicAuth] = {}
        for url in [*index_urls(environment), *environment.get("UV_FIND_LINKS", "").split(",")]:
            if (where := origin(url.strip())) and "@" in urlsplit(url).netloc:
                self._accounts.setdefault(where, _basic(*_userinfo(url.strip())))

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        prepared_request.headers.pop("Authorization", None)
        self._authorized(prepared_request)

    def _authorized(self, request: PreparedRequest) -> PreparedRequest:
        url = request.url or ""
        where = origin(url)
        account = self._accounts.get(where) if where else None
        if account is None and (found := get_netrc_auth(url)):
            account = _basic(*found)
        if "@" in urlsplit(url).netloc:
            account = _basic(*_userinfo(url))
        return account(request) if account else request


def _basic(user: str, password: str) -> HTTPBasicAuth:
    # As text, requests would encode it as Latin-1.
    return HTTPBasicAuth(user.encode(), password.encode())


def _userinfo(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return unquote(parts.username or ""), unquote(parts.password or "")
