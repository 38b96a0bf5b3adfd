"""Which indexes refuse to be asked, over a server that runs here."""

import base64

import pytest

from flagbench.locks.session import refusing_indexes

ACCOUNT = "Basic " + base64.b64encode(b"reader:p@ss").decode()


@pytest.fixture
def stack(make_stack):
    return make_stack(packages=("torch==2.6.0+cu118", "Py_CPUInfo==9.0.0"))


@pytest.fixture
def server(serve):
    """Indexes in folders that answer with their name; `private` wants an account; `store` has torch alone."""

    def respond(server, asked):
        _, index, name, _ = asked.path.split("/")
        if index == "private":
            return 200 if asked.account == ACCOUNT else 401, {}, b""
        if index == "store":
            return 200 if name == "torch" else 403, {}, b""
        return int(index), {}, b""

    return serve(respond)


@pytest.mark.parametrize("status", [401, 403, 407])
def test_an_index_that_refuses_every_package(stack, server, status):
    index = f"http://{server.host}/{status}"
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": index}, None) == {index: status}
    assert [asked.path.split("/")[2] for asked in server.asked] == ["torch", "py-cpuinfo", "flash-attn"]


@pytest.mark.parametrize(
    "index",
    [
        *(f"http://{{}}/{folder}" for folder in ("200", "404", "503")),
        "http://{}/store",  # as an object store refuses what it does not have
        "http://reader:p%40ss@{}/private",
        "http://127.0.0.1:1/simple",
        "https://[bad",
        "file:///nowhere",
    ],
)
def test_an_index_that_answers_or_cannot_be_asked(stack, server, index):
    assert refusing_indexes(stack, {"UV_DEFAULT_INDEX": index.format(server.host)}, None) == {}


def test_only_those_that_refuse_are_named(stack, server):
    default, vendor = f"http://{server.host}/404/", f"http://reader:wrong@{server.host}/private/"
    environment = {"UV_DEFAULT_INDEX": default, "UV_INDEX": f"vendor={vendor}"}
    assert refusing_indexes(stack, environment, None) == {vendor: 401}


def test_none_is_asked_where_uv_asks_none(stack, server):
    environment = {"UV_DEFAULT_INDEX": f"http://{server.host}/403", "UV_NO_INDEX": "1"}
    assert refusing_indexes(stack, environment, None) == {}
    assert server.asked == []
