"""The digest behind a tag, from a registry that runs here, with the credentials of docker's configuration."""

import base64
import json
import re
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from flagbench.images import parse_reference
from flagbench.locks.registry import base_digest, manifest_url
from flagbench.locks.registry_login import RegistryError

DIGEST = "sha256:" + "d" * 64
BASIC = "Basic " + base64.b64encode(b"ann:s3cret").decode()


def respond(server, asked):
    """`team/cuda:1` wants a token, `private/cuda:1` an account's token, `basic/cuda:1` the account itself."""
    url = urlsplit(asked.path)
    if url.path == "/token":
        scope = parse_qs(url.query or asked.body).get("scope", [""])[0]
        if "private" in scope and asked.account != BASIC and "refresh_token=r3fresh" not in asked.body:
            return 401, {}, b""
        return 200, {}, json.dumps({"access_token": scope.split(":")[1] if scope else "any"}).encode()
    name = url.path.split("/")[2]
    realm = None
    if name in ("team", "private") and asked.account != f"Bearer {name}/cuda":
        realm = f'Bearer realm="http://{server.host}/token",service="here",scope="repository:{name}/cuda:pull"'
    elif name == "elsewhere":
        realm = f'Bearer realm="http://localhost:{server.server_port}/token"'
    elif name == "basic" and asked.account != BASIC:
        realm = 'Basic realm="here"'
    elif name == "garbage":
        return None, {}, b"this is not a registry\r\n\r\n"
    elif name == "busy" and len(server.asked) < 3:
        return 429, {"Retry-After": "7"}, b""
    if realm:
        return 401, {"WWW-Authenticate": realm}, b""
    digest = "sha256:short" if name == "odd" else DIGEST
    return {"gone": 404, "broken": 503}.get(name, 200), {"Docker-Content-Digest": digest}, b""


@pytest.fixture
def registry(serve, tmp_path, monkeypatch):
    """A registry and what it was asked, and docker without an account for it."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return serve(respond)


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
    assert base_digest(f"{registry.host}/open/cuda:1") == DIGEST
    (asked,) = registry.asked
    assert (asked.path, asked.account) == ("/v2/open/cuda/manifests/1", None)
    assert "manifest.list" in asked.accept
    assert "oci.image.index" in asked.accept


def test_a_token_is_fetched_where_the_registry_says_and_without_netrc_s_account(registry, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert base_digest(f"{registry.host}/team/cuda:1") == DIGEST
    token = "/token?scope=repository%3Ateam%2Fcuda%3Apull&service=here"
    manifest = "/v2/team/cuda/manifests/1"
    assert [asked[:2] for asked in registry.asked] == [
        (manifest, None),
        (token, None),
        (manifest, "Bearer team/cuda"),
    ]


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("private", {"auth": base64.b64encode(b"ann:s3cret").decode()}),
        ("private", {"auth": base64.b64encode(b"ann:").decode(), "identitytoken": "r3fresh"}),
        ("basic", {"auth": base64.b64encode(b"ann:s3cret").decode()}),
    ],
)
def test_docker_s_account_opens_what_it_may_read(name, entry, registry, tmp_path):
    image = f"{registry.host}/{name}/cuda:1"
    with pytest.raises(RegistryError, match="login"):
        base_digest(image)
    log_in(tmp_path, registry.host, **entry)
    assert base_digest(image) == DIGEST


@pytest.mark.parametrize("content", ['{"auths": {', "[]", b"\xff"])
def test_a_configuration_of_docker_that_is_not_json_is_named(content, registry, tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RegistryError, match=re.escape(str(file))):
        base_digest(f"{registry.host}/private/cuda:1")
    assert base_digest(f"{registry.host}/open/cuda:1") == DIGEST, "which needs no account"


def test_an_old_configuration_of_docker_need_not_be_json(registry, tmp_path, monkeypatch):
    monkeypatch.delenv("DOCKER_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".dockercfg").write_text("auth = YW5uOnMzY3JldA==\nemail = ann@example.com\n")
    with pytest.raises(RegistryError, match="login"):
        base_digest(f"{registry.host}/private/cuda:1")


def test_an_account_is_not_sent_to_another_host_without_tls(registry, tmp_path):
    log_in(tmp_path, registry.host, auth=base64.b64encode(b"ann:s3cret").decode())
    with pytest.raises(RegistryError):
        base_digest(f"{registry.host}/elsewhere/cuda:1")
    assert BASIC not in {asked.account for asked in registry.asked}


def test_a_busy_registry_is_asked_again_when_it_says(registry, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert base_digest(f"{registry.host}/busy/cuda:1") == DIGEST
    assert slept == [7, 7]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("{}/basic", "login"),
        ("{}/gone", "tag"),
        ("{}/broken", "503"),
        ("{}/odd", "no digest"),
        ("{}/garbage", "this is not a registry"),
        ("127.0.0.1:1/open", "127.0.0.1:1 could not be reached: .*Connection refused$"),
    ],
)
def test_refusals(registry, name, why):
    with pytest.raises(RegistryError, match=why):
        base_digest(f"{name.format(registry.host)}/cuda:1")


def test_a_refresh_token_follows_no_redirect(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    other = serve(lambda server, asked: (200, {}, b'{"token": "theirs"}'))

    def redirect(server, asked):
        if asked.path.startswith("/token"):
            return 307, {"Location": f"http://{other.host}/token"}, b""
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{server.host}/token"'}, b""

    registry = serve(redirect)
    log_in(tmp_path, registry.host, auth=base64.b64encode(b"ann:").decode(), identitytoken="r3fresh")
    with pytest.raises(RegistryError):
        base_digest(f"{registry.host}/private/cuda:1")
    assert [asked for asked in other.asked if "r3fresh" in asked.body] == []
