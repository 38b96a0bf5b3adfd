"""Files to and from a bucket of a real S3 server: whole or not at all, whatever networks and kills do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flagbench.s3 import Bucket, S3Error, client, get_file, parse_address, put_file, sha256_of, sum_of_object
from running import wait_until

pytestmark = pytest.mark.s3

LARGE = 17 * 2**20
"""Bytes: three parts."""
CHILD = """
import sys
from pathlib import Path
from flagbench.s3 import Bucket, get_file, parse_address, put_file
address, what, key, path, sha256, size = sys.argv[1:]
place = Bucket(parse_address(address))
if what == "put":
    put_file(place, key, Path(path), sha256)
else:
    get_file(place, key, Path(path), size=int(size), sha256=sha256)
"""


@pytest.fixture
def place(bucket: str) -> Bucket:
    return Bucket(parse_address(f"s3://{bucket}/some/prefix"))


@pytest.fixture
def passed(bucket: str, proxy: Any) -> Bucket:
    """The same, by the proxy."""
    return Bucket(parse_address(f"s3://{bucket}/some/prefix"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "file"
    path.write_bytes(random.Random(1).randbytes(LARGE))
    return path


def key_of(path: Path) -> str:
    return f"blobs/{sha256_of(path)}"


def put(place: Bucket, path: Path, **options: Any) -> bool:
    return put_file(place, key_of(path), path, sha256_of(path), **options)


def get(place: Bucket, path: Path, target: Path, **options: Any) -> None:
    """Download the object that is the same as a file."""
    get_file(place, key_of(path), target, size=path.stat().st_size, sha256=sha256_of(path), **options)


def uploads(place: Bucket) -> list[str]:
    """The keys of unfinished uploads."""
    return [each["Key"] for each in place.ask("list_multipart_uploads").get("Uploads", ())]


@pytest.mark.parametrize("tls", [False, True])
def test_a_large_file_goes_there_and_back(
    bucket: str, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    if tls:
        monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["FLAGBENCH_TEST_S3_TLS"])
        monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    place = Bucket(parse_address(f"s3://{bucket}/some/prefix"))
    counts: list[int] = []
    assert put(place, large, show=counts.append)
    assert sum(counts) == LARGE
    head = place.head(key_of(large))
    assert head is not None
    assert (head.size, head.sha256) == (LARGE, sha256_of(large))
    assert not put(place, large), "it is there"
    for _ in range(2):  # the second time it is there
        counts.clear()
        get(place, large, tmp_path / "back", show=counts.append)
        assert sum(counts) == LARGE
    assert sha256_of(tmp_path / "back") == sha256_of(large) == sum_of_object(place, key_of(large))
    assert [path.name for path in tmp_path.iterdir()] == ["back"], "nothing is left beside it"


@pytest.mark.parametrize("size", [0, 5000])
def test_a_small_file_is_one_put(passed: Bucket, proxy: Any, tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    assert put(passed, path, content_type="text/plain")
    assert [request.split()[0] for request in proxy.requests] == ["HEAD", "PUT"]
    head = passed.head(key_of(path))
    assert head is not None
    assert head.content_type == "text/plain"
    assert not put(passed, path)
    get(passed, path, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_an_upload_that_lost_its_answer_is_complete(passed: Bucket, proxy: Any, large: Path) -> None:
    proxy.fault = lambda method, path, count: "lost" if (method, count) == ("POST", 2) else None
    assert put(passed, large)
    assert passed.head(key_of(large)) is not None


def killed(what: str, bucket: str, proxy: Any, file: Path, path: Path, kept: Callable[[], bool]) -> None:
    """Kill a transfer in a process of its own when some of it has arrived and the rest is held back."""
    held = proxy.hold(what.upper(), past=1)
    words = [f"s3://{bucket}/some/prefix", what, key_of(file), str(path), sha256_of(file), str(LARGE)]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *words])
    try:
        wait_until(lambda: held.is_set() and kept(), 30)
    finally:
        child.kill()
        child.wait()
        proxy.release()


def test_the_parts_of_a_killed_upload_are_removed(bucket: str, place: Bucket, proxy: Any, large: Path) -> None:
    other = f"{place.name(key_of(large))}-of-another"
    place.ask("create_multipart_upload", Key=other)
    killed("put", bucket, proxy, large, large, lambda: len(uploads(place)) == 2)
    assert place.head(key_of(large)) is None, "it is not half there"
    assert put(place, large)
    assert uploads(place) == [other], "those of other keys may be under way"


def test_a_killed_download_leaves_no_file(
    bucket: str, place: Bucket, proxy: Any, large: Path, tmp_path: Path
) -> None:
    put(place, large)
    killed("get", bucket, proxy, large, tmp_path / "back", lambda: (tmp_path / ".back.part").exists())
    assert [path.name for path in tmp_path.iterdir()] == [".back.part"]
    get(place, large, tmp_path / "back")
    assert sha256_of(tmp_path / "back") == sha256_of(large)
    assert [path.name for path in tmp_path.iterdir()] == ["back"]


@pytest.mark.parametrize("other", [bytes(LARGE), b"short"])
def test_an_object_with_other_bytes_is_refused(place: Bucket, large: Path, tmp_path: Path, other: bytes) -> None:
    place.put(key_of(large), other)
    for transfer in (lambda: get(place, large, tmp_path / "back"), lambda: put(place, large)):
        with pytest.raises(S3Error) as caught:
            transfer()
        assert caught.value.damaged
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("fault", ["cut", "reset", (500, "InternalError"), (503, "SlowDown")])
def test_broken_answers_are_asked_for_again(
    passed: Bucket, proxy: Any, large: Path, tmp_path: Path, fault: Any
) -> None:
    proxy.fault = lambda method, path, count: fault if count == 2 and method in ("PUT", "GET") else None
    put(passed, large)
    get(passed, large, tmp_path / "back")
    assert sha256_of(tmp_path / "back") == sha256_of(large)


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_silent_server_ends_a_transfer(
    bucket: str, proxy: Any, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As often as a request and a part are tried, and not for ever."""
    monkeypatch.setattr(client, "_READ_SECONDS", 0.2)
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    place = Bucket(parse_address(f"s3://{bucket}"))
    if method == "GET":
        put(place, large)
    proxy.hold(method, past=1)
    with pytest.raises(S3Error) as caught:
        put(place, large) if method == "PUT" else get(place, large, tmp_path / "back")
    assert caught.value.network
    assert not [*tmp_path.iterdir()]


def test_several_writers_of_one_file_all_succeed(place: Bucket, large: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(lambda _: put(place, large), range(4))]
    assert sum_of_object(place, key_of(large)) == sha256_of(large)
    assert not uploads(place)


def test_a_key_that_can_only_write_uploads(
    place: Bucket, bucket: str, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.client  # opened with the other key
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["FLAGBENCH_TEST_S3_WRITER_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["FLAGBENCH_TEST_S3_WRITER_SECRET"])
    for _ in range(2):  # it cannot ask whether the file is there
        assert put(Bucket(parse_address(f"s3://{bucket}/some/prefix")), large)
    assert sum_of_object(place, key_of(large)) == sha256_of(large)


def test_what_the_server_answers_is_told(server: Any, large: Path, tmp_path: Path) -> None:
    gone = Bucket(parse_address("s3://there-is-no-such-bucket"))
    with pytest.raises(S3Error) as caught:
        put(gone, large)
    assert caught.value.no_bucket
    with pytest.raises(S3Error) as caught:
        get(gone, large, tmp_path / "back")
    assert caught.value.status == 404
