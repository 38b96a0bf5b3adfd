"""A real S3 server, which `.ci/storage` starts, and a proxy before it that does what networks do."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flagbench.cli import main
from flagbench.records.store import Store, open_store
from running import need
from unit.host.conftest import Ended
from warmup import warm

ROOT = Path(__file__).parents[2]
# Of the person who runs the tests; a test sets its own.
VARIABLES = (
    *("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"),
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """The server, as the AWS_ variables name it, and a boto3 client of its own."""
    if "FLAGBENCH_TEST_WITHOUT_S3" in os.environ:
        pytest.skip("FLAGBENCH_TEST_WITHOUT_S3 is set")
    need("FLAGBENCH_TEST_S3" in os.environ, "an S3 server: `.ci/storage start DIR` and DIR/env")
    boto3 = pytest.importorskip("boto3")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["FLAGBENCH_TEST_S3"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["FLAGBENCH_TEST_S3_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["FLAGBENCH_TEST_S3_SECRET"])
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "own-store"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return boto3.client("s3", region_name="us-east-1", config=_plain())


def _plain() -> Any:
    from botocore.config import Config

    return Config(signature_version="s3v4", s3={"addressing_style": "path"})


@pytest.fixture
def bucket(server: Any) -> Iterator[str]:
    """The name of an empty bucket, removed with everything in it."""
    name = f"flagbench-{uuid.uuid4().hex[:12]}"
    server.create_bucket(Bucket=name)
    yield name
    found = server.list_object_versions(Bucket=name)
    for each in (*found.get("Versions", ()), *found.get("DeleteMarkers", ())):
        server.delete_object(Bucket=name, Key=each["Key"], VersionId=each["VersionId"])
    server.delete_bucket(Bucket=name)


@pytest.fixture
def store(bucket: str) -> Store:
    """A store below a prefix of that bucket."""
    return open_store(f"s3://{bucket}/some/prefix")


@pytest.fixture
def flagbench(server: Any, tmp_path: Path) -> Any:
    """Runs the command line; no secret may be in what it prints."""

    def run(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(str(ROOT / name) for name in ("builder", "entrypoints"))
        environment = {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1", **warm(path)}
        command = [sys.executable, "-m", "flagbench", *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, input=input)
        for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
            assert os.environ[name] not in ended.stdout + ended.stderr
        return ended

    return run


Fault = Callable[[str, str, int], "str | tuple[int, str] | None"]
"""What happens to a request, from its method, its path and how many of that method there were.

None: nothing. A status and a code are answered in the server's place. `lost`: it arrives, its answer does not. `cut`:
the answer ends in the middle of its body, `reset`: the connection breaks there. `slow`: it comes in small pieces.
"""


class Proxy(ThreadingHTTPServer):
    """Passes requests on to the server; `fault` says what happens to one."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target)
        self.fault: Fault = lambda method, path, count: None
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self._held: tuple[str, int] | None = None
        self._arrived, self._released = threading.Event(), threading.Event()
        self.connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def hold(self, method: str, past: int) -> threading.Event:
        """Keep back all requests of a method from now on, but the first `past`; the event says that one came."""
        self._held, self._arrived, self._released = (method, past), threading.Event(), threading.Event()
        return self._arrived

    def release(self) -> None:
        """Keep nothing back any more. What was kept back until now never arrives."""
        self._held = None
        self._released.set()

    def keeps_back(self, method: str) -> bool:
        """Whether a request is lost, after it was kept back."""
        with self.lock:
            if self._held is None or self._held[0] != method:
                return False
            self._held = (method, self._held[1] - 1)
            if self._held[1] >= 0:
                return False
        self._arrived.set()
        self._released.wait()
        return True

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection, remembered."""
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def close(self) -> None:
        """End every connection, which clients keep open, and with it its thread. Others are refused from now on."""
        self.release()
        self.shutdown()
        self.socket.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.path}")
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            same = sum(each.startswith(f"{self.command} ") for each in self.server.requests)
        fault = self.server.fault(self.command, self.path, same)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.keeps_back(self.command):
            self.close_connection = True
            return
        if isinstance(fault, tuple):
            status, code = fault
            self.close_connection = True
            text = f"<Error><Code>{code}</Code><Message>as asked</Message></Error>".encode()
            self._answer(
                status, [("Content-Length", str(len(text))), ("Content-Type", "application/xml")], text, None
            )
            return
        connection = http.client.HTTPConnection(self.server.target.netloc, timeout=30)
        # The host is signed: the server has to see the one that the client named.
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in ("connection", "transfer-encoding")]
        if "content-length" not in {name.lower() for name, _ in headers} and self.command != "HEAD":
            headers.append(("Content-Length", str(len(content))))
        if fault == "lost":
            self._reset()
            return
        self._answer(answer.status, headers, content, fault)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, fault: str | None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if fault == "cut":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "reset":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self._reset()
        elif fault == "slow":
            for index in range(0, len(content), 64):
                self.wfile.write(content[index : index + 64])
                self.wfile.flush()
                time.sleep(0.005)
        else:
            self.wfile.write(content)

    def _reset(self) -> None:
        """Break the connection off, so that the client reads an error and no end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture
def proxy(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy, through which stores that are opened from now on reach the server."""
    with Proxy(os.environ["FLAGBENCH_TEST_S3"]) as passing:
        thread = threading.Thread(target=passing.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", passing.url)
        try:
            yield passing
        finally:
            passing.close()
            thread.join()


@pytest.fixture
def typed(server: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the command line in this process; no secret may be in what it says."""

    def run(*arguments: str) -> Ended:
        ended = Ended(main.run(arguments), *capsys.readouterr())
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in ended.out + ended.err
        return ended

    return run
