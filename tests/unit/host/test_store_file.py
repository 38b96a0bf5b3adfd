"""A folder store keeps every record byte for byte: through writers, full disks, crashes, flipped bits."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import multiprocessing.synchronize
import os
import resource
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from flagbench.errors import ExitCode
from flagbench.record.model import RECORD_ID
from flagbench.record.read import RecordError
from flagbench.schema import validator
from flagbench.stores import FolderBlobs, Store, StoreError, open_store
from flagbench.stores.layout import check_record_id

MakeRecord = Callable[..., bytes]
WRITERS = 32
ID = "20260101T120000Z-0001"
DAY = Path("results", "v1", "case=distilbert", "stack=cpu", "2026-01-01")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(FolderBlobs(tmp_path / "store"))


def files(root: Path) -> list[str]:
    """The names of all files but the index, which is a cache."""
    return sorted(path.name for path in (root / "results" / "v1").rglob("*") if path.is_file())


def test_a_record_is_kept_byte_for_byte_with_a_checksum(store: Store, make_record: MakeRecord) -> None:
    content = make_record() + b"\n"
    stored = store.put(content)
    path = store.blobs.root / DAY / f"{ID}.json"
    assert (stored.record_id, stored.location) == (ID, str(path))
    assert path.read_bytes() == content == store.get(ID)
    expected = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    assert path.with_name(f"{path.name}.sha256").read_text() == expected
    assert files(store.blobs.root) == [path.name, f"{path.name}.sha256"]
    check = subprocess.run(["sha256sum", "-c", f"{path.name}.sha256"], cwd=path.parent, capture_output=True)
    assert check.returncode == 0


def test_the_same_bytes_again_change_nothing(store: Store, make_record: MakeRecord) -> None:
    first = store.put(make_record())
    inode = Path(first.location).stat().st_ino
    assert store.put(make_record()) == first
    assert Path(first.location).stat().st_ino == inode


@pytest.mark.parametrize("changes", [{"preset": "reference"}, {"stack": "a100-cuda11.6"}])
def test_other_bytes_under_a_taken_id_are_refused(
    store: Store, make_record: MakeRecord, changes: dict[str, str]
) -> None:
    store.put(make_record())
    with pytest.raises(StoreError) as caught:
        store.put(make_record(**changes))
    assert caught.value.code is ExitCode.NOT_STORED
    assert ID in caught.value.message
    assert store.get(ID) == make_record()
    assert len(files(store.blobs.root)) == 2


def test_only_valid_records_are_kept(store: Store, make_record: MakeRecord) -> None:
    with pytest.raises(RecordError):
        store.put(b"{}")
    with pytest.raises(RecordError) as caught:
        store.put(make_record(record_id="../../../../escaped"))
    assert "record_id" in caught.value.message
    assert not store.blobs.root.exists()


@pytest.mark.parametrize(
    "record_id", ["../../secret", "a/b", "*" * 8, "short", "x" * 161, f"{ID}\n", ".hidden-id", ""]
)
def test_hostile_ids_are_refused(store: Store, record_id: str) -> None:
    with pytest.raises(StoreError) as caught:
        store.get(record_id)
    assert caught.value.code is ExitCode.USAGE


def test_the_id_pattern_is_the_record_schema_s() -> None:
    pattern = validator("record").schema["properties"]["record_id"]["pattern"]
    assert pattern == f"^{RECORD_ID}$"
    assert check_record_id("a..b-c_d.9") == "a..b-c_d.9"


def test_listing_is_newest_first_and_filtered(store: Store, make_record: MakeRecord) -> None:
    for index, (day, hour, stack) in enumerate(
        [("01", "09", "cpu"), ("02", "08", "cpu"), ("01", "11", "a100-cuda11.6"), ("02", "07", "cpu")]
    ):
        created = f"2026-01-{day}T{hour}:00:00Z"
        store.put(make_record(record_id=f"record-{index}", created_at=created, stack=stack))
    assert [entry.record_id for entry in store.list()] == ["record-1", "record-3", "record-2", "record-0"]
    assert [entry.record_id for entry in store.list(stack="cpu")] == ["record-1", "record-3", "record-0"]
    assert list(store.list(case="glm")) == []
    last = store.last()
    assert last is not None
    assert last.record_id == "record-1"


def test_an_empty_store_lists_nothing(store: Store) -> None:
    assert list(store.list()) == []
    assert store.last() is None
    with pytest.raises(StoreError) as caught:
        store.get(ID)
    assert caught.value.code is ExitCode.DATA


def test_a_flipped_bit_is_found_on_read(store: Store, make_record: MakeRecord) -> None:
    path = Path(store.put(make_record()).location)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        store.get(ID)
    assert caught.value.code is ExitCode.DATA
    assert [entry.record_id for entry in store.list()] == [ID]


def test_a_lost_checksum_is_found_and_put_heals_it(store: Store, make_record: MakeRecord) -> None:
    path = Path(store.put(make_record()).location)
    path.with_name(f"{path.name}.sha256").unlink()
    with pytest.raises(StoreError) as caught:
        store.get(ID)
    assert caught.value.code is ExitCode.DATA
    (listed,) = store.list()
    assert "checksum" in (listed.problem or "")
    store.put(make_record())
    assert store.get(ID) == make_record()


def _die_before_the_second_link(root: Path, content: bytes) -> None:
    link, made = os.link, []

    def link_once(source: Path, target: Path) -> None:
        if made:
            os._exit(9)
        made.append(target)
        link(source, target)

    os.link = link_once  # type: ignore[assignment]
    Store(FolderBlobs(root)).put(content)


def test_a_crash_between_the_two_files_is_seen_and_healed(store: Store, make_record: MakeRecord) -> None:
    crash = multiprocessing.get_context("spawn").Process(
        target=_die_before_the_second_link, args=(store.blobs.root, make_record())
    )
    crash.start()
    crash.join()
    assert crash.exitcode == 9
    assert list(store.list()) == []
    assert not store.health().ok
    assert store.health().writable
    with pytest.raises(StoreError) as caught:
        store.put(make_record(preset="reference"))
    assert caught.value.code is ExitCode.NOT_STORED
    store.put(make_record())
    assert store.get(ID) == make_record()
    assert store.health().ok


def _put_many(root: Path, contents: list[bytes], start: multiprocessing.synchronize.Barrier) -> None:
    start.wait()
    for content in contents:
        Store(FolderBlobs(root)).put(content)


def _fork_writers(root: Path, work: list[list[bytes]]) -> list[int | None]:
    validator("record")  # compiled before the fork, once instead of 32 times
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(work))
    writers = [context.Process(target=_put_many, args=(root, contents, start)) for contents in work]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return [writer.exitcode for writer in writers]


def _all_at_once(root: Path, work: list[list[bytes]]) -> list[int | None]:
    """The exit codes of processes that write at once, forked from one that has no threads."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_fork_writers, root, work).result()


