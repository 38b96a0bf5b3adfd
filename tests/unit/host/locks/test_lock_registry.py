"""The digest behind a tag, from a registry that runs here, with the credentials of docker's configuration."""

import base64
import json
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest

from flagbench.images import parse_reference
from flagbench.locks.registry import RegistryError, base_digest, manifest_url

DIGEST = "sha256:" + "d" * 64
BASIC = "Basic " + base64.b64encode(b"ann:s3cret").decode()


class Handler(BaseHTTPRequestHandler):
    """`team/cuda:1` wants a token, `private/cuda:1` an account's token, `basic/cuda:1` the account itself."""

    def do_HEAD(self):
        self.server.asked.append((self.path, self.headers.get("Authorization"), self.headers.get("Accept")))
        name = self.path.removeprefix("/v2/").partition("/")[0]
        host, sent = self.headers["Host"], self.headers.get("Authorization")
        if name in ("team", "private") and sent != f"Bearer {name}":
            realm = f'Bearer realm="http://{host}/token",service="here",scope="repository:{name}:pull"'
            return self.answer(401, "WWW-Authenticate", realm)
        if name == "elsewhere":
            return self.answer(401, "WWW-Authenticate", f'Bearer realm="http://localhost:{host.split(":")[1]}/token"')
        if name == "basic" and sent != BASIC:
            return self.answer(401, "WWW-Authenticate", 'Basic realm="here"')
        if name == "garbage":
            return self.wfile.write(b"this is not a registry\r\n\r\n")
        if name == "odd":
            return self.answer(200, "Docker-Content-Digest", "sha256:short")
        if name == "busy" and len(self.server.asked) < 3:
            return self.answer(429, "Retry-After", "0")
        if name in ("gone", "broken"):
            return self.answer({"gone": 404, "broken": 503}[name])
        return self.answer(200, "Docker-Content-Digest", DIGEST)

    def do_GET(self):
        scope = parse_qs(urlsplit(self.path).query).get("scope", [""])[0]
        self.give_token(scope, self.headers.get("Authorization"))

    def do_POST(self):
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.give_token(form["scope"][0], form["refresh_token"][0])

    def give_token(self, scope, account):
        self.server.asked.append((urlsplit(self.path).path, account, scope))
        if "private" in scope and account not in (BASIC, "r3fresh"):
            return self.answer(401)
        body = json.dumps({"access_token": scope.split(":")[1] if scope else "any"}).encode()
        self.answer(200, "Content-Length", str(len(body)))
        self.wfile.write(body)

    def answer(self, code, *header):
        self.send_response(code)
        if header:
            self.send_header(*header)
        self.end_headers()


@pytest.fixture
def registry(serve, tmp_path, monkeypatch):
    """A registry and what it was asked, and docker without an account for it."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    server = serve(Handler)
    return server.host, server.asked


def log_in(folder, host, **entry):
    """What `docker login` leaves."""
    (folder / "config.json").write_text(json.dumps({"auths": {host: entry}}))


@pytest.mark.parametrize(
    ("image", "url"),
    [
        ("debian", "https://registry-1.docker.io/v2/library/debian/manifests/latest"),
        ("debian:bookworm-slim", "https://registry-1.docker.io/v2/library/debian/manifests/bookworm-slim"),
        ("index.docker.io/nvidia/cuda:11.8", "https://registry-1.docker.io/v2/nvidia/cuda/manifests/11.8"),
        ("docker.io/nvidia/cuda", "https://registry-1.docker.io/v2/nvidia/cuda/manifests/latest"),
        ("nvcr.io/nvidia/pytorch:22.04-py3", "https://nvcr.io/v2/nvidia/pytorch/manifests/22.04-py3"),
        ("host:5000/a:c", "https://host:5000/v2/a/manifests/c"),
        ("Team/a:b", "https://Team/v2/a/manifests/b"),
        ("localhost/a:b", "http://localhost/v2/a/manifests/b"),
    ],
)
def test_names_are_read_as_docker_reads_them(image, url):
    assert manifest_url(parse_reference(image)) == url


def test_a_free_image(registry):
    host, seen = registry
    assert base_digest(f"{host}/open/cuda:1") == DIGEST
    ((path, authorization, accept),) = seen
    assert (path, authorization) == ("/v2/open/cuda/manifests/1", None)
    assert "manifest.list" in accept
    assert "oci.image.index" in accept


def test_a_token_is_fetched_where_the_registry_says(registry):
    host, seen = registry
    assert base_digest(f"{host}/team/cuda:1") == DIGEST
    assert [path for path, _, _ in seen] == ["/v2/team/cuda/manifests/1", "/token", "/v2/team/cuda/manifests/1"]
    assert seen[1][1:] == (None, "repository:team:pull")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("private", {"auth": base64.b64encode(b"ann:s3cret").decode()}),
        ("private", {"auth": base64.b64encode(b"ann:").decode(), "identitytoken": "r3fresh"}),
        ("basic", {"auth": base64.b64encode(b"ann:s3cret").decode()}),
    ],
)
def test_docker_s_account_opens_what_it_may_read(name, entry, registry, tmp_path):
    host, _ = registry
    with pytest.raises(RegistryError) as caught:
        base_digest(f"{host}/{name}/cuda:1")
    assert "login" in str(caught.value)
    log_in(tmp_path, host, **entry)
    assert base_digest(f"{host}/{name}/cuda:1") == DIGEST


def test_an_account_is_not_sent_to_another_host_without_tls(registry, tmp_path):
    host, seen = registry
    log_in(tmp_path, host, auth=base64.b64encode(b"ann:s3cret").decode())
    with pytest.raises(RegistryError):
        base_digest(f"{host}/elsewhere/cuda:1")
    assert BASIC not in {sent for _, sent, _ in seen}


def test_an_account_of_netrc_is_not_docker_s(registry, tmp_path, monkeypatch):
    host, seen = registry
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert base_digest(f"{host}/team/cuda:1") == DIGEST
    assert BASIC not in {sent for _, sent, _ in seen}


def test_a_busy_registry_is_asked_again_when_it_says(registry):
    host, seen = registry
    assert base_digest(f"{host}/busy/cuda:1") == DIGEST
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("basic", "login"),
        ("gone", "tag"),
        ("broken", "503"),
        ("odd", "no digest"),
        ("garbage", "this is not a registry"),
    ],
)
def test_refusals(registry, name, why):
    host, _ = registry
    with pytest.raises(RegistryError) as caught:
        base_digest(f"{host}/{name}/cuda:1")
    assert why in str(caught.value)


def test_nobody_there(registry):
    with pytest.raises(RegistryError) as caught:
        base_digest("127.0.0.1:1/open/cuda:1")
    assert "127.0.0.1:1 could not be reached" in str(caught.value)
    assert str(caught.value).endswith("Connection refused")
