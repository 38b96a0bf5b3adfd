"""HTTP requests to a repository of a container registry: credentials, limits and errors."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from requests import ConnectionError as NoConnection
from requests import PreparedRequest, RequestException, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import SSLError
from urllib3.exceptions import HTTPError

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import ImageReference
from flagbench.locks.registry_login import (
    RegistryError,
    authorize,
    cause,
    has_account,
    repository_path,
    repository_url,
)
from flagbench.locks.session import RETRIES, TIMEOUT, PlainSession
from flagbench.oci.certificates import trusted
from flagbench.redaction import redact
from flagbench.terminal import brief

REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_ANSWER_BYTES = 2**20
"""What is read of an answer that is not streamed, which has an error message at most."""
_PORTS = {"http": 80, "https": 443}


class AccessRefused(FlagbenchError):
    """The registry, or its token service, gives no access of the kind that was asked for."""


class RegistryClient:
    """Requests to one repository, with docker's credentials for its registry; threads may share it.

    A method raises FlagbenchError (engine) where the registry cannot be reached. Credentials are sent to the
    registry's own origin only: scheme, host and port.
    """

    def __init__(self, reference: ImageReference) -> None:
        self.reference = reference
        self.base = repository_url(reference)
        """Its URL."""
        self._authorization: dict[frozenset[str], str] = {}
        self._local = threading.local()

    def ask(self, method: str, url: str, *, reads: str | None = None, **options: Any) -> Response:
        """One request, repeated with credentials where the registry wants some.

        Args:
            reads: another repository that a layer is taken from.
            options: `writes`, and those of `requests`. Without `stream`, at most 1 MiB of the answer is read.

        Raises AccessRefused where the registry, or its token service, refuses the account.
        """
        scopes = self.scopes(writes=options.get("writes", False), reads=reads)
        with self.connection_errors():
            # Before the request: another thread may find out meanwhile.
            sent = self._authorization.get(scopes)
            answer = self.send(method, url, reads=reads, **options)
            if answer.status_code == HTTPStatus.UNAUTHORIZED and self.authorize(answer, scopes) not in (None, sent):
                answer.close()
                answer = self.send(method, url, reads=reads, **options)
            return answer

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        writes: bool = False,
        reads: str | None = None,
        timeout: float | tuple[float, float] = TIMEOUT,
        **options: Any,
    ) -> Response:
        """One request with the credentials that are known by now. Raises what `requests` raises."""
        known = self._authorization.get(self.scopes(writes=writes, reads=reads)) if self._is_own(url) else None
        sent = {**(headers or {}), **({"Authorization": known} if known else {})}
        return self._session.request(method, url, headers=sent, timeout=timeout, **options)

    def authorize(self, answer: Response, scopes: frozenset[str]) -> str | None:
        """The header `Authorization` for a request that was refused (401); None: there is no account that would help.

        Another host that the registry redirects to never gets one. Raises AccessRefused, and FlagbenchError (engine)
        where the token service fails.
        """
        if not self._is_own(answer.url):
            return None
        with self.connection_errors():
            try:
                known = authorize(self._session, answer, self.reference, sorted(scopes))
            except RegistryError as error:
                if error.refused:
                    raise self.refusal(writes=any(scope.endswith("push") for scope in scopes)) from None
                raise self.failure(f"gave no token: {error}") from None
        if known is not None:
            self._authorization[scopes] = known
        return known

    def location(self, answer: Response) -> str:
        """The URL that an answer names in `Location`, which is relative in some registries.

        Raises FlagbenchError (engine) where it is not a URL, or would send a layer to another host without TLS.
        """
        named = answer.headers.get("Location", "")
        try:
            found = urlsplit(urljoin(answer.url, named))
            origin = _origin(found)
        except ValueError:
            raise self.failure(f"named an upload address that is not a URL: {brief(named, 100)!r}") from None
        own = urlsplit(self.base)
        if (own.scheme, found.scheme) == ("https", "http"):
            # A registry behind a proxy that ends TLS, which does not tell it so.
            if origin[1] != own.hostname or (found.port or own.port) != own.port:
                raise self.failure(f"named an upload address without TLS: {brief(named, 100)}")
            found = found._replace(scheme="https", netloc=own.netloc)
        return found.geturl()

    def scopes(self, *, writes: bool, reads: str | None = None) -> frozenset[str]:
        """What a token is asked for; `reads`: another repository that a layer is taken from."""
        own = f"repository:{repository_path(self.reference)}:pull{',push' if writes else ''}"
        return frozenset([own, f"repository:{reads}:pull"] if reads else [own])

    @contextmanager
    def connection_errors(self) -> Iterator[None]:
        """Turns what `requests` raises into a FlagbenchError (engine)."""
        try:
            yield
        except SSLError as error:
            raise self._error(
                f"the certificate of {self.reference.name}'s registry is not trusted: {brief(cause(error), 300)}",
                "name a file with the certificate of its authority in REQUESTS_CA_BUNDLE, or put it into "
                f"/etc/docker/certs.d/{self.reference.host or 'docker.io'}/ca.crt",
            ) from None
        except (RequestException, HTTPError, ValueError) as error:
            raise self._error(
                f"the registry of {self.reference.name} cannot be reached: {brief(cause(error), 300)}",
                "check its name, the network and the proxy (HTTPS_PROXY), then try again",
            ) from None

    def require(self, answer: Response, doing: str, *, writes: bool = False) -> None:
        """Raise FlagbenchError (engine) unless the answer is a success. `doing`: an infinitive, for a person."""
        if answer.ok:
            return
        if answer.status_code in REFUSED:
            raise self.refusal(writes=writes)
        raise self.failure(f"could not {doing}: {said(answer)}")

    def refusal(self, *, writes: bool) -> FlagbenchError:
        """The error for an account that may not do this, or for none."""
        try:
            knows = has_account(self.reference)
        except RegistryError as error:
            return self.failure(f"refuses: {error}")
        name, host = self.reference.name, self.reference.host or "Docker Hub"
        if knows:
            problem = f"{host} refuses the account that docker is configured with, or does not let it use {name}"
        else:
            problem = f"{host} wants an account for {name}, and docker is configured with none"
        command = f"docker login {self.reference.host}".rstrip()
        remedy = f"log in with `{command}`, as a user who may {'push to' if writes else 'read'} {name}"
        return AccessRefused(problem, remedy=remedy, code=ExitCode.ENGINE)

    def failure(self, problem: str, code: ExitCode = ExitCode.ENGINE) -> FlagbenchError:
        """The error for a registry that answers, and fails. `problem`: what it did, for a person."""
        return self._error(
            f"the registry of {self.reference.name} {redact(problem)}",
            "try again; if it fails again, see the registry's log",
            code,
        )

    @staticmethod
    def _error(problem: str, remedy: str, code: ExitCode = ExitCode.ENGINE) -> FlagbenchError:
        return FlagbenchError(problem, remedy=remedy, code=code)

    def _is_own(self, url: str) -> bool:
        """Whether a URL is of the registry's own origin."""
        with suppress(ValueError):
            return _origin(urlsplit(url)) == _origin(urlsplit(self.base))
        return False

    @property
    def _session(self) -> PlainSession:
        """A session of this thread's own: those of requests are not meant to be shared."""
        session: PlainSession | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = _Session(self.reference, f"{self.base}/manifests/")
        return session


