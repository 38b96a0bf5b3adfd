"""Prepared folders come from a bucket once, checked before anything is read, and whatever happens meanwhile."""

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

from flagbench_cases.prepare import fetch, prepared_folder
from flagbench_cases.prepare.meter import Meter
from flagbench_cases.shared.errors import CaseError, ExitCode
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


def refused(url: str) -> CaseError:
    with pytest.raises(CaseError) as caught:
        get(url)
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
    assert opened.digest == found["data"]["digest"] == prepared_folder.open_folder(str(out), CASE, "data").digest
    proxy.requests.clear()
    assert get(url, "data", "weights") == found
    assert proxy.requests == [f"GET /{bucket}/some/prefix/{kind}/prepared.json" for kind in ("data", "weights")]
    assert get(f"{url}/data")["data"]["folder"] == found["data"]["folder"], "the folder itself has an address too"


def test_the_address_that_is_printed_can_be_used(bucket: str, tmp_path: Path) -> None:
    """Also with weights looked for there."""
    address = f"s3://{bucket}/x?profile=ceph"
    printed = put(prepare(tmp_path / "out", SMALL), address)["data"]["url"]
    assert printed == f"s3://{bucket}/x/data?profile=ceph"
    results: dict[str, Any] = {}
    optional = {"data": {"url": printed, "optional": False}, "weights": {"url": printed, "optional": True}}
    fetch.work({"case": CASE, "sources": optional, "survey": False}, Meter(), results)
    assert [*results] == ["data"]
    assert (results["data"]["url"], contents(results["data"]["folder"])) == (printed, SMALL)
    with pytest.raises(CaseError, match="no prepared weights"):
        get(printed, "weights")


def test_a_key_that_may_not_list_fetches_data_without_weights(small: str, proxy: Any, server: Any) -> None:
    """Such a key is told that a missing object is forbidden."""

    def fault(method: str, path: str, count: int) -> Any:
        missing = "/weights/" in path or "/nothing/" in path or path.endswith("/x/prepared.json")
        return (403, "AccessDenied") if "list-type" in path or missing else None

    proxy.fault = fault
    results: dict[str, Any] = {}
    sources = {"data": {"url": small, "optional": False}, "weights": {"url": small, "optional": True}}
    fetch.work({"case": CASE, "sources": sources, "survey": False}, Meter(), results)
    assert contents(results["data"]["folder"]) == SMALL
    assert [*results] == ["data"]
    denied = refused(f"{small}/nothing")
    assert (denied.code, "AccessDenied" in denied.message) == (ExitCode.ENGINE, True)
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if "/weights/" in path else None
    with pytest.raises(CaseError, match="AccessDenied"):  # this key may list: the weights are forbidden
        fetch.work({"case": CASE, "sources": sources, "survey": True}, Meter(), {})


def test_a_bucket_that_does_not_exist_is_an_error_of_usage(bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}-not/x"
    found = refused(url)
    assert (found.code, "NoSuchBucket" in found.message) == (ExitCode.USAGE, True)
    with pytest.raises(CaseError, match="NoSuchBucket") as caught:
        put(prepare(tmp_path / "out", SMALL), url)
    assert caught.value.code is ExitCode.USAGE


def test_the_command_fetches_what_there_is(small: str, cache: Path) -> None:
    code, printed, said = call("fetch", CASE, "--data", small, "--dry-run")
    assert (code, printed["folders"]["data"]["complete"], cache.exists()) == (0, False, False), said
    code, printed, said = call("fetch", CASE, "--data", small)
    assert (code, sorted(printed["folders"])) == (0, ["data"]), said
    assert contents(printed["folders"]["data"]["folder"]) == SMALL
    assert call("fetch", CASE, "--weights", small)[0] == ExitCode.DATA
    assert call("fetch", "distilbert", "--data", small)[0] == ExitCode.USAGE
    assert call("fetch", CASE)[0] == ExitCode.USAGE


