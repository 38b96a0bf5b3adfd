"""A repository in a container registry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

from requests import ReadTimeout, RequestException, Response
from urllib3.exceptions import HTTPError

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import find_reference
from flagbench.locks.registry_login import ACCEPT, cause, repository_path, repository_url
from flagbench.locks.session import RETRIES, TIMEOUT
from flagbench.oci.manifest import MANIFEST_BYTES
from flagbench.oci.model import UPDATES, Blob, Change, Descriptor, Progress, Put, contended, digest_of
from flagbench.oci.registry_client import AccessRefused, RegistryClient, said

_CHUNK = 2**20
_ATTEMPTS = 5
"""How often the upload of a blob is tried, or the download of one continued that brought nothing."""
_PAUSE = 1.0
"""Seconds before the second attempt; twice as many before each further one."""
_SETTLE = (5.0, 10.0, 15.0, 30.0)
"""Seconds between questions whether a blob arrived whose upload was not confirmed in time."""
_TIMEOUT = (TIMEOUT, 15 * 60.0)
"""Seconds to send some bytes of a blob, and to wait for the answer. It comes when the registry has stored the blob,
which takes minutes for a layer of several gigabytes in an object store."""
_REPEATED = (HTTPStatus.NOT_FOUND, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers below 500 to an upload that may be repeated; 404 is that of an upload that the registry has forgotten."""


