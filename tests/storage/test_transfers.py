"""Files to and from a bucket of a real S3 server: in parts, resumed, and never half there."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flagbench.s3 import Bucket, S3Error, get_file, parse_address, put_file, sha256_of
from flagbench.s3.download import download
from flagbench.s3.parts import PART_BYTES, part_bytes
from running import wait_until

pytestmark = pytest.mark.s3

PARTS = 3
CONFLICT = (409, "ConditionalRequestConflict")


@pytest.fixture
def place(bucket: str) -> Bucket:
    return Bucket(parse_address(f"s3://{bucket}/some/prefix"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two parts and a bit."""
    path = tmp_path_factory.mktemp("large") / "file"
    path.write_bytes(random.Random(1).randbytes((PARTS - 1) * PART_BYTES + 4321))
    return path


def key_of(path: Path) -> str:
    return f"blobs/{sha256_of(path)}"


def sent(proxy: Any, word: str) -> list[str]:
    return [request for request in proxy.requests if word in request]


def test_parts_are_as_many_as_s3_allows() -> None:
    assert part_bytes(1) == part_bytes(10 * PART_BYTES) == PART_BYTES
    for size in (70 * 2**30, 2**40):
        assert size / part_bytes(size) <= 10_000


def test_a_large_file_goes_there_and_back(place: Bucket, large: Path, tmp_path: Path) -> None:
    counts: list[int] = []
    sha256, size = sha256_of(large), large.stat().st_size
    assert put_file(place, key_of(large), large, sha256, show=counts.append)
    assert sum(counts) == size
    head = place.head(key_of(large))
    assert head is not None
    assert (head.size, head.sha256) == (size, sha256)
    assert not put_file(place, key_of(large), large, sha256), "it is there"
    counts.clear()
    get_file(place, key_of(large), tmp_path / "back", size=size, sha256=sha256, show=counts.append)
    assert sum(counts) == size
    assert sha256_of(tmp_path / "back") == sha256
    assert [path.name for path in tmp_path.iterdir()] == ["back"], "nothing is left beside it"


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_a_small_file_is_one_create_only_put(bucket: str, proxy: Any, server: Any, tmp_path: Path, size: int) -> None:
    through = Bucket(parse_address(f"s3://{bucket}"))
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    assert put_file(through, key_of(path), path, sha256_of(path), content_type="text/plain")
    assert not sent(proxy, "uploads")
    assert server.get_object(Bucket=bucket, Key=key_of(path))["ContentType"] == "text/plain"
    assert not put_file(through, key_of(path), path, sha256_of(path))
    get_file(through, key_of(path), tmp_path / "back", size=size, sha256=sha256_of(path))
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_an_upload_that_lost_its_answer_is_complete(bucket: str, proxy: Any, large: Path) -> None:
    through = Bucket(parse_address(f"s3://{bucket}"))
    ends: list[str] = []

    def fault(method: str, path: str, count: int) -> str | None:
        if method == "POST" and "uploadId" in path and not ends:
            ends.append(path)
            return "lost"
        return None

    proxy.fault = fault
    assert put_file(through, key_of(large), large, sha256_of(large))
    head = through.head(key_of(large))
    assert head is not None
    assert head.sha256 == sha256_of(large)


CHILD = """
import sys
from pathlib import Path
from flagbench.s3 import Bucket, get_file, parse_address, put_file, threads
threads._GRACE = 0.2
address, what, key, path, sha256, size = sys.argv[1:]
place = Bucket(parse_address(address))
if what == "put":
    put_file(place, key, Path(path), sha256)
else:
    get_file(place, key, Path(path), size=int(size), sha256=sha256)
"""


ENDINGS = pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])


def ended(
    ending: signal.Signals,
    bucket: str,
    proxy: Any,
    what: str,
    key: str,
    path: Path,
    sha256: str,
    size: int,
    kept: Callable[[], int],
) -> int:
    """A transfer in a process of its own, ended when a part is kept and others are held back; how many are kept."""
    held = proxy.hold(what.upper(), past=1)
    words = [f"s3://{bucket}", what, key, str(path), sha256, str(size)]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *words])
    try:
        wait_until(lambda: held.is_set() and kept() > 0, 30)
        child.send_signal(ending)
        child.wait(30)  # the server is still silent
    finally:
        child.kill()
        child.wait()
        proxy.release()
    return kept()


