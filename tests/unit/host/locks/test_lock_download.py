"""Sources from an index that wants an account, cuts a file off or is none: over a server that runs here."""

import base64
import dataclasses
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from requests import Request

from flagbench.catalog.load import load_catalog
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import LockEntry, fetch
from flagbench.locks.fetch import fetch_source
from flagbench.locks.session import index_session, new_session
from flagbench.locks.sources import Sources
from flagbench.locks.urls import check_url
from flagbench.locks.uv import Found

FILE = "flash_attn-2.7.3+cu118.tar.gz"
CONTENT = b"source" * 1000
ENTRY = LockEntry("flash-attn", "2.7.3+cu118", ("sha256:" + "0" * 64,))
ACCOUNT = "Basic " + base64.b64encode(b"reader:p@ss/w").decode()


@pytest.fixture
def serve():
    """Starts a server with the source under `/private/` and other answers elsewhere; it keeps what it was asked."""
    servers = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            account = self.headers.get("Authorization")
            self.server.asked.append((self.path, account))
            folder = self.path.split("/")[1]
            if folder == "garbage":
                self.wfile.write(b"this is not a web server\r\n\r\n")
            elif folder == "moved":
                self.answer(302, Location=self.server.target)
            elif folder == "private" and account != ACCOUNT:
                self.answer(403 if account else 401)
            else:
                length = len(CONTENT) if folder != "cut" else 100_000
                self.answer(200, **{"Content-Length": str(length)})
                self.wfile.write(CONTENT[:5000] if folder == "cut" else CONTENT)

        def answer(self, code, **headers):
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_):
            pass

    def start():
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.asked = []
        server.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """Fetches the source from the address that uv would have found; returns the files that came."""
    compiled = load_catalog().stacks["a100-cuda11.8"]

    def fetched(url, *indexes, **environ):
        found = [Found(ENTRY.name, ENTRY.version, ENTRY.hashes, (), url)]
        monkeypatch.setattr(fetch, "resolve", lambda *_: found)
        monkeypatch.setattr(fetch, "pip_configuration", lambda _: {})
        stack = dataclasses.replace(compiled, build=dataclasses.replace(compiled.build, indexes=()))
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        sources = Sources(indexes, environ=environ)
        folder = tmp_path / "file"
        folder.mkdir()
        fetch_source(stack, ENTRY, folder, sources, {})
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    return fetched


def refused(fetched, *arguments, **environ):
    with pytest.raises(FlagbenchError) as caught:
        fetched(*arguments, **environ)
    assert caught.value.message.startswith(f"{ENTRY.pin} could not be fetched: ")
    assert caught.value.code is ExitCode.ENGINE
    assert "p@ss" not in caught.value.message + caught.value.remedy
    return caught.value


def test_the_account_of_the_index_is_sent(serve, fetched):
    server = serve()
    files = fetched(f"http://{server.host}/private/{FILE}", f"http://reader:p%40ss%2Fw@{server.host}/simple")
    assert files == {FILE: CONTENT}
    assert server.asked == [(f"/private/{FILE}", ACCOUNT)]


def test_a_name_is_unquoted(serve, fetched):
    assert list(fetched(f"http://{serve().host}/open/{FILE.replace('+', '%2B')}?from=index")) == [FILE]


def test_a_name_with_a_folder_in_it_stays_in_the_folder(serve, fetched):
    assert list(fetched(f"http://{serve().host}/open/..%2F..%2F{FILE}")) == [FILE]


@pytest.mark.parametrize("setting", ["UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"])
def test_accounts_of_uvs_own_settings_are_sent(serve, fetched, setting):
    server = serve()
    name = "mirror=" if setting == "UV_INDEX" else ""
    index = f"{name}http://reader:p%40ss%2Fw@{server.host}/simple"
    assert fetched(f"http://{server.host}/private/{FILE}", **{setting: index}) == {FILE: CONTENT}


def test_an_account_in_netrc_is_sent(serve, fetched, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login reader password p@ss/w\n")
    assert fetched(f"http://{serve().host}/private/{FILE}") == {FILE: CONTENT}


def test_an_account_in_the_files_own_address_is_sent_and_not_shown(serve, fetched):
    host = serve().host
    assert fetched(f"http://reader:p%40ss%2Fw@{host}/private/{FILE}") == {FILE: CONTENT}


def test_a_redirection_takes_the_account_to_no_other_host(serve, fetched):
    """To the same one it is sent again."""
    index, elsewhere = serve(), serve()
    index.target = f"http://{elsewhere.host}/open/{FILE}"
    account = f"http://reader:p%40ss%2Fw@{index.host}/simple"
    assert fetched(f"http://{index.host}/moved/{FILE}", account) == {FILE: CONTENT}
    assert index.asked == [(f"/moved/{FILE}", ACCOUNT)]
    assert elsewhere.asked == [(f"/open/{FILE}", None)]


def test_a_redirection_on_the_same_host_keeps_the_account(serve, fetched):
    index = serve()
    index.target = f"http://{index.host}/private/{FILE}"
    account = f"http://reader:p%40ss%2Fw@{index.host}/simple"
    assert fetched(f"http://{index.host}/moved/{FILE}", account) == {FILE: CONTENT}


def test_no_account_or_the_wrong_one(serve, fetched, tmp_path):
    server = serve()
    url = f"http://{server.host}/private/{FILE}"
    assert "wants an account" in refused(fetched, url).message
    (tmp_path / "file").rmdir()
    assert "wants an account" in refused(fetched, url, f"http://other:p@{server.host}/simple").message
    assert [bool(account) for _, account in server.asked] == [False, True]


def test_a_download_that_is_cut_off_is_no_tampering(serve, fetched):
    error = refused(fetched, f"http://{serve().host}/cut/{FILE}")
    assert "the connection ended before the file did" in error.message
    assert "run the command again" in error.remedy


def test_a_server_that_does_not_speak_http(serve, fetched):
    assert "this is not a web server" in refused(fetched, f"http://{serve().host}/garbage/{FILE}").message


def sent(url, **environment):
    """The account that a request to an address is sent with."""
    with index_session(environment, None) as session:
        return session.prepare_request(Request("GET", url)).headers.get("Authorization")


@pytest.mark.parametrize("url", ["https://host.example:443/x", "https://HOST.example/elsewhere"])
def test_an_account_is_for_its_origin(url):
    assert sent(url, UV_INDEX="https://a:b@host.example/simple") == "Basic YTpi"


@pytest.mark.parametrize(
    "url", ["http://host.example/x", "https://host.example:8443/x", "https://host.example.org/x"]
)
def test_an_account_is_for_nothing_else(url, monkeypatch):
    monkeypatch.setenv("NETRC", "/dev/null")
    assert sent(url, UV_INDEX="https://a:b@host.example/simple https://[bad") is None


def test_a_token_alone_is_an_account_without_a_password():
    token = "Basic " + base64.b64encode(b"t0k:").decode()
    assert sent("https://host.example/f", UV_DEFAULT_INDEX="https://t0k@host.example/") == token


@pytest.mark.parametrize("open_session", [lambda ca: index_session({}, ca), new_session])
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


def test_a_netrc_that_cannot_be_read_has_no_account(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert sent("https://host.example/f") is None


def test_a_folder_is_an_index_where_that_is_allowed():
    assert check_url("file:///srv/index", "--pip-source", ("https", "file")) == "file:///srv/index"
    with pytest.raises(FlagbenchError) as caught:
        check_url("file:///srv/index", "--pip-source")
    assert "--pip-source" in caught.value.message
