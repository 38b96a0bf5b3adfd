"""An engine that is not there: an HTTP server on a Unix socket that answers what a test tells it to."""

import json
import socket
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

RECORDED = Path(__file__).parent / "recorded"
VERSION = {"Version": "20.10.24", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"}


@pytest.fixture(scope="session")
def recorded():
    """The lines that a Docker Engine 20.10.24 answered a build with, by the name of what was built."""
    return lambda name: (RECORDED / f"{name}.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="session")
def encode():
    """A protobuf message of (number, value) pairs, values being int, str, bytes or another list of pairs."""

    def varint(value):
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(out) + bytes([value])

    def message(pairs):
        out = b""
        for number, value in pairs:
            if isinstance(value, int):
                out += varint(number << 3) + varint(value)
            else:
                raw = (
                    message(value) if isinstance(value, list) else value.encode() if isinstance(value, str) else value
                )
                out += varint(number << 3 | 2) + varint(len(raw)) + raw
        return out

    return message


class FakeEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers by `answers`, path (without version) to status and JSON, and streams `lines` to a build or a pull."""

    daemon_threads = True

    def __init__(self, path):
        super().__init__(str(path), _Handler)
        self.path = str(path)
        self.answers = {"/version": (200, VERSION)}
        self.lines = []
        self.ending = "complete"
        self.requests = []
        self.body = b""
        self.silent = False
        self.client_gone = threading.Event()
        self.over = threading.Event()

    def handle_error(self, request, client_address):
        """Clients that go away are what some tests are about; anything else is printed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Nothing: the tests look at the requests."""

    def do_GET(self):
        self._note()
        if self.server.silent:
            self.server.over.wait()
            self.close_connection = True
            return
        status, answer = self.server.answers.get(self.path_only, (404, {"message": f"no such image: {self.path}"}))
        self._json(status, answer)

    def do_POST(self):
        self._note()
        self.server.body = b"".join(self._chunks())
        if self.path_only in self.server.answers:
            self._json(*self.server.answers[self.path_only])
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in self.server.lines:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            if self.server.ending == "complete":
                self.wfile.write(b"0\r\n\r\n")
            # What a build with a long step looks like: the client reads on, until it goes away.
            gone = self.server.ending == "hang" and self.connection.recv(1) == b""
        except ConnectionError:
            gone = True
        if gone:
            self.server.client_gone.set()
        self.close_connection = True

    def _note(self):
        split = urlsplit(self.path)
        version, slash, rest = split.path[1:].partition("/")
        self.path_only = unquote(slash + rest if version.startswith("v1.") else split.path)
        self.server.requests.append((self.command, self.path_only, parse_qs(split.query), dict(self.headers)))

    def _chunks(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return
        # No length at all: the client gave up.
        while size := int(self.rfile.readline() or b"0", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _json(self, status, answer):
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status >= 500:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def fake_engine(tmp_path, monkeypatch):
    """A running FakeEngine that docker's settings name; no other setting of this machine counts."""
    for name in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    engine = FakeEngine(tmp_path / "engine")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.path}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield engine
    engine.over.set()
    engine.shutdown()
    thread.join()
    engine.server_close()


@pytest.fixture
def unused_port():
    """A TCP port that nobody listens on; bound for the test's duration, so that nobody else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
