"""What the tests of locks share: a small stack, and servers that run here."""

import dataclasses
import threading
from http.server import ThreadingHTTPServer

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


@pytest.fixture
def serve():
    """Starts a server with a handler of requests: its `host`, and in `asked` whatever the handler puts there."""
    servers = []

    def serve(handler):
        handler.log_message = lambda *_: None
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
