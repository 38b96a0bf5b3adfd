"""A repository in a container registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

from requests import PreparedRequest, RequestException, Response

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import find_reference
from flagbench.locks.registry_login import ACCEPT, RegistryError, authorize, cause, has_account, repository_url
from flagbench.locks.registry_login import repository_path as path_of
from flagbench.locks.session import TIMEOUT, PlainSession
from flagbench.oci.certificates import trusted
from flagbench.oci.model import Blob, Descriptor, Progress, Put, digest_of
from flagbench.redaction import redact
from flagbench.terminal import brief

_CHUNK = 2**20
_MAX_MANIFEST = 16 * 2**20
_ATTEMPTS = 3
"""How often the upload of a blob is tried."""
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class RegistryPlace:
    """A repository, `HOST[:PORT]/NAME`, with docker's credentials for its registry; threads may share it."""

    def __init__(self, name: str) -> None:
        """Raises FlagbenchError (usage) where `name` is not a repository's."""
        reference = find_reference(name)
        if reference is None or reference.tag or reference.digest:
            raise FlagbenchError(
                f"{name!r} is not a repository of a registry", remedy="write HOST[:PORT]/NAME in lower case"
            )
        self._reference = reference
        self._base = repository_url(reference)
        self._authorization: dict[frozenset[str], str] = {}
        self._local = threading.local()

    @property
    def url(self) -> str:
        """`HOST/NAME`."""
        return self._reference.name

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""
        answer = self._ask("HEAD", f"{self._base}/blobs/{digest}", allow_redirects=True)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return False
        self._require(answer, "say whether it has a layer")
        return True

    def put_blob(self, blob: Blob, show: Progress) -> Put:
        """Keep a blob; one that another repository of this registry has is mounted from there."""
        if self.has_blob(blob.descriptor.digest):
            return "present"
        if self._mount(blob):
            return "copied"
        path = blob.path()
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._upload(path, blob.descriptor, show)
                return "uploaded"
            except _Lost as error:
                # The answer may have been lost, and the blob may be there.
                if self.has_blob(blob.descriptor.digest):
                    return "uploaded"
                if not left:
                    raise self._failure(f"lost a layer {_ATTEMPTS} times: {error}", error.code) from None
        raise AssertionError("unreachable")

    def read_blob(self, digest: str) -> Iterator[bytes]:
        """Chunks of a blob, unchecked."""
        with self._ask("GET", f"{self._base}/blobs/{digest}", stream=True) as answer:
            self._require(answer, "give a layer")
            with self._connection_errors():
                yield from answer.iter_content(_CHUNK)

    def put_manifest(self, content: bytes, media_type: str, references: tuple[str, ...]) -> bool:
        """Keep a manifest under its digest and then its tags; see `Place`."""
        lists_referrers = False
        for reference in (digest_of(content), *references):
            url = f"{self._base}/manifests/{reference}"
            answer = self._ask("PUT", url, headers={"Content-Type": media_type}, data=content, writes=True)
            self._require(answer, f"keep the manifest {reference}")
            lists_referrers = lists_referrers or "OCI-Subject" in answer.headers
        return lists_referrers

    def read_manifest(self, reference: str) -> tuple[bytes, str] | None:
        """A manifest by tag or digest; one that has another digest is refused."""
        url = f"{self._base}/manifests/{reference}"
        with self._ask("GET", url, headers={"Accept": ACCEPT}, stream=True) as answer:
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return None
            self._require(answer, f"give the manifest {reference}")
            content = bytearray()
            with self._connection_errors():
                for chunk in answer.iter_content(_CHUNK):
                    content += chunk
                    if len(content) > _MAX_MANIFEST:
                        raise self._failure("gave a manifest of more than 16 MiB", ExitCode.DATA)
        if reference.startswith("sha256:") and digest_of(bytes(content)) != reference:
            raise self._failure(f"gave another manifest than {reference}", ExitCode.DATA)
        return bytes(content), answer.headers.get("Content-Type", "").partition(";")[0]

    def _mount(self, blob: Blob) -> bool:
        """Have the registry take the blob from another of its repositories, if one has it."""
        host = f"{self._reference.host}/"
        for origin in blob.origins:
            source = find_reference(origin) if origin.startswith(host) else None
            if source is None or source.name == self.url:
                continue
            name = path_of(source)
            wanted = {"mount": blob.descriptor.digest, "from": name}
            answer = self._ask("POST", f"{self._base}/blobs/uploads/", params=wanted, writes=True, reads=name)
            if answer.status_code == HTTPStatus.CREATED:
                return True
            if answer.status_code == HTTPStatus.ACCEPTED:
                # It began an upload instead, which nobody needs.
                with suppress(FlagbenchError):
                    self._ask("DELETE", self._location(answer), writes=True)
            elif answer.status_code != HTTPStatus.NOT_FOUND:
                self._require(answer, "take a layer from another repository")
        return False

    def _upload(self, path: Path, blob: Descriptor, show: Progress) -> None:
        """One upload, in one request as containerd does it. Raises _Lost where it may be begun again.

        It is never resumed: the registry of the Distribution project gives up an upload that broke off.
        """
        answer = self._ask("POST", f"{self._base}/blobs/uploads/", writes=True)
        self._require(answer, "take a layer")
        with path.open("rb") as file:
            body = _Body(file, blob.size, show)
            try:
                answer = self._send(
                    "PUT",
                    self._location(answer),
                    headers={"Content-Type": "application/octet-stream"},
                    params={"digest": blob.digest},
                    data=body if blob.size else b"",
                    writes=True,
                )
            except RequestException as error:
                show(-body.read_bytes)
                raise _Lost(cause(error), ExitCode.ENGINE) from None
        if answer.status_code == HTTPStatus.CREATED:
            return
        show(-body.read_bytes)
        if answer.status_code == HTTPStatus.BAD_REQUEST and "DIGEST_INVALID" in answer.text:
            raise _Lost("what arrived is not what was sent", ExitCode.DATA)
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            self._authorize(answer, self._scopes(writes=True))  # a token that ran out
        elif answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            self._require(answer, "take a layer")
        raise _Lost(_said(answer), ExitCode.ENGINE)

    def _location(self, answer: Response) -> str:
        # Relative in some registries.
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _ask(self, method: str, url: str, *, reads: str | None = None, **options: Any) -> Response:
        """One request, repeated with credentials where the registry wants some. Raises FlagbenchError (engine)."""
        scopes = self._scopes(writes=options.get("writes", False), reads=reads)
        with self._connection_errors():
            # Before the request: another thread may find out meanwhile.
            sent = self._authorization.get(scopes)
            answer = self._send(method, url, reads=reads, **options)
            if answer.status_code == HTTPStatus.UNAUTHORIZED and self._authorize(answer, scopes) != sent:
                answer.close()
                answer = self._send(method, url, reads=reads, **options)
            return answer

    def _send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        writes: bool = False,
        reads: str | None = None,
        **options: Any,
    ) -> Response:
        known = self._authorization.get(self._scopes(writes=writes, reads=reads))
        sent = {**(headers or {}), **({"Authorization": known} if known else {})}
        return self._session.request(method, url, headers=sent, timeout=TIMEOUT, **options)

    def _authorize(self, answer: Response, scopes: frozenset[str]) -> str | None:
        try:
            known = authorize(self._session, answer, self._reference, sorted(scopes))
        except RegistryError:
            raise self._refusal() from None
        if known is not None:
            self._authorization[scopes] = known
        return known

    def _scopes(self, *, writes: bool, reads: str | None = None) -> frozenset[str]:
        """What a token is asked for; `reads`: another repository that a layer is taken from."""
        own = f"repository:{path_of(self._reference)}:pull{',push' if writes else ''}"
        return frozenset([own, f"repository:{reads}:pull"] if reads else [own])

    @property
    def _session(self) -> PlainSession:
        """A session of this thread's own: those of requests are not meant to be shared."""
        session: PlainSession | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = _Session(trusted(self._reference.host))
        return session

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except (RequestException, ValueError) as error:
            raise FlagbenchError(
                f"the registry of {self.url} cannot be reached: {brief(cause(error), 300)}",
                remedy="check its name, the network and the proxy (HTTPS_PROXY) and push again; what arrived is kept",
                code=ExitCode.ENGINE,
            ) from None

    def _require(self, answer: Response, doing: str) -> None:
        if answer.ok:
            return
        if answer.status_code in _REFUSED:
            raise self._refusal()
        raise self._failure(f"could not {doing}: {_said(answer)}")

    def _refusal(self) -> FlagbenchError:
        try:
            knows = has_account(self._reference)
        except RegistryError as error:
            raise self._failure(str(error)) from None
        host = self._reference.host or "Docker Hub"
        if knows:
            problem = f"{host} refuses the account that docker is configured with, or does not let it use {self.url}"
        else:
            problem = f"{host} wants an account for {self.url}, and docker is configured with none"
        remedy = f"log in with `docker login {self._reference.host}`, as somebody who may push there"
        return FlagbenchError(problem, remedy=remedy, code=ExitCode.ENGINE)

    def _failure(self, problem: str, code: ExitCode = ExitCode.ENGINE) -> FlagbenchError:
        return FlagbenchError(
            f"the registry of {self.url} {redact(problem)}",
            remedy="push again: what arrived is kept; if it stays so, see the registry's log",
            code=code,
        )


class _Session(PlainSession):
    """Gives no account to another host that a registry redirects to."""

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        if self.should_strip_auth(response.request.url or "", prepared_request.url or ""):
            prepared_request.headers.pop("Authorization", None)


class _Lost(Exception):
    """Why an upload failed that may be begun again."""

    def __init__(self, problem: str, code: ExitCode) -> None:
        super().__init__(problem)
        self.code = code


class _Body:
    """What requests needs of a body: a file with its length."""

    def __init__(self, file: IO[bytes], size: int, show: Callable[[int], None]) -> None:
        self._file = file
        self._length = size
        self._show = show
        self.read_bytes = 0

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        # A socket takes more at once than the 16 KiB that it is offered by default.
        chunk = self._file.read(max(size, 2**18) if size > 0 else size)
        self.read_bytes += len(chunk)
        self._show(len(chunk))
        return chunk


def _said(answer: Response) -> str:
    """The registry's own words for its first error, without credentials, or its status."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        first = json.loads(answer.text[:100_000])["errors"][0]
        return redact(brief(f"{first.get('message') or first['code']} ({answer.status_code})", 300))
    return f"it answered {answer.status_code}"
