"""A repository in a registry that issues tokens, which the real one of the tests does not, or that misbehaves."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from requests import Response

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import parse_reference
from flagbench.oci.base_layers import BaseImage, base_blobs
from flagbench.oci.certificates import trusted
from flagbench.oci.known import Known
from flagbench.oci.model import OCI_MANIFEST, Blob, Descriptor, digest_of
from flagbench.oci.registry import RegistryPlace
from flagbench.oci.registry_client import RegistryClient
from flagbench.oci.workspace import workspace
from places import quiet

LAYER = b"a layer of the base"
DIFF_ID = "sha256:" + hashlib.sha256(b"uncompressed").hexdigest()
CONFIG = json.dumps({"rootfs": {"type": "layers", "diff_ids": [DIFF_ID]}}).encode()
GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
ACCOUNT = "Basic " + base64.b64encode(b"ann:s3cret").decode()


def base_manifest(**changes: Any) -> bytes:
    """The manifest of a base of one layer."""
    plain = {
        "schemaVersion": 2,
        "config": {"mediaType": "x", "digest": digest_of(CONFIG), "size": len(CONFIG)},
        "layers": [{"mediaType": GZIP, "digest": digest_of(LAYER), "size": len(LAYER)}],
    }
    return json.dumps({**plain, **changes}).encode()


class Server(ThreadingHTTPServer):
    """A registry that wants a token for each scope; its blobs and manifests are what a test puts here."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []
        self.tokens: list[tuple[str | None, list[str]]] = []
        self.blobs = {digest_of(each): each for each in (LAYER, CONFIG)}
        self.manifests = {digest_of(base_manifest()): base_manifest()}
        self.mounts = 201
        """The status of an answer to a mount; 0: the token service refuses the account for two repositories."""
        self.expires = 0
        """How many further uploads are refused although they have a token."""
        self.token: bytes | None = None
        """What the token service answers instead of a token."""
        self.location = "{path}session?state=1"
        """Where a layer is to be uploaded to, from the path of the request."""
        self.faults: list[tuple[str, int, dict[str, str]]] = []
        """Method and beginning of a path, status and headers of the next answers to such a request."""
        self.sent: list[tuple[str, dict[str, str]]] = []
        """Method and path, and the headers of every request."""
        self.cut = 0
        """How many further answers with a blob break off in the middle."""


class Handler(BaseHTTPRequestHandler):
    """Answers as a registry does."""

    server: Server

    def answer(self) -> None:
        """Any request."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url, server = urlsplit(self.path), self.server
        server.sent.append((f"{self.command} {self.path}", {**self.headers}))
        if url.path == "/token":
            scopes = parse_qs(url.query)["scope"]
            server.tokens.append((self.headers.get("Authorization"), scopes))
            token = json.dumps({"token": "for " + " ".join(sorted(scopes))}).encode()
            self.reply(401 if len(scopes) > 1 and not server.mounts else 200, server.token or token)
            return
        for fault in server.faults:
            if f"{self.command} {self.path}".startswith(fault[0]):
                server.faults.remove(fault)
                self.reply(fault[1], headers=fault[2])
                return
        server.asked.append(f"{self.command} {self.path}")
        repository = url.path.removeprefix("/v2/").rpartition("/blobs")[0] or "team/x"
        held = self.headers.get("Authorization", "")
        writes = self.command not in ("GET", "HEAD")
        expired = self.command == "PUT" and "/blobs/" in url.path and server.expires > 0
        server.expires -= expired
        if f"repository:{repository}:pull{',push' if writes else ''}" not in held or expired:
            realm = f'Bearer realm="http://{server.host}/token",service="here",scope="repository:{repository}:pull"'
            self.reply(401, headers={"WWW-Authenticate": realm})
            return
        self.registry(url.path, parse_qs(url.query))

    def registry(self, path: str, query: dict[str, list[str]]) -> None:
        """A request with a token."""
        last, server = path.rpartition("/")[2], self.server
        kept = server.manifests if "/manifests/" in path else server.blobs
        if self.command in ("GET", "HEAD"):
            content = kept.get(last)
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
            headers = {"Content-Range": f"bytes {begin}-"} if begin else {}
            status = 404 if content is None else 206 if begin else 200
            self.reply(status, (content or b"")[begin:], headers)
        elif self.command == "PUT" and "/manifests/" in path:
            kept[last] = self.body
            self.reply(201, headers={"OCI-Subject": "sha256:x"})
        elif "mount" in query and server.mounts != 202:
            if server.mounts == 201:
                server.blobs[query["mount"][0]] = b"mounted"
            self.reply(server.mounts)
        elif self.command == "POST":
            self.reply(202, headers={"Location": server.location.format(path=path)})
        elif self.command == "DELETE":
            self.reply(204)
        else:
            server.blobs[query["digest"][0]] = self.body
            self.reply(201)

    def reply(self, code: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """One answer."""
        self.send_response_only(code)
        for header in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(*header)
        self.end_headers()
        if content and self.command == "GET" and self.server.cut and "/blobs/" in self.path:
            self.server.cut -= 1
            content = content[: len(content) // 2]
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@contextmanager
def serving() -> Iterator[Server]:
    """A registry, until the block ends."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The registry, with docker logged in."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("flagbench.oci.registry._PAUSE", 0.0)
    with serving() as server:
        auth = base64.b64encode(b"ann:s3cret").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {server.host: {"auth": auth}}}))
        yield server


