"""Servers that answer as no S3 server does, or keep less than a store needs: found before anything relies on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import Bucket, S3Error, parse_address

pytest.importorskip("boto3")
pytestmark = pytest.mark.image

HTML = b"<html><body>Please log in</body></html>"
KEY = "results/v1/record.json"


class Server(ThreadingHTTPServer):
    """One bucket in memory. `mode`: sound, html (a login page), forgets (metadata), readonly, or down (503)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode = "sound"
        self.objects: dict[str, dict[str, str]] = {}
        self.requests: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"  # boto3 waits a second for the answer to `Expect: 100-continue`, which 1.0 lacks

    def answer(self) -> None:
        mode, objects, path = self.server.mode, self.server.objects, self.path.partition("?")[0]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {path}")
        if mode == "html":
            self.send(200, HTML, **{"Content-Type": "text/html; charset=utf-8"})
        elif mode == "down":
            self.send(503)
        elif self.command == "PUT" and mode == "readonly":
            self.send(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif self.command == "PUT" and path in objects:
            self.send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        elif self.command == "PUT":
            names = ("x-amz-meta-", "content-type")
            kept = {name: value for name, value in self.headers.items() if name.lower().startswith(names)}
            objects[path] = {} if mode == "forgets" else kept
            self.send(200, ETag='"e"')
        elif path in objects:
            self.send(200, ETag='"e"', **objects[path])
        elif path.count("/") == 1:
            self.send(200, b"<ListBucketResult><Name>b</Name></ListBucketResult>")
        else:
            self.send(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = answer

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{running.server_address[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("flagbench_core.s3.client.ATTEMPTS", 1)
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def bucket(server: Server) -> Bucket:
    return Bucket(parse_address("s3://bkt?profile=aws"))


REQUESTS: dict[str, Callable[[Bucket], Any]] = {
    "list": lambda bucket: [*bucket.list("results/")],
    "put": lambda bucket: bucket.put_if_absent(KEY, b"{}"),
    "head": lambda bucket: bucket.head(KEY),
    "read": lambda bucket: bucket.get(KEY, 10),
    "delete": lambda bucket: bucket.delete(KEY),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_page_is_no_answer(server: Server, bucket: Bucket, request_: str) -> None:
    server.mode = "html"
    with pytest.raises(S3Error) as caught:
        REQUESTS[request_](bucket)
    assert caught.value.network


def test_an_object_is_of_the_kind_it_was_put_as(server: Server, bucket: Bucket) -> None:
    bucket.put("record.json", b"{}")
    bucket.put("index.html", HTML, kind="text/html; charset=utf-8")
    kinds = {path.rpartition("/")[2]: kept["Content-Type"] for path, kept in server.objects.items()}
    assert kinds == {"record.json": "application/json", "index.html": "text/html; charset=utf-8"}


def test_the_first_object_is_looked_for_once(server: Server, bucket: Bucket) -> None:
    assert bucket.put_if_absent(KEY, b"{}")
    assert bucket.put_if_absent(KEY + "2", b"{}")
    assert [each for each in server.requests if each.startswith("HEAD")] == [f"HEAD /bkt/{KEY}"]


def test_a_store_is_marked_once(server: Server) -> None:
    for _ in range(2):
        Bucket(parse_address("s3://bkt/p?profile=aws")).check_keeps()
    assert [*server.objects] == ["/bkt/p/results/store-v1.json"]
    assert [each.partition(" ")[0] for each in server.requests] == ["PUT", "HEAD"] * 2


@pytest.mark.parametrize("action", [Bucket.check_keeps, REQUESTS["put"]])
def test_an_object_without_metadata_is_not_stored(
    server: Server, bucket: Bucket, action: Callable[[Bucket], Any]
) -> None:
    server.mode = "forgets"
    with pytest.raises(S3Error) as caught:
        action(bucket)
    assert caught.value.damaged


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("sound", None),
        ("html", ExitCode.ENGINE),
        ("down", ExitCode.ENGINE),
        ("readonly", ExitCode.USAGE),
        ("forgets", ExitCode.USAGE),
    ],
)
def test_before_a_run_both_sides_find_the_same(server: Server, mode: str, code: ExitCode | None) -> None:
    cases = pytest.importorskip("flagbench_cases.record.stores")
    server.mode = mode
    found = []
    for check in (lambda: cases.open_store("s3://bkt?profile=aws").check(), host_check):
        try:
            found.append(check())
        except Exception as error:
            found.append(getattr(error, "code", error))
    assert found == [code, code]


def host_check() -> None:
    keep = pytest.importorskip("flagbench.runs.keep", reason="the host's side needs Python 3.10")
    keep.open_usable_store("s3://bkt?profile=aws").check_keeps()
