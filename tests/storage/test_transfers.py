"""Files to and from a bucket of a real S3 server: whole or not at all, whatever networks and kills do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flagbench_core.s3 import Bucket, S3Error, client, get_file, parse_address, put_file, sha256_of
from running import wait_until

pytestmark = pytest.mark.s3

LARGE = 17 * 2**20
"""Bytes: three parts."""
UPLOAD = """
import sys
from pathlib import Path
from flagbench_core.s3 import Bucket, parse_address, put_file
address, key, path, sha256 = sys.argv[1:]
put_file(Bucket(parse_address(address)), key, Path(path), sha256)
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
    assert not put(place, large, show=counts.append), "it is there"
    assert sum(counts) == LARGE
    head = place.head(key_of(large))
    assert head is not None
    assert (head.size, head.sha256) == (LARGE, sha256_of(large))
    for _ in range(2):  # the second time it is there
        get(place, large, tmp_path / "back", show=counts.append)
    assert sum(counts) == 2 * LARGE
    assert sha256_of(tmp_path / "back") == sha256_of(large)
    assert [path.name for path in tmp_path.iterdir()] == ["back"], "nothing is left beside it"


@pytest.mark.parametrize("size", [0, 5000])
def test_a_small_file_is_one_put(passed: Bucket, proxy: Any, tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    assert put(passed, path)
    assert [request.split()[0] for request in proxy.requests] == ["HEAD", "PUT"]
    get(passed, path, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_an_upload_that_lost_its_answer_is_complete(passed: Bucket, proxy: Any, large: Path) -> None:
    proxy.fault = lambda method, path, count: "lost" if (method, count) == ("POST", 2) else None
    assert put(passed, large)
    assert passed.head(key_of(large)) is not None


def test_the_parts_of_a_killed_upload_are_removed(bucket: str, place: Bucket, proxy: Any, large: Path) -> None:
    other = f"{place.name(key_of(large))}-of-another"
    place.ask("create_multipart_upload", Key=other)
    held = proxy.hold("PUT", past=1)
    words = [f"s3://{bucket}/some/prefix", key_of(large), str(large), sha256_of(large)]
    child = subprocess.Popen([sys.executable, "-c", UPLOAD, *words])
    try:
        wait_until(lambda: held.is_set() and len(uploads(place)) == 2, 30)
    finally:
        child.kill()
        child.wait()
        proxy.release()
    assert place.head(key_of(large)) is None, "it is not half there"
    assert put(place, large)
    assert uploads(place) == [other], "those of other keys may be under way"


def test_an_object_with_other_bytes_is_refused(place: Bucket, large: Path, tmp_path: Path) -> None:
    place.put(key_of(large), bytes(LARGE))
    for transfer in (lambda: get(place, large, tmp_path / "back"), lambda: put(place, large)):
        with pytest.raises(S3Error) as caught:
            transfer()
        assert caught.value.damaged
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("fault", ["cut", (503, "SlowDown")])
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
    if method == "GET":
        put(Bucket(parse_address(f"s3://{bucket}")), large)
    monkeypatch.setattr(client, "_READ_SECONDS", 0.2)
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    place = Bucket(parse_address(f"s3://{bucket}"))
    proxy.hold(method, past=1)
    with pytest.raises(S3Error) as caught:
        put(place, large) if method == "PUT" else get(place, large, tmp_path / "back")
    assert caught.value.network
    assert not [*tmp_path.iterdir()]


def test_several_writers_of_one_file_all_succeed(place: Bucket, large: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(lambda _: put(place, large), range(4))]
    get(place, large, tmp_path / "back")
    assert not uploads(place)