def blob(folder: Path, *origins: str) -> Blob:
    """A blob in a file."""
    path = folder / "blob"
    path.write_bytes(b"content")
    return Blob(Descriptor("application/x", digest_of(b"content"), 7), lambda show: path, origins)


def test_a_token_is_asked_for_what_is_done(registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    sent: list[int] = []
    assert place.put_blob(blob(tmp_path), sent.append) == "uploaded"
    assert (registry.blobs[digest_of(b"content")], sum(sent)) == (b"content", 7)
    assert registry.tokens == [(ACCOUNT, ["repository:team/x:pull"]), (ACCOUNT, ["repository:team/x:pull,push"])]
    assert place.put_manifest(b"{}", OCI_MANIFEST, ("1",)), "it lists referrers itself"
    assert registry.manifests["1"] == registry.manifests[digest_of(b"{}")] == b"{}"
    assert len(registry.tokens) == 2


def test_a_token_that_runs_out_is_renewed(registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    registry.expires = 1
    assert place.put_blob(blob(tmp_path), lambda count: None) == "uploaded"
    registry.expires = 100
    (tmp_path / "blob").write_bytes(b"another")
    other = Blob(Descriptor("application/x", digest_of(b"another"), 7), lambda show: tmp_path / "blob")
    with pytest.raises(FlagbenchError) as caught:
        place.put_blob(other, lambda count: None)
    assert caught.value.code is ExitCode.ENGINE


def test_a_layer_is_mounted_from_a_repository_of_the_same_registry(registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    origins = ("r.example/team/y", f"{registry.host}/team/y")
    assert place.put_blob(blob(tmp_path, *origins), lambda count: None) == "copied"
    (mount,) = {each for each in registry.asked if "mount=" in each}
    assert "from=team%2Fy" in mount
    assert registry.tokens[-1][1] == ["repository:team/x:pull,push", "repository:team/y:pull"]


@pytest.mark.parametrize("answer", [202, 401, 403, 400, 404, 405, 0])
def test_a_registry_that_mounts_nothing_gets_the_bytes(answer: int, registry: Server, tmp_path: Path) -> None:
    registry.mounts = answer
    place = RegistryPlace(f"{registry.host}/team/x")
    assert place.put_blob(blob(tmp_path, f"{registry.host}/team/y"), lambda count: None) == "uploaded"
    assert registry.blobs[digest_of(b"content")] == b"content"
    # The upload that it began instead is ended.
    assert any(each.startswith("DELETE ") for each in registry.asked) is (answer == 202)


def test_an_upload_at_another_host_gets_no_credentials(registry: Server, tmp_path: Path) -> None:
    with serving() as other:
        registry.location = f"http://{other.host}/bucket/session?signed=1"
        other.faults = [("PUT ", 201, {})]
        assert RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), quiet) == "uploaded"
        ((request, headers),) = other.sent
    assert request.startswith("PUT /bucket/session?signed=1&digest=")
    assert "Authorization" not in headers


def test_another_host_cannot_ask_for_credentials(registry: Server, tmp_path: Path) -> None:
    with serving() as other:
        registry.location = f"http://{other.host}/v2/team/x/blobs/uploads/session"
        with pytest.raises(FlagbenchError) as caught:
            RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), quiet)
        assert caught.value.code is ExitCode.ENGINE
        assert other.tokens == []
        assert all("Authorization" not in headers for _, headers in other.sent)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/v2/x/session?state=1", "https://r.example:5000/v2/x/session?state=1"),
        ("http://r.example:5000/v2/x/session", "https://r.example:5000/v2/x/session"),
        ("http://r.example/v2/x/session", "https://r.example:5000/v2/x/session"),
        ("https://storage.example/a", "https://storage.example/a"),
        ("http://storage.example/a", None),
        ("http://[x", None),
        ("https://r.example:port/x", None),
    ],
)
def test_a_layer_is_never_sent_without_tls_to_a_registry_that_has_it(location: str, expected: str | None) -> None:
    client = RegistryClient(parse_reference("r.example:5000/x"))
    answer = Response()
    answer.url, answer.headers["Location"] = f"{client.base}/blobs/uploads/", location
    if expected is not None:
        assert client.location(answer) == expected
        return
    with pytest.raises(FlagbenchError) as caught:
        client.location(answer)
    assert caught.value.code is ExitCode.ENGINE