def test_32_writers_of_different_records_lose_nothing(store: Store, make_record: MakeRecord) -> None:
    work = [[make_record(record_id=f"writer-{w:02}-{n}") for n in range(3)] for w in range(WRITERS)]
    assert _all_at_once(store.blobs.root, work) == [0] * WRITERS
    assert len(list(store.list())) == WRITERS * 3
    for contents in work:
        for content in contents:
            assert store.get(json.loads(content)["record_id"]) == content
    assert len(files(store.blobs.root)) == WRITERS * 3 * 2


def test_32_writers_of_the_same_record_all_succeed(store: Store, make_record: MakeRecord) -> None:
    assert _all_at_once(store.blobs.root, [[make_record()]] * WRITERS) == [0] * WRITERS
    assert store.get(ID) == make_record()
    assert len(files(store.blobs.root)) == 2


def test_of_32_different_records_under_one_id_one_is_kept_whole(store: Store, make_record: MakeRecord) -> None:
    contents = [make_record(run_id=f"run-{writer}") for writer in range(WRITERS)]
    codes = _all_at_once(store.blobs.root, [[content] for content in contents])
    assert codes.count(0) == 1
    assert store.get(ID) == contents[codes.index(0)]


def test_a_full_disk_keeps_nothing_half_written(small_disk: Path, make_record: MakeRecord) -> None:
    store = Store(FolderBlobs(small_disk / "store"))
    store.put(make_record(record_id="fits-first"))
    with pytest.raises(StoreError) as caught:
        store.put(make_record(argv=["x" * 100_000]))
    assert caught.value.code is ExitCode.NOT_STORED
    assert os.strerror(errno.ENOSPC) in caught.value.message
    assert files(store.blobs.root) == ["fits-first.json", "fits-first.json.sha256"]
    store.put(make_record())


def test_a_file_size_limit_keeps_nothing_half_written(store: Store, make_record: MakeRecord) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(StoreError) as caught:
            store.put(make_record(argv=["x" * 10_000]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "ulimit -f" in caught.value.remedy
    assert files(store.blobs.root) == []


def test_a_read_only_disk(small_disk: Path, make_record: MakeRecord) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = Store(FolderBlobs(small_disk / "store"))
    with pytest.raises(StoreError) as caught:
        store.put(make_record())
    assert caught.value.code is ExitCode.NOT_STORED
    assert os.strerror(errno.EROFS) in caught.value.message
    assert not Store(FolderBlobs(small_disk)).health().writable


def test_a_path_through_a_file(tmp_path: Path, make_record: MakeRecord) -> None:
    (tmp_path / "file").write_text("")
    for store in (Store(FolderBlobs(tmp_path / "file")), Store(FolderBlobs(tmp_path / "file" / "store"))):
        with pytest.raises(StoreError) as caught:
            store.put(make_record())
        assert caught.value.code is ExitCode.NOT_STORED
        assert str(tmp_path / "file") in caught.value.message
        assert not store.health().writable
        for look in (store.last, lambda store=store: store.get("0123456789")):
            with pytest.raises(StoreError) as caught:
                look()
            assert caught.value.code is ExitCode.USAGE


def test_health_leaves_nothing_behind(store: Store) -> None:
    assert store.health().ok
    assert not store.blobs.root.exists()
    store.blobs.root.mkdir()
    assert store.health().ok
    assert list(store.blobs.root.iterdir()) == []


def test_which_store_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGBENCH_STORE", f"file://{tmp_path}/from%20the%20environment")
    assert open_store().url == (tmp_path / "from the environment").as_uri()
    assert open_store(str(tmp_path / "flag")).url == (tmp_path / "flag").as_uri()
    monkeypatch.chdir(tmp_path)
    assert open_store("relative").url == (tmp_path / "relative").as_uri()


def test_the_default_store_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("platformdirs")
    monkeypatch.delenv("FLAGBENCH_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert open_store().url == (tmp_path / "flagbench" / "store").as_uri()


@pytest.mark.parametrize(
    ("url", "remedy"),
    [("s3://bucket/prefix", "file:///"), ("https://host/x", "file:///"), ("file://host/x", "file:///host/x")],
)
def test_addresses_that_are_not_a_folder(url: str, remedy: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert caught.value.code is ExitCode.USAGE
    assert url in caught.value.message
    assert remedy in caught.value.remedy
