"""Prepared folders come from a bucket once, and whole, whatever happens meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.prepare import prepared_folder
from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode
from prepared_sets import CASE, SMALL, call, command, contents, get, large, prepare, put
from running import need, wait_until

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"


@pytest.fixture
def small(bucket: str, tmp_path: Path) -> str:
    """The address of a small set."""
    put(prepare(tmp_path / "out", SMALL), f"s3://{bucket}/x")
    return f"s3://{bucket}/x"


@pytest.fixture(scope="module")
def large_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with a file of several parts."""
    return prepare(tmp_path_factory.mktemp("large"), {"another.bin": b"small", "large.bin": large()})


def reads(proxy: Any) -> list[str]:
    """The requests that read a file."""
    return [request for request in proxy.requests if request.startswith("GET ") and "/files/" in request]


def refused(url: str, *kinds: str) -> CaseError:
    with pytest.raises(CaseError) as caught:
        get(url, *kinds)
    assert caught.value.remedy
    return caught.value


def test_a_folder_is_fetched_once(bucket: str, tmp_path: Path, proxy: Any) -> None:
    url = f"s3://{bucket}/some/prefix"
    out = prepare(tmp_path / "out", SMALL)
    put(prepare(out, {"w.bin": b"weights"}, "weights"), url)
    found = get(url, "data", "weights")
    assert contents(found["data"]["folder"]) == SMALL
    assert contents(found["weights"]["folder"]) == {"w.bin": b"weights"}
    opened = prepared_folder.open_folder(found["data"]["folder"], CASE, "data", thorough=True)
    assert opened.digest == prepared_folder.open_folder(str(out), CASE, "data").digest
    proxy.requests.clear()
    assert get(url, "data", "weights") == found
    assert proxy.requests == [f"GET /{bucket}/some/prefix/{kind}/prepared.json" for kind in ("data", "weights")]


def test_the_address_that_is_printed_can_be_used(bucket: str, tmp_path: Path) -> None:
    """Also with weights looked for there."""
    printed = put(prepare(tmp_path / "out", SMALL), f"s3://{bucket}/x?profile=ceph")["data"]["url"]
    assert printed == f"s3://{bucket}/x/data?profile=ceph"
    found = get(printed, optional=["weights"])
    assert [*found] == ["data"]
    assert (found["data"]["url"], contents(found["data"]["folder"])) == (printed, SMALL)
    assert refused(printed, "weights").code is ExitCode.DATA


def test_a_key_that_may_not_list_fetches_data_without_weights(small: str, proxy: Any) -> None:
    """Such a key is told that a missing object is forbidden."""

    def fault(method: str, path: str, count: int) -> Any:
        missing = "/weights/" in path or "/nothing/" in path or path.endswith("/x/prepared.json")
        return (403, "AccessDenied") if "list-type" in path or missing else None

    proxy.fault = fault
    found = get(small, optional=["weights"])
    assert [*found] == ["data"]
    assert contents(found["data"]["folder"]) == SMALL
    assert refused(f"{small}/nothing").code is ExitCode.ENGINE


def test_a_bucket_that_does_not_exist_is_an_error_of_usage(bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}-not/x"
    assert refused(url).code is ExitCode.USAGE
    with pytest.raises(CaseError) as caught:
        put(prepare(tmp_path / "out", SMALL), url)
    assert caught.value.code is ExitCode.USAGE


def test_the_command_fetches_what_there_is(small: str) -> None:
    code, printed, said = call("fetch", CASE, "--data", small)
    assert (code, sorted(printed["folders"])) == (0, ["data"]), said
    assert contents(printed["folders"]["data"]["folder"]) == SMALL
    assert call("fetch", CASE, "--weights", small)[0] == ExitCode.DATA
    assert call("fetch", "distilbert", "--data", small)[0] == ExitCode.USAGE
    assert call("fetch", CASE)[0] == ExitCode.USAGE


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_was_ended_starts_again(
    bucket: str, proxy: Any, large_set: Path, cache: Path, ending: signal.Signals
) -> None:
    """With the files that are whole, and no folder that a run would read."""
    url = f"s3://{bucket}/x"
    put(large_set, url)
    held = proxy.hold("GET", past=3)  # the index, the first file and a part of the second
    process = command("fetch", CASE, "--data", url, "--no-weights")
    wait_until(lambda: held.is_set() and bool([*cache.glob("*/.large.bin.part")]), 30)
    process.send_signal(ending)
    printed, said = process.communicate(timeout=30)
    proxy.release()
    assert (process.returncode, printed) == (ExitCode.INTERRUPTED if ending == signal.SIGINT else -9, ""), said
    assert "Traceback" not in said
    assert sorted(path.name for path in cache.glob("*/*")) == [".large.bin.part", "another.bin"]
    proxy.requests.clear()
    found = get(url)["data"]["folder"]
    assert contents(found) == contents(str(large_set / "data"))
    assert len(set(reads(proxy))) == 1, "the small file is there"