@ENDINGS
def test_an_upload_that_was_ended_is_resumed(
    ending: signal.Signals, bucket: str, place: Bucket, proxy: Any, large: Path
) -> None:
    key, sha256 = key_of(large), sha256_of(large)

    def kept() -> int:
        found = place.ask("list_multipart_uploads").get("Uploads", ())
        parts = (place.ask("list_parts", Key=key, UploadId=upload["UploadId"]).get("Parts", ()) for upload in found)
        return sum(map(len, parts))

    count = ended(ending, bucket, proxy, "put", key, large, sha256, 0, kept)
    through = Bucket(parse_address(f"s3://{bucket}"))
    assert through.head(key) is None, "it is not half there"
    proxy.requests.clear()
    assert put_file(through, key, large, sha256)
    assert len(sent(proxy, "partNumber")) == PARTS - count
    assert not place.ask("list_multipart_uploads").get("Uploads")


def test_a_part_with_other_bytes_is_sent_again(bucket: str, place: Bucket, large: Path) -> None:
    key, sha256 = key_of(large), sha256_of(large)
    name = place.name(key)
    upload = place.ask("create_multipart_upload", Key=name, Metadata={"sha256": sha256})["UploadId"]
    place.ask("upload_part", Key=name, UploadId=upload, PartNumber=1, Body=bytes(PART_BYTES))
    assert put_file(place, key, large, sha256)
    assert hashlib.sha256(place.read(key, large.stat().st_size)[0]).hexdigest() == sha256


@ENDINGS
def test_a_download_that_was_ended_is_resumed(
    ending: signal.Signals, bucket: str, proxy: Any, large: Path, tmp_path: Path
) -> None:
    key, sha256, size = key_of(large), sha256_of(large), large.stat().st_size
    through = Bucket(parse_address(f"s3://{bucket}"))
    put_file(through, key, large, sha256)

    def kept() -> int:
        return sum(len(json.loads(journal.read_bytes())["parts"]) for journal in tmp_path.glob(".*.json"))

    count = ended(ending, bucket, proxy, "get", key, tmp_path / "back", sha256, size, kept)
    assert not (tmp_path / "back").exists()
    proxy.requests.clear()
    get_file(through, key, tmp_path / "back", size=size, sha256=sha256)
    assert len(sent(proxy, "GET")) == PARTS - count
    assert sha256_of(tmp_path / "back") == sha256


def test_a_download_of_an_object_that_was_changed_is_not_mixed(
    place: Bucket, large: Path, tmp_path: Path, server: Any, bucket: str
) -> None:
    key, sha256, size = key_of(large), sha256_of(large), large.stat().st_size
    part, journal = tmp_path / ".back.part", tmp_path / ".back.part.json"
    part.write_bytes(bytes(size))
    journal.write_text(json.dumps({"object": ["of-another", size, PART_BYTES], "parts": [0, PART_BYTES]}))
    put_file(place, key, large, sha256)
    get_file(place, key, tmp_path / "back", size=size, sha256=sha256)
    assert sha256_of(tmp_path / "back") == sha256
    for other in (bytes(size), b"short"):
        server.put_object(Bucket=bucket, Key=place.name(key), Body=other)
        (tmp_path / "back").unlink(missing_ok=True)
        with pytest.raises(S3Error) as caught:
            get_file(place, key, tmp_path / "back", size=size, sha256=sha256)
        assert caught.value.damaged
        assert not (tmp_path / "back").exists()
        with pytest.raises(S3Error) as caught:
            put_file(place, key, large, sha256)
        assert caught.value.damaged


@pytest.mark.parametrize("fault", ["cut", "reset", (500, "InternalError"), (503, "SlowDown")])
def test_broken_answers_are_asked_for_again(bucket: str, proxy: Any, large: Path, tmp_path: Path, fault: Any) -> None:
    through = Bucket(parse_address(f"s3://{bucket}"))
    key, sha256, size = key_of(large), sha256_of(large), large.stat().st_size
    proxy.fault = lambda method, path, count: fault if count == 2 and method in ("PUT", "GET") else None
    put_file(through, key, large, sha256)
    get_file(through, key, tmp_path / "back", size=size, sha256=sha256)
    assert sha256_of(tmp_path / "back") == sha256


