"""Which indexes refuse to be asked, over a server that runs here."""

import base64
import dataclasses
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.locks.index_access import refusing_indexes

ACCOUNT = "Basic " + base64.b64encode(b"reader:p@ss").decode()


@pytest.fixture
def stack():
    stack = load_catalog().stacks["a100-cuda11.8"]
    compiled = tuple(package for package in stack.build.compiled if package.name == "flash-attn")
    packages = ("torch==2.6.0+cu118", "Py_CPUInfo==9.0.0")
    build = dataclasses.replace(stack.build, packages=packages, optional=(), compiled=compiled)
    return dataclasses.replace(stack, build=build)


@pytest.fixture
def server():
    """Indexes in folders that answer with their name; `private` wants an account; `store` has torch alone."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            _, index, name, _ = self.path.split("/")
            self.server.asked.append((index, name))
            if index == "private":
                code = 200 if self.headers.get("Authorization") == ACCOUNT else 401
            elif index == "store":
                code = 200 if name == "torch" else 403
            else:
                code = int(index)
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    server.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status", [401, 403, 407])
def test_an_index_that_refuses_every_package(stack, server, status):
    index = f"http://{server.host}/{status}"
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": index}, None) == {index: status}
    assert [name for _, name in server.asked] == ["torch", "py-cpuinfo", "flash-attn"]


@pytest.mark.parametrize("folder", ["200", "404", "503", "store"])
def test_an_index_that_answers(stack, server, folder):
    """Also one that refuses what it does not have, as an object store does."""
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": f"http://{server.host}/{folder}"}, None) == {}


def test_each_index_is_asked_with_its_account(stack, server):
    good, bad = (f"http://reader:{word}@{server.host}/private" for word in ("p%40ss", "wrong"))
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": good}, None) == {}
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": bad}, None) == {bad: 401}


def test_only_those_that_refuse_are_named(stack, server):
    default, vendor = f"http://{server.host}/404/", f"http://{server.host}/403/"
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": default, "UV_INDEX": f"vendor={vendor}"}, None) == {
        vendor: 403
    }


@pytest.mark.parametrize("index", ["http://127.0.0.1:1/simple", "https://[bad", "file:///nowhere"])
def test_an_index_that_cannot_be_asked_refuses_nothing(stack, index):
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": index}, None) == {}


def test_none_is_asked_where_uv_asks_none(stack, server):
    environment = {"UV_DEFAULT_INDEX": f"http://{server.host}/403", "UV_NO_INDEX": "1"}
    assert refusing_indexes(stack, environment, None) == {}
    assert server.asked == []