class _Session(PlainSession):
    """Gives no account to another host that a registry redirects to, and reads no endless answer."""

    def __init__(self, reference: ImageReference, manifests: str) -> None:
        super().__init__(trusted(reference.host))
        # A blob's bytes are read from a file while they are sent, so its upload is repeated elsewhere.
        repeated = RETRIES.new(allowed_methods=("HEAD", "GET", "PUT"))
        self.mount(manifests, HTTPAdapter(max_retries=repeated))
        self.hooks["response"].append(_limit)

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        if self.should_strip_auth(response.request.url or "", prepared_request.url or ""):
            prepared_request.headers.pop("Authorization", None)


def _limit(answer: Response, *, stream: bool = False, **_: object) -> None:
    """Read the body of an answer that is not streamed, at most 1 MiB of it."""
    if stream and not answer.is_redirect:
        return
    try:
        content = answer.raw.read(_ANSWER_BYTES, decode_content=True)
    except HTTPError as error:
        raise NoConnection(error, request=answer.request) from error
    answer.raw.close()
    answer.raw = io.BytesIO(content)


def said(answer: Response) -> str:
    """The registry's own words for its first error, without credentials, or its status."""
    with suppress(ValueError, LookupError, TypeError, AttributeError, RequestException):
        first = json.loads(answer.text[:100_000])["errors"][0]
        return redact(brief(f"{first.get('message') or first['code']} ({answer.status_code})", 300))
    return f"it answered {answer.status_code}"


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    """Scheme, host and port. Raises ValueError where the port is not a number."""
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)
