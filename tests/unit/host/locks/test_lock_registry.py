"""The digest behind a tag, from a registry that runs here."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flagbench.locks.registry import Reference, RegistryError, base_digest

DIGEST = "sha256:" + "d" * 64


@pytest.fixture
def registry():
    """A registry with `team/cuda:1` behind a token, `open/cuda:1` free, `closed/cuda:1` behind a password."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            seen.append((self.path, self.headers.get("Authorization"), self.headers["Accept"]))
            name = self.path.removeprefix("/v2/").partition("/")[0]
            if name == "team" and self.headers.get("Authorization") != "Bearer t0k":
                realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="here",scope="repository:x:pull"'
                return self.answer(401, "WWW-Authenticate", realm)
            if name == "closed":
                return self.answer(401, "WWW-Authenticate", 'Basic realm="here"')
            if name == "garbage":
                return self.wfile.write(b"this is not a registry\r\n\r\n")
            if name == "odd":
                return self.answer(200, "Docker-Content-Digest", "sha256:short")
            if name in ("team", "open"):
                return self.answer(200, "Docker-Content-Digest", DIGEST)
            return self.answer({"gone": 404, "broken": 503}[name])

        def do_GET(self):
            seen.append((self.path, None, None))
            body = b'{"token": "t0k"}'
            self.answer(200, "Content-Length", str(len(body)))
            self.wfile.write(body)

        def answer(self, code, *header):
            self.send_response(code)
            if header:
                self.send_header(*header)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("image", "host", "repository", "tag"),
    [
        ("debian", "registry-1.docker.io", "library/debian", "latest"),
        ("debian:bookworm-slim", "registry-1.docker.io", "library/debian", "bookworm-slim"),
        ("nvidia/cuda:11.8.0-devel", "registry-1.docker.io", "nvidia/cuda", "11.8.0-devel"),
        ("docker.io/nvidia/cuda", "registry-1.docker.io", "nvidia/cuda", "latest"),
        ("nvcr.io/nvidia/pytorch:22.04-py3", "nvcr.io", "nvidia/pytorch", "22.04-py3"),
        ("host:5000/a/b:c", "host:5000", "a/b", "c"),
        ("localhost/a:b", "localhost", "a", "b"),
    ],
)
def test_names_are_read_as_docker_reads_them(image, host, repository, tag):
    assert Reference.parse(image) == Reference(host, repository, tag)


def test_a_public_registry_is_asked_over_tls():
    assert Reference.parse("debian:12").url == "https://registry-1.docker.io/v2/library/debian/manifests/12"


def test_a_free_image(registry):
    host, seen = registry
    assert base_digest(f"{host}/open/cuda:1") == DIGEST
    ((path, authorization, accept),) = seen
    assert path == "/v2/open/cuda/manifests/1"
    assert authorization is None
    assert "manifest.list" in accept
    assert "oci.image.index" in accept


def test_a_token_is_fetched_where_the_registry_says(registry):
    host, seen = registry
    assert base_digest(f"{host}/team/cuda:1") == DIGEST
    assert [path for path, _, _ in seen] == [
        "/v2/team/cuda/manifests/1",
        "/token?scope=repository%3Ax%3Apull&service=here",
        "/v2/team/cuda/manifests/1",
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("closed", "wants a login"),
        ("gone", "does not know this tag"),
        ("broken", "answered 503"),
        ("odd", "gave no digest"),
        ("garbage", "could not be reached: this is not a registry"),
    ],
)
def test_refusals(registry, name, why):
    host, _ = registry
    with pytest.raises(RegistryError, match=why):
        base_digest(f"{host}/{name}/cuda:1")


def test_nobody_there():
    with pytest.raises(RegistryError, match="could not be reached"):
        base_digest("127.0.0.1:1/open/cuda:1")