class RegistryPlace:
    """A repository, `HOST[:PORT]/NAME`, with docker's credentials for its registry; threads may share it."""

    public = False
    """Its registry decides who may read it."""

    def __init__(self, name: str) -> None:
        """Raises FlagbenchError (usage) where `name` is not a repository's."""
        reference = find_reference(name)
        if reference is None or reference.tag or reference.digest:
            raise FlagbenchError(
                f"{name!r} is not a repository of a registry", remedy="write HOST[:PORT]/NAME in lower case"
            )
        self._client = RegistryClient(reference)
        self._copied: set[str] = set()
        self._closed_origins: set[str] = set()
        """Repositories from which this account may mount nothing."""

    @property
    def url(self) -> str:
        """`HOST/NAME`."""
        return self._client.reference.name

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""
        answer = self._client.ask("HEAD", self._blob_url(digest), allow_redirects=True)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return False
        self._client.require(answer, "check for a layer")
        return True

    def put_blob(self, blob: Blob, show: Progress) -> Put:
        """Keep a blob; one that another repository of this registry has is mounted from there."""
        found = blob.descriptor
        if self.has_blob(found.digest):
            return "copied" if found.digest in self._copied else "present"
        if self._mount(blob):
            self._copied.add(found.digest)
            return "copied"
        path = blob.path(show)
        for attempt in range(_ATTEMPTS):
            try:
                self._upload(path, found, show)
                return "uploaded"
            except _Lost as error:
                lost = error
            if self._arrived(found.digest, lost, show):
                show(found.size)
                return "uploaded"
            if attempt + 1 < _ATTEMPTS:
                _pause(_PAUSE * 2**attempt if lost.after is None else lost.after, show)
        raise self._client.failure(f"failed {_ATTEMPTS} times to store a layer: {lost}", lost.code)

    def read_blob(self, digest: str) -> Iterator[bytes]:
        """Chunks of a blob, unchecked. An answer that breaks off is continued."""
        done, failures = 0, 0
        while True:
            begin = done
            try:
                for chunk in self._chunks(digest, begin):
                    done += len(chunk)
                    yield chunk
                return
            except (RequestException, HTTPError):
                failures = 1 if done - begin >= _CHUNK else failures + 1
                if failures == _ATTEMPTS:
                    with self._client.connection_errors():
                        raise
            _pause(_PAUSE * 2 ** (failures - 1))

    def put_manifest(self, content: bytes, media_type: str, references: tuple[str, ...]) -> bool:
        """Keep a manifest under its digest and then its tags; see `Place`."""
        lists_referrers = False
        for reference in (digest_of(content), *references):
            url = f"{self._client.base}/manifests/{reference}"
            headers = {"Content-Type": media_type}
            for attempt in range(_ATTEMPTS):
                answer = self._client.ask("PUT", url, headers=headers, data=content, writes=True)
                # The digest is right: the registry has read a link that another push of the manifest was writing.
                if not _denies_digest(answer) or attempt + 1 == _ATTEMPTS:
                    break
                _pause(_PAUSE * 2**attempt)
            self._client.require(answer, f"store the manifest {reference}", writes=True)
            lists_referrers = lists_referrers or "OCI-Subject" in answer.headers
        return lists_referrers

    def update_manifest(self, tag: str, media_type: str, change: Change) -> None:
        """Replace the manifest under a tag; see `Place`. Registries have no conditional writes."""
        for _ in range(UPDATES):
            found = self.read_manifest(tag)
            content = change(found[0] if found else None)
            if content is None:
                return
            self.put_manifest(content, media_type, (tag,))
        raise contended(tag, self.url)

    def read_manifest(self, reference: str) -> tuple[bytes, str] | None:
        """A manifest by tag or digest; one that has another digest is refused."""
        client, url = self._client, f"{self._client.base}/manifests/{reference}"
        with client.ask("GET", url, headers={"Accept": ACCEPT}, stream=True) as answer:
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return None
            client.require(answer, f"return the manifest {reference}")
            content = bytearray()
            with client.connection_errors():
                for chunk in answer.iter_content(_CHUNK):
                    content += chunk
                    if len(content) > MANIFEST_BYTES:
                        raise client.failure("returned a manifest of more than 4 MiB", ExitCode.DATA)
        if reference.startswith("sha256:") and digest_of(bytes(content)) != reference:
            raise client.failure(f"returned another manifest than {reference}", ExitCode.DATA)
        return bytes(content), answer.headers.get("Content-Type", "").partition(";")[0]

    def _mount(self, blob: Blob) -> bool:
        """Have the registry take the blob from another of its repositories, if one has it and lets this account.

        Only an attempt: a registry that refuses it may still accept the bytes.
        """
        client = self._client
        for origin in blob.origins:
            source = find_reference(origin)
            if source is None or source.name == self.url or source.name in self._closed_origins:
                continue
            name = repository_path(source)
            if repository_url(source).removesuffix(name) != client.base.removesuffix(
                repository_path(client.reference)
            ):
                continue  # another registry
            wanted = {"mount": blob.descriptor.digest, "from": name}
            try:
                answer = client.ask("POST", f"{client.base}/blobs/uploads/", params=wanted, writes=True, reads=name)
            except AccessRefused:
                self._closed_origins.add(source.name)
                continue
            if answer.status_code == HTTPStatus.CREATED:
                return True
            if answer.status_code == HTTPStatus.ACCEPTED:
                # It began an upload instead, which nobody needs.
                with suppress(FlagbenchError):
                    client.ask("DELETE", client.location(answer), writes=True)
            elif answer.status_code != HTTPStatus.NOT_FOUND:
                self._closed_origins.add(source.name)
        return False

    def _upload(self, path: Path, blob: Descriptor, show: Progress) -> None:
        """One upload, in one request as containerd does it. Raises _Lost where it may be begun again.

        It is never resumed: the registry of the Distribution project gives up an upload that broke off.
        """
        client = self._client
        answer = client.ask("POST", f"{client.base}/blobs/uploads/", writes=True)
        client.require(answer, "accept a layer", writes=True)
        with path.open("rb") as file:
            body = _Body(file, blob.size, show)
            try:
                answer = client.send(
                    "PUT",
                    client.location(answer),
                    headers={"Content-Type": "application/octet-stream"},
                    params={"digest": blob.digest},
                    data=body if blob.size else b"",
                    timeout=_TIMEOUT,
                    writes=True,
                )
            except (RequestException, HTTPError, ValueError) as error:
                show(-body.read_bytes)
                raise _Lost(cause(error), unclear=isinstance(error, ReadTimeout)) from None
        if answer.status_code == HTTPStatus.CREATED:
            return
        show(-body.read_bytes)
        if _denies_digest(answer):
            raise _Lost("what arrived is not what was sent", code=ExitCode.DATA, after=0.0)
        after = _retry_after(answer)
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            client.authorize(answer, client.scopes(writes=True))  # a token that expired
            after = 0.0
        elif answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status_code not in _REPEATED:
            client.require(answer, "store a layer", writes=True)
        raise _Lost(said(answer), after=after, unclear=answer.status_code == HTTPStatus.GATEWAY_TIMEOUT)

    def _arrived(self, digest: str, lost: _Lost, show: Progress) -> bool:
        """Whether the registry has a blob although its upload was not confirmed."""
        for seconds in (0.0, *(_SETTLE if lost.unclear else ())):
            _pause(seconds, show)
            if self.has_blob(digest):
                return True
        return False

    def _chunks(self, digest: str, begin: int) -> Iterator[bytes]:
        """The bytes of a blob from `begin` on, as long as the connection lasts; then raises what `requests` does."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        with self._client.ask("GET", self._blob_url(digest), headers=headers, stream=True) as answer:
            self._client.require(answer, "return a layer")
            partial = answer.status_code == HTTPStatus.PARTIAL_CONTENT
            if partial and not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
                raise self._client.failure("returned other bytes of a layer than it was asked for")
            surplus = 0 if partial else begin
            for chunk in answer.iter_content(_CHUNK):
                rest = chunk[surplus:]
                surplus = max(0, surplus - len(chunk))
                if rest:
                    yield rest

    def _blob_url(self, digest: str) -> str:
        return f"{self._client.base}/blobs/{digest}"


class _Lost(Exception):
    """Why an upload failed that may be begun again."""

    def __init__(
        self,
        problem: str,
        *,
        code: ExitCode = ExitCode.ENGINE,
        after: float | None = None,
        unclear: bool = False,
    ) -> None:
        """`after`: seconds that the registry asks to wait. `unclear`: the registry may still store the blob."""
        super().__init__(problem)
        self.code = code
        self.after = after
        self.unclear = unclear


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


def _denies_digest(answer: Response) -> bool:
    """Whether a registry says that content has another digest than the one it was sent under."""
    return answer.status_code == HTTPStatus.BAD_REQUEST and "DIGEST_INVALID" in answer.text


def _retry_after(answer: Response) -> float | None:
    """Seconds after which the registry wants to be asked again, at most a minute; None where it does not say."""
    named: Any = answer.headers.get("Retry-After")
    with suppress(HTTPError, ValueError, OverflowError):
        return None if named is None else min(float(RETRIES.parse_retry_after(named)), 60.0)
    return None


def _pause(seconds: float, show: Progress = lambda count: None) -> None:
    """Wait. `show` ends that where it raises, as it does after Ctrl-C."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
        show(0)
