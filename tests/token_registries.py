"""A registry that issues tokens, which the real one of the tests does not, or that misbehaves."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from flagbench.oci.model import Blob, Descriptor, digest_of

LAYER = b"a layer of the base"
DENIED = b'{"errors": [{"code": "DIGEST_INVALID", "message": "provided digest did not match uploaded content"}]}'
DIFF_ID = "sha256:" + hashlib.sha256(b"uncompressed").hexdigest()
CONFIG = json.dumps({"rootfs": {"type": "layers", "diff_ids": [DIFF_ID]}}).encode()
GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
ACCOUNT = "Basic " + base64.b64encode(b"ann:s3cret").decode()


def base_manifest(**changes: Any) -> bytes:
    """The manifest of a base of one layer."""
    plain = {
        "schemaVersion": 2,
        "config": {"mediaType": "x", "digest": digest_of(CONFIG), "size": len(CONFIG)},
        "layers": [{"mediaType": GZIP, "digest": digest_of(LAYER), "size": len(LAYER)}],
    }
    return json.dumps({**plain, **changes}).encode()


class Server(ThreadingHTTPServer):
    """A registry that wants a token for each scope; its blobs and manifests are what a test puts here."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []
        self.tokens: list[tuple[str | None, list[str]]] = []
        self.blobs = {digest_of(each): each for each in (LAYER, CONFIG)}
        self.manifests = {digest_of(base_manifest()): base_manifest()}
        self.mounts = 201
        """The status of an answer to a mount; 0: the token service refuses the account for two repositories."""
        self.expires = 0
        """How many further uploads are refused although they have a token."""
        self.token: bytes | None = None
        """What the token service answers instead of a token."""
        self.location = "{path}session?state=1"
        """Where a layer is to be uploaded to, from the path of the request."""
        self.faults: list[tuple[str, int, dict[str, str]]] = []
        """Beginning of a request, status (400 denies a digest) and headers of the next answers to such requests."""
        self.sent: list[tuple[str, dict[str, str]]] = []
        """Method and path, and the headers of every request."""
        self.cut = 0
        """How many further answers with a blob break off in the middle."""


class Handler(BaseHTTPRequestHandler):
    """Answers as a registry does."""

    server: Server

    def answer(self) -> None:
        """Any request."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url, server = urlsplit(self.path), self.server
        server.sent.append((f"{self.command} {self.path}", {**self.headers}))
        if url.path == "/token":
            scopes = parse_qs(url.query)["scope"]
            server.tokens.append((self.headers.get("Authorization"), scopes))
            token = json.dumps({"token": "for " + " ".join(sorted(scopes))}).encode()
            self.reply(401 if len(scopes) > 1 and not server.mounts else 200, server.token or token)
            return
        for fault in server.faults:
            if f"{self.command} {self.path}".startswith(fault[0]):
                server.faults.remove(fault)
                self.reply(fault[1], DENIED if fault[1] == HTTPStatus.BAD_REQUEST else b"", headers=fault[2])
                return
        server.asked.append(f"{self.command} {self.path}")
        repository = url.path.removeprefix("/v2/").rpartition("/blobs")[0] or "team/x"
        held = self.headers.get("Authorization", "")
        writes = self.command not in ("GET", "HEAD")
        expired = self.command == "PUT" and "/blobs/" in url.path and server.expires > 0
        server.expires -= expired
        if f"repository:{repository}:pull{',push' if writes else ''}" not in held or expired:
            realm = f'Bearer realm="http://{server.host}/token",service="here",scope="repository:{repository}:pull"'
            self.reply(401, headers={"WWW-Authenticate": realm})
            return
        self.registry(url.path, parse_qs(url.query))

    def registry(self, path: str, query: dict[str, list[str]]) -> None:
        """A request with a token."""
        last, server = path.rpartition("/")[2], self.server
        kept = server.manifests if "/manifests/" in path else server.blobs
        if self.command in ("GET", "HEAD"):
            content = kept.get(last)
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
            headers = {"Content-Range": f"bytes {begin}-"} if begin else {}
            status = 404 if content is None else 206 if begin else 200
            self.reply(status, (content or b"")[begin:], headers)
        elif self.command == "PUT" and "/manifests/" in path:
            kept[last] = self.body
            self.reply(201, headers={"OCI-Subject": "sha256:x"})
        elif "mount" in query and server.mounts != 202:
            if server.mounts == 201:
                server.blobs[query["mount"][0]] = b"mounted"
            self.reply(server.mounts)
        elif self.command == "POST":
            self.reply(202, headers={"Location": server.location.format(path=path)})
        elif self.command == "DELETE":
            self.reply(204)
        else:
            server.blobs[query["digest"][0]] = self.body
            self.reply(201)

    def reply(self, code: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """One answer."""
        self.send_response_only(code)
        for header in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(*header)
        self.end_headers()
        if content and self.command == "GET" and self.server.cut and "/blobs/" in self.path:
            self.server.cut -= 1
            content = content[: len(content) // 2]
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@contextmanager
def serving() -> Iterator[Server]:
    """A registry, until the block ends."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def blob(folder: Path, *origins: str) -> Blob:
    """A blob in a file."""
    path = folder / "blob"
    path.write_bytes(b"content")
    return Blob(Descriptor("application/x", digest_of(b"content"), 7), lambda show: path, origins)