def test_a_user_without_a_home_has_a_cache_in_tmpdir(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FLAGBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code, printed, said = call("fetch", CASE, "--data", small)
    assert code == 0, said
    folder = Path(printed["folders"]["data"]["folder"])
    assert contents(str(folder)) == SMALL
    assert folder.parents[1].parent == tmp_path


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
    started = [command("fetch", CASE, "--data", url, "--json") for _ in range(2)]
    ended = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert len(reads(proxy)) == 4
    folders = {json.loads(printed)["folders"]["data"]["folder"] for printed, _ in ended}
    assert [contents(folder) for folder in folders] == [contents(str(large_set / "data"))]


@pytest.mark.parametrize("change", ["other", "truncated", "missing"])
def test_a_changed_object_is_named(
    bucket: str, small: str, server: Any, proxy: Any, cache: Path, change: str
) -> None:
    key = f"x/data/files/{hashlib.sha256(SMALL['three.bin']).hexdigest()}"
    if change == "missing":
        server.delete_object(Bucket=bucket, Key=key)
    else:
        server.put_object(Bucket=bucket, Key=key, Body=b"\1" * (len(SMALL["three.bin"]) if change == "other" else 5))
    error = refused(small)
    assert error.code is ExitCode.DATA
    assert f"s3://{bucket}/{key}" in error.message
    assert not [*cache.glob("*/prepared.json")]
    if change != "other":
        assert not reads(proxy), "it is found before anything is read"


def test_a_replaced_folder_is_another_one(bucket: str, small: str, tmp_path: Path) -> None:
    """Also where the cache has the old one."""
    before = get(small)["data"]
    put(prepare(tmp_path / "new", {"one.bin": b"other"}), small, force=True)
    after = get(small)["data"]
    assert contents(after["folder"]) == {"one.bin": b"other"}
    assert contents(before["folder"]) == SMALL, "who reads the old one is not disturbed"


def index(**changes: Any) -> bytes:
    sha256 = hashlib.sha256(b"x").hexdigest()
    files = changes.pop("files", {"one.bin": {"bytes": 1, "sha256": sha256}})
    known = {"schema": "prepared/v1", "case": CASE, "kind": "data", "format": "test/v1", "facts": {}, "sources": []}
    return json.dumps({**known, "files": files, **changes}).encode()


HOSTILE = {
    "not JSON": b"<html>",
    "another case": index(case="llama2-70b"),
    "a name that leads out": index(files={"../evil": {"bytes": 1, "sha256": "0" * 64}}),
    "a key that leads out": index(files={"one.bin": {"bytes": 1, "sha256": "../../../secret"}}),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_index_is_refused(bucket: str, server: Any, proxy: Any, tmp_path: Path, content: bytes) -> None:
    put_index(server, bucket, content)
    assert refused(f"s3://{bucket}/x").code is ExitCode.DATA
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was written"
    assert not reads(proxy)


def test_an_index_that_was_changed_in_the_bucket_is_refused(bucket: str, server: Any, small: str) -> None:
    found = server.get_object(Bucket=bucket, Key="x/data/prepared.json")
    server.put_object(
        Bucket=bucket, Key="x/data/prepared.json", Body=index(), Metadata={"sha256": found["Metadata"]["sha256"]}
    )
    error = refused(small)
    assert (error.code, "x/data/prepared.json" in error.message) == (ExitCode.DATA, True)


def put_index(server: Any, bucket: str, content: bytes) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    server.put_object(Bucket=bucket, Key="x/data/prepared.json", Body=content, Metadata={"sha256": sha256})


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


def test_a_bad_network_is_borne(bucket: str, tmp_path: Path, proxy: Any) -> None:
    files = {"one.bin": b"some bytes", "two.bin": bytes(7_000)}
    put(prepare(tmp_path / "out", files), f"s3://{bucket}/x")
    seen: set[tuple[str, str]] = set()

    def once(method: str, path: str, count: int) -> Any:
        first = (method, path) not in seen
        seen.add((method, path))
        return "reset" if first else None

    proxy.fault = once
    assert contents(get(f"s3://{bucket}/x")["data"]["folder"]) == files


def test_a_server_that_is_down_is_told(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert refused(small).code is ExitCode.ENGINE


def test_a_damaged_cache_is_repaired(small: str, proxy: Any) -> None:
    folder = Path(get(small)["data"]["folder"])
    (folder / "one.bin").unlink()
    (folder / "three.bin").write_bytes(b"short")
    proxy.requests.clear()
    assert contents(get(small)["data"]["folder"]) == SMALL
    assert len(reads(proxy)) == 2
