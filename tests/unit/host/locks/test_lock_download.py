"""Sources from an index that wants an account, cuts a file off or is none: over a server that runs here."""

import base64

import pytest
from requests import Request

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import fetch
from flagbench.locks.fetch import fetch_source
from flagbench.locks.model import LockEntry
from flagbench.locks.session import IndexSession, PlainSession
from flagbench.locks.sources import Sources
from flagbench.locks.uv import Found

FILE = "flash_attn-2.7.3+cu118.tar.gz"
CONTENT = b"source" * 1000
ENTRY = LockEntry("flash-attn", "2.7.3+cu118", ("sha256:" + "0" * 64,))
ACCOUNT = "Basic " + base64.b64encode(b"reader:p@ss/w").decode()
INDEX = "http://reader:p%40ss%2Fw@{}/simple"


def respond(server, asked):
    """Has the source under `/private/` for an account, and other answers elsewhere."""
    folder = asked.path.split("/")[1]
    if folder == "garbage":
        return None, {}, b"this is not a web server\r\n\r\n"
    if folder == "moved":
        return 302, {"Location": server.target}, b""
    if folder == "private" and asked.account != ACCOUNT:
        return 403 if asked.account else 401, {}, b""
    return 200, {"Content-Length": str(100_000 if folder == "cut" else len(CONTENT))}, CONTENT


@pytest.fixture
def server(serve):
    return serve(respond)


@pytest.fixture
def fetched(make_stack, monkeypatch, tmp_path):
    """Fetches the source from the URL that uv would have found; returns the files that came."""

    def fetched(url, *indexes, **environ):
        found = [Found(ENTRY.name, ENTRY.version, ENTRY.hashes, (), url)]
        monkeypatch.setattr(fetch, "resolve", lambda *_: found)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        folder = tmp_path / "file"
        folder.mkdir(exist_ok=True)
        fetch_source(make_stack(), ENTRY, folder, Sources(indexes, environ=environ), {})
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    return fetched


@pytest.mark.parametrize("path", [FILE.replace("+", "%2B") + "?from=index", f"..%2F..%2F{FILE}"])
def test_a_name_is_unquoted_and_stays_in_the_folder(server, fetched, path):
    assert list(fetched(f"http://{server.host}/open/{path}")) == [FILE]


@pytest.mark.parametrize(
    "place",
    ["UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "--pip-source", "netrc", "the URL itself"],
)
def test_the_account_of_an_index_is_sent(server, fetched, place, tmp_path):
    index = INDEX.format(server.host)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login reader password p@ss/w\n" if place == "netrc" else "")
    account = "reader:p%40ss%2Fw@" if place == "the URL itself" else ""
    environ = {place: f"mirror={index}" if place == "UV_INDEX" else index} if place.startswith("UV") else {}
    indexes = [index] if place == "--pip-source" else []
    assert fetched(f"http://{account}{server.host}/private/{FILE}", *indexes, **environ) == {FILE: CONTENT}
    assert [asked[:2] for asked in server.asked] == [(f"/private/{FILE}", ACCOUNT)]


def test_a_redirection_takes_the_account_to_no_other_host(server, serve, fetched):
    elsewhere = serve(respond)
    server.target = f"http://{elsewhere.host}/open/{FILE}"
    assert fetched(f"http://{server.host}/moved/{FILE}", INDEX.format(server.host)) == {FILE: CONTENT}
    assert [asked.account for asked in (*server.asked, *elsewhere.asked)] == [ACCOUNT, None]
    server.target = f"http://{server.host}/private/{FILE}"
    assert fetched(f"http://{server.host}/moved/{FILE}", INDEX.format(server.host)) == {FILE: CONTENT}


@pytest.mark.parametrize(
    ("folder", "account", "said"),
    [
        ("private", "", "wants an account"),
        ("private", "other:p%40ss@", "wants an account"),
        ("cut", "", "the connection ended before the file did"),  # which is no tampering
        ("garbage", "", "this is not a web server"),
    ],
)
def test_a_source_that_cannot_be_fetched(server, fetched, folder, account, said):
    with pytest.raises(FlagbenchError) as caught:
        fetched(f"http://{server.host}/{folder}/{FILE}", f"http://{account}{server.host}/simple")
    assert caught.value.message.startswith(f"{ENTRY.pin} could not be fetched: ")
    assert said in caught.value.message
    assert caught.value.code is ExitCode.ENGINE
    assert "p@ss" not in caught.value.message + caught.value.remedy
    assert {bool(asked.account) for asked in server.asked} == {bool(account)}


def sent(url, **environment):
    """The account that a request to a URL is sent with."""
    with IndexSession(environment, None) as session:
        return session.prepare_request(Request("GET", url)).headers.get("Authorization")


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("https://host.example:443/x", "Basic YTpi"),
        ("https://HOST.example/elsewhere", "Basic YTpi"),
        ("https://token.example/f", "Basic " + base64.b64encode(b"t0k:").decode()),
        ("http://host.example/x", None),
        ("https://host.example:8443/x", None),
        ("https://host.example.org/x", None),
    ],
)
def test_an_account_is_for_its_origin_alone(url, account, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine")  # cannot be read
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert sent(url, UV_INDEX="https://a:b@host.example/simple https://t0k@token.example/ https://[bad") == account


@pytest.mark.parametrize("open_session", [lambda ca: IndexSession({}, ca), PlainSession])
def test_the_given_certificates_are_trusted_instead_of_the_environment_s(open_session, tmp_path, monkeypatch):
    def trusted(ca_bundle):
        with open_session(ca_bundle) as session:
            return session.merge_environment_settings("https://host.example/f", {}, None, None, None)["verify"]

    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    (tmp_path / "system.pem").touch()
    assert trusted(None) == str(tmp_path / "system.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/environment.pem")
    assert trusted(None) == "/environment.pem"
    assert trusted(tmp_path / "mine.pem") == str(tmp_path / "mine.pem")