def test_several_at_once_read_and_write_the_same(place: Bucket, large: Path, tmp_path: Path) -> None:
    key, sha256, size = key_of(large), sha256_of(large), large.stat().st_size

    def put(_: int) -> None:
        put_file(place, key, large, sha256)

    def get(_: int) -> None:
        get_file(place, key, tmp_path / "back", size=size, sha256=sha256)

    for task in (put, get):
        with ThreadPoolExecutor(4) as pool:
            [*pool.map(task, range(4))]
    assert sha256_of(tmp_path / "back") == sha256
    assert len([*tmp_path.iterdir()]) == 1


def test_a_key_that_can_only_write_uploads(
    bucket: str, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Bucket
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["FLAGBENCH_TEST_S3_WRITER_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["FLAGBENCH_TEST_S3_WRITER_SECRET"])
    writer = Bucket(parse_address(f"s3://{bucket}/some/prefix"))
    assert put_file(writer, key_of(large), large, sha256_of(large))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["FLAGBENCH_TEST_S3_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["FLAGBENCH_TEST_S3_SECRET"])
    head = place.head(key_of(large))
    assert head is not None
    assert head.size == large.stat().st_size


@pytest.mark.parametrize(
    "action", [put_file, lambda *given: get_file(given[0], given[1], given[2], size=1, sha256="")]
)
def test_a_missing_bucket_is_named(server: Any, large: Path, tmp_path: Path, action: Callable[..., object]) -> None:
    gone = Bucket(parse_address("s3://there-is-no-such-bucket"))
    with pytest.raises(S3Error):
        action(gone, key_of(large), large, sha256_of(large))


def test_no_more_than_a_part_is_read_of_a_server_that_ignores_ranges(
    place: Bucket, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.response import StreamingBody

    put_file(place, key_of(large), large, sha256_of(large))
    real, reads, most = place.ask, StreamingBody.read, []

    def whole(operation: str, what: str | None = None, **arguments: Any) -> dict[str, Any]:
        arguments.pop("Range", None)
        return real(operation, what, **arguments)

    def counted(self: Any, amount: int | None = None) -> bytes:
        content = reads(self, amount)
        most.append(len(content))
        return bytes(content)

    monkeypatch.setattr(place, "ask", whole)
    monkeypatch.setattr(StreamingBody, "read", counted)
    with pytest.raises(S3Error, match="broke off"):
        get_file(place, key_of(large), tmp_path / "got", size=large.stat().st_size, sha256=sha256_of(large))
    assert max(most) == PART_BYTES + 1


def test_a_small_file_is_put_again_while_another_writer_is_at_it(bucket: str, proxy: Any, tmp_path: Path) -> None:
    through, path = Bucket(parse_address(f"s3://{bucket}")), tmp_path / "file"
    path.write_bytes(b"small")
    proxy.fault = lambda method, _, count: CONFLICT if method == "PUT" and count < 3 else None
    assert put_file(through, key_of(path), path, sha256_of(path))
    assert len(sent(proxy, "PUT")) == 3
    assert through.read(key_of(path), 99)[0] == b"small"


def test_bytes_that_a_crash_of_the_machine_lost_are_read_again(place: Bucket, large: Path, tmp_path: Path) -> None:
    """The note of a part may reach the disk before the part does."""
    key, sha256, size = key_of(large), sha256_of(large), large.stat().st_size
    put_file(place, key, large, sha256)
    head = place.head(key)
    assert head is not None
    (tmp_path / ".back.part").write_bytes(bytes(size))
    note = {"object": [head.etag, size, part_bytes(size)], "parts": [0, part_bytes(size)]}
    (tmp_path / ".back.part.json").write_text(json.dumps(note))
    get_file(place, key, tmp_path / "back", size=size, sha256=sha256)
    assert sha256_of(tmp_path / "back") == sha256
    assert [path.name for path in tmp_path.iterdir()] == ["back"]


def test_a_disk_that_takes_a_part_of_what_is_written_gets_the_rest(
    place: Bucket, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, sha256, size, real = key_of(large), sha256_of(large), large.stat().st_size, os.pwrite
    put_file(place, key, large, sha256)
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: real(file, content[:100_000], at))
    get_file(place, key, tmp_path / "back", size=size, sha256=sha256)
    download(place, key, tmp_path / "again")
    assert sha256_of(tmp_path / "back") == sha256_of(tmp_path / "again") == sha256
