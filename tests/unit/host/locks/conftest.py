"""What the tests of locks share: a small stack, and servers that run here."""

import dataclasses
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.locks import session
from flagbench.locks.sources import Sources

PIP = vars(Sources)["pip"]


@pytest.fixture(autouse=True)
def _as_without_settings(monkeypatch):
    """Requests are retried at once, and pip is not configured."""
    monkeypatch.setattr(session.RETRIES, "backoff_factor", 0)
    monkeypatch.setattr(Sources, "pip", {})


@pytest.fixture
def real_pip(monkeypatch):
    """The configuration of this Python's pip counts."""
    monkeypatch.setattr(Sources, "pip", PIP)


@pytest.fixture
def make_stack():
    """The stack of CUDA 11.8 with two packages, and one to compile; some of `build` may be another."""

    def make_stack(**build):
        stack = load_catalog().stacks["a100-cuda11.8"]
        packages = ("torch==2.6.0+cu118", "numpy==2.2.6")
        compiled = tuple(package for package in stack.build.compiled if package.name == "flash-attn")
        small = {"packages": packages, "optional": (), "compiled": compiled, "indexes": (), **build}
        return dataclasses.replace(stack, build=dataclasses.replace(stack.build, **small))

    return make_stack


class Asked(NamedTuple):
    """A request that a server got."""

    path: str
    account: str | None
    accept: str
    body: str


@pytest.fixture
def serve():
    """Starts a server that answers with `respond(server, asked)`: a status (None: no HTTP), headers and content."""
    servers = []

    def serve(respond):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                asked = Asked(self.path, self.headers.get("Authorization"), self.headers.get("Accept"), body)
                server.asked.append(asked)
                code, headers, content = respond(server, asked)
                if code:
                    self.send_response(code)
                    for header in headers.items():
                        self.send_header(*header)
                    self.end_headers()
                self.wfile.write(content)

            do_HEAD = do_POST = do_GET

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.asked = []
        server.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return server

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()