def test_two_at_once_fetch_once(bucket: str, proxy: Any, large_set: Path) -> None:
    url = f"s3://{bucket}/x"
    put(large_set, url)
    proxy.requests.clear()
    started = [command("fetch", CASE, "--data", url) for _ in range(2)]
    ended = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert len(reads(proxy)) == 4
    folders = {json.loads(printed)["folders"]["data"]["folder"] for printed, _ in ended}
    assert [contents(folder) for folder in folders] == [contents(str(large_set / "data"))]


@pytest.mark.parametrize("change", ["other", "missing"])
def test_a_changed_object_is_named(bucket: str, small: str, server: Any, cache: Path, change: str) -> None:
    key = f"x/data/files/{hashlib.sha256(SMALL['three.bin']).hexdigest()}"
    server.delete_object(Bucket=bucket, Key=key)
    if change == "other":
        server.put_object(Bucket=bucket, Key=key, Body=b"\1" * len(SMALL["three.bin"]))
    error = refused(small)
    assert error.code is ExitCode.DATA
    assert f"s3://{bucket}/{key}" in error.message
    assert not [*cache.glob("*/prepared.json")]


def test_a_replaced_folder_is_another_one(bucket: str, small: str, tmp_path: Path) -> None:
    """Also where the cache has the old one."""
    before = get(small)["data"]
    put(prepare(tmp_path / "new", {"one.bin": b"other"}), small, force=True)
    after = get(small)["data"]
    assert contents(after["folder"]) == {"one.bin": b"other"}
    assert contents(before["folder"]) == SMALL, "who reads the old one is not disturbed"


def index(case: str = CASE, name: str = "one.bin") -> bytes:
    files = {name: {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}}
    known = {"schema": "prepared/v1", "case": case, "kind": "data", "format": "test/v1", "facts": {}, "sources": []}
    return json.dumps({**known, "files": files}).encode()


@pytest.mark.parametrize("content", [b"<html>", index(case="llama2-70b"), index(name="../evil")])
def test_a_hostile_index_is_refused(bucket: str, server: Any, proxy: Any, tmp_path: Path, content: bytes) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    server.put_object(Bucket=bucket, Key="x/data/prepared.json", Body=content, Metadata={"sha256": sha256})
    assert refused(f"s3://{bucket}/x").code is ExitCode.DATA
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was written"
    assert not reads(proxy)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache on a disk of twenty megabytes."""
    need(os.geteuid() == 0, "root, to mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(place)], check=True)
    monkeypatch.setenv("FLAGBENCH_CACHE", str(place))
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_without_room_is_refused_before_anything_is_read(
    bucket: str, proxy: Any, large_set: Path, small_disk: Path
) -> None:
    put(large_set, f"s3://{bucket}/x")
    (small_disk / "filler").write_bytes(bytes(10 * 2**20))
    error = refused(f"s3://{bucket}/x")
    assert error.code is ExitCode.DATA
    assert "17.8 MB" in error.message
    assert not reads(proxy)


def test_a_disk_that_fills_up_meanwhile_is_told(bucket: str, proxy: Any, large_set: Path, small_disk: Path) -> None:
    put(large_set, f"s3://{bucket}/x")

    def fault(method: str, path: str, count: int) -> None:
        if method == "GET" and "/files/" in path and not (small_disk / "filler").exists():
            (small_disk / "filler").write_bytes(bytes(15 * 2**20))

    proxy.fault = fault
    error = refused(f"s3://{bucket}/x")
    assert error.code is ExitCode.DATA
    assert str(small_disk) in error.message
    (small_disk / "filler").unlink()
    proxy.fault = lambda method, path, count: None
    assert contents(get(f"s3://{bucket}/x")["data"]["folder"]) == contents(str(large_set / "data"))


def test_a_damaged_cache_is_repaired(small: str, proxy: Any) -> None:
    folder = Path(get(small)["data"]["folder"])
    (folder / "one.bin").unlink()
    (folder / "three.bin").write_bytes(b"short")
    proxy.requests.clear()
    assert contents(get(small)["data"]["folder"]) == SMALL
    assert len(reads(proxy)) == 2