@pytest.mark.parametrize("status", [404, 408, 429, 500, 503])
def test_an_upload_that_the_registry_puts_off_is_repeated(
    status: int, registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("flagbench.oci.registry._pause", lambda seconds, show: pauses.append(seconds))
    registry.faults = [("PUT /v2/team/x/blobs/", status, {"Retry-After": "7"})]
    sent: list[int] = []
    assert RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), sent.append) == "uploaded"
    assert sum(sent) == 7
    assert 7.0 in pauses


def test_an_upload_that_was_not_confirmed_in_time_is_looked_for_first(
    registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_of(b"content")

    def wait(seconds: float, show: Any) -> None:
        if seconds == 10.0:  # the registry is done at last
            registry.blobs[digest] = b"content"

    monkeypatch.setattr("flagbench.oci.registry._pause", wait)
    registry.faults = [("PUT /v2/team/x/blobs/", 504, {})]
    assert RegistryPlace(f"{registry.host}/team/x").put_blob(blob(tmp_path), quiet) == "uploaded"
    assert sum(each.startswith("PUT ") for each in registry.asked) == 0


def test_a_manifest_is_put_again(registry: Server) -> None:
    registry.faults = [
        ("PUT /v2/team/x/manifests/", 503, {}),
        ("PUT /v2/team/x/manifests/1", 429, {"Retry-After": "0"}),
    ]
    RegistryPlace(f"{registry.host}/team/x").put_manifest(b"{}", OCI_MANIFEST, ("1",))
    assert registry.manifests["1"] == b"{}"


@pytest.mark.parametrize("token", [b"<html>", b"[]", b'{"token": 3}'])
def test_a_token_service_that_fails_in_the_middle_is_named(token: bytes, registry: Server, tmp_path: Path) -> None:
    place = RegistryPlace(f"{registry.host}/team/x")
    assert place.put_manifest(b"{}", OCI_MANIFEST, ())
    registry.expires, registry.token = 1, token
    with pytest.raises(FlagbenchError) as caught, workspace():
        place.put_blob(blob(tmp_path), quiet)
    assert caught.value.code is ExitCode.ENGINE
    assert "token" in caught.value.message


def test_an_endless_answer_is_not_read_to_its_end(registry: Server, tmp_path: Path) -> None:
    registry.token = b'{"token": "' + b"x" * 3_000_000 + b'"}'
    with pytest.raises(FlagbenchError) as caught:
        RegistryPlace(f"{registry.host}/team/x").has_blob(digest_of(LAYER))
    assert caught.value.code is ExitCode.ENGINE


def test_an_account_in_another_alphabet(registry: Server, tmp_path: Path) -> None:
    auth = base64.b64encode("ann:p\u00e4ss\u4e2d".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    assert RegistryPlace(f"{registry.host}/team/x").has_blob(digest_of(LAYER))
    assert registry.tokens[0][0] == f"Basic {auth}"


def test_a_download_that_breaks_off_is_continued(
    registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flagbench.oci.registry._CHUNK", 3)
    sent: list[int] = []
    expected: list[int] = []
    base = BaseImage(f"{registry.host}/team/x:1", digest_of(base_manifest()), 1)
    (found,) = base_blobs(base, [DIFF_ID], "linux/amd64", Known(tmp_path), tmp_path, expected.append)
    registry.cut = 2
    assert found.path(sent.append).read_bytes() == LAYER
    assert (sum(sent), expected) == (len(LAYER), [len(LAYER)])
    begins = [headers["Range"] for _, headers in registry.sent if "Range" in headers]
    assert begins == ["bytes=9-", "bytes=12-"]
    registry.cut = 1000
    with pytest.raises(FlagbenchError) as caught:
        found.path(quiet)
    assert caught.value.code is ExitCode.ENGINE


def find_base(registry: Server, folder: Path, digest: str | None = None, diff_id: str = DIFF_ID) -> list[Blob]:
    """The base's blobs."""
    base = BaseImage(f"{registry.host}/team/x:1", digest or next(iter(registry.manifests)), 1)
    return base_blobs(base, [diff_id, "sha256:" + "9" * 64], "linux/amd64", Known(folder / "known"), folder)


def test_a_base_s_layers_are_its_registry_s(registry: Server, tmp_path: Path) -> None:
    (found,) = find_base(registry, tmp_path)
    assert (found.descriptor.digest, found.descriptor.size) == (digest_of(LAYER), len(LAYER))
    assert found.descriptor.media_type == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert found.origins == (f"{registry.host}/team/x",)
    assert found.path(quiet).read_bytes() == LAYER
    registry.manifests.clear()
    assert find_base(registry, tmp_path, digest_of(base_manifest())), "a manifest never changes: it is remembered"


def test_a_base_of_two_platforms_is_remembered_for_each(registry: Server, tmp_path: Path) -> None:
    """Two images of one index, with a manifest of their own each; entries that cannot be used are passed over."""
    layers, config = [*json.loads(base_manifest())["layers"]], CONFIG.replace(b"layers", b"stuffs")
    registry.blobs[digest_of(config)] = config
    arm = base_manifest(config={"mediaType": "x", "digest": digest_of(config), "size": len(config)}, layers=layers)
    registry.manifests[digest_of(arm)] = arm
    old = {"digest": digest_of(base_manifest()), "platform": {"os": "linux", "architecture": "arm", "variant": "v6"}}
    new = {"digest": digest_of(arm), "platform": {"os": "linux", "architecture": "arm", "variant": "v7"}}
    useless: list[Any] = [3, None, {"platform": old["platform"]}, {"digest": 3, "platform": old["platform"]}]
    index = json.dumps({"manifests": [*useless, old, new]}).encode()
    registry.manifests[digest_of(index)] = index
    base = BaseImage(f"{registry.host}/team/x:1", digest_of(index), 1)
    known = Known(tmp_path / "known")
    for platform, expected in (
        ("linux/arm/v7", arm),
        ("linux/arm/v6", base_manifest()),
        ("linux/arm", base_manifest()),
    ):
        base_blobs(base, [DIFF_ID], platform, known, tmp_path)
        found = known.base(digest_of(index), platform)
        assert found is not None
        assert found.manifest.encode() == expected


@pytest.mark.parametrize("entries", [3, [3], [{"platform": 3, "digest": "sha256:" + "1" * 64}]])
def test_a_damaged_index_of_a_base_is_refused(entries: Any, registry: Server, tmp_path: Path) -> None:
    index = json.dumps({"manifests": entries}).encode()
    registry.manifests[digest_of(index)] = index
    with pytest.raises(FlagbenchError) as caught:
        find_base(registry, tmp_path, digest_of(index))
    assert caught.value.code is ExitCode.DATA


def test_a_base_for_several_platforms(registry: Server, tmp_path: Path) -> None:
    other = {"digest": "sha256:" + "e" * 64, "platform": {"os": "linux", "architecture": "arm64"}}
    own = {"digest": digest_of(base_manifest()), "platform": {"os": "linux", "architecture": "amd64"}}
    index = json.dumps({"manifests": [other, own]}).encode()
    registry.manifests[digest_of(index)] = index
    assert len(find_base(registry, tmp_path, digest_of(index))) == 1
    index = json.dumps({"manifests": [other]}).encode()
    registry.manifests[digest_of(index)] = index
    with pytest.raises(FlagbenchError) as caught:
        find_base(registry, tmp_path, digest_of(index))
    assert "linux/amd64" in caught.value.message


@pytest.mark.parametrize("damage", ["manifest", "config", "layer", "other layers", "not an image", "gone"])
def test_a_base_that_is_not_what_its_digest_says_is_refused(damage: str, registry: Server, tmp_path: Path) -> None:
    digest, diff_id = digest_of(base_manifest()), DIFF_ID
    if damage == "manifest":
        registry.manifests[digest] = base_manifest(schemaVersion=3)
    elif damage == "gone":
        registry.manifests.clear()
    elif damage == "other layers":
        diff_id = "sha256:" + "8" * 64
    elif damage == "not an image":
        content = base_manifest(layers=[{"digest": "sha256:short"}])
        digest = digest_of(content)
        registry.manifests[digest] = content
    else:
        registry.blobs[digest_of(CONFIG if damage == "config" else LAYER)] = b"something else"
    with pytest.raises(FlagbenchError) as caught:
        [each.path(quiet) for each in find_base(registry, tmp_path, digest, diff_id)]
    assert caught.value.code is (ExitCode.ENGINE if damage == "gone" else ExitCode.DATA)
    assert not [*tmp_path.glob("*.base")]


@pytest.mark.parametrize(
    "name", ["https://r.example/x", "r.example/x:1", "r.example/X", f"r.example/x@{DIFF_ID}", ""]
)
def test_what_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        RegistryPlace(name)
    assert caught.value.code is ExitCode.USAGE


def test_docker_s_certificates_of_a_registry_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".docker" / "certs.d" / "r.example:5000"
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nours\n")
    assert trusted("r.example") is None
    assert trusted("") is None, "Docker Hub"
    bundle = trusted("r.example:5000")
    assert bundle is not None
    assert "ours" in bundle.read_text()


@pytest.mark.parametrize("configured", ["folder", "missing"])
def test_other_hosts_than_that_of_docker_s_certificate_are_trusted_too(
    configured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, public = tmp_path / ".docker" / "certs.d" / configured, tmp_path / "public"
    for each in (folder, public):
        each.mkdir(parents=True)
    (folder / "ca.crt").write_text("ours")
    (public / "ca.pem").write_text("of the public")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(public if configured == "folder" else tmp_path / "nothing"))
    bundle = trusted(configured)
    assert bundle is not None
    assert ("of the public" if configured == "folder" else "-----BEGIN CERTIFICATE-----") in bundle.read_text()
    assert "ours" in bundle.read_text()
