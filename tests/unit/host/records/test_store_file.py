"""A folder store keeps every record byte for byte: through writers, full disks, crashes, flipped bits."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import multiprocessing.synchronize
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from flagbench.records.blobs import StoreError
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.read import RecordError
from flagbench.records.store import Store, open_store
from flagbench_cases.record.stores import FolderStore
from flagbench_core.exit_codes import ExitCode

MakeRecord = Callable[..., bytes]
WRITERS = 32
ID = "20260101T120000Z-0001"
DAY = Path("results", "v1", "case=distilbert", "stack=cpu", "2026-01-01")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(FolderBlobs(tmp_path / "store"))


def refused(code: ExitCode, action: Callable[..., object], *arguments: object) -> StoreError:
    """The error with which a call ends."""
    with pytest.raises(StoreError) as caught:
        action(*arguments)
    assert caught.value.code is code
    return caught.value


def files(root: Path) -> list[str]:
    """The names of all files but the index, which is a cache."""
    return sorted(path.name for path in (root / "results" / "v1").rglob("*") if path.is_file())


def test_a_record_is_kept_byte_for_byte_with_a_checksum_and_once(store: Store, make_record: MakeRecord) -> None:
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
    inode = path.stat().st_ino
    assert store.put(content) == stored
    assert path.stat().st_ino == inode


@pytest.mark.parametrize("changes", [{"preset": "reference"}, {"stack": "a100-cuda11.6"}])
def test_other_bytes_under_a_taken_id_are_refused(
    store: Store, make_record: MakeRecord, changes: dict[str, str]
) -> None:
    store.put(make_record())
    assert ID in refused(ExitCode.NOT_STORED, store.put, make_record(**changes)).message
    assert store.get(ID) == make_record()
    assert len(files(store.blobs.root)) == 2


def test_only_valid_records_are_kept(store: Store, make_record: MakeRecord) -> None:
    for content in (b"{}", make_record(record_id="../../../../escaped")):
        with pytest.raises(RecordError):
            store.put(content)
    assert not store.blobs.root.exists()


@pytest.mark.parametrize(
    "record_id", ["../../secret", "a/b", "*" * 8, "short", "x" * 161, f"{ID}\n", ".hidden-id", ""]
)
def test_hostile_ids_are_refused(store: Store, record_id: str) -> None:
    refused(ExitCode.USAGE, store.get, record_id)


def test_listing_is_newest_first_and_filtered(store: Store, make_record: MakeRecord) -> None:
    for index, (day, hour, stack) in enumerate(
        [("01", "09", "cpu"), ("02", "08", "cpu"), ("01", "11", "a100-cuda11.6"), ("02", "07", "cpu")]
    ):
        created = f"2026-01-{day}T{hour}:00:00Z"
        store.put(make_record(record_id=f"record-{index}", created_at=created, stack=stack))
    store.blobs.put_if_absent("results/v1/notes.txt", b"no place of a record")
    assert [entry.record_id for entry in store.list_records()] == ["record-1", "record-3", "record-2", "record-0"]
    assert [entry.record_id for entry in store.list_records(None, "cpu")] == ["record-1", "record-3", "record-0"]
    assert (
        len([*store.list_records("distilbert", "cpu", "a100-cuda11.6")])
        == store.count("distilbert", "cpu", "a100") + 1
    )
    assert list(store.list_records(case="glm")) == []


def test_a_flipped_bit_is_found_on_read(store: Store, make_record: MakeRecord) -> None:
    path = Path(store.put(make_record()).location)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    refused(ExitCode.DATA, store.get, ID)
    assert [entry.record_id for entry in store.list_records()] == [ID]


def test_a_lost_checksum_is_found_and_put_heals_it(store: Store, make_record: MakeRecord) -> None:
    path = Path(store.put(make_record()).location)
    path.with_name(f"{path.name}.sha256").unlink()
    refused(ExitCode.DATA, store.get, ID)
    (listed,) = store.list_records()
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


def test_a_crash_between_the_two_files_is_healed(store: Store, make_record: MakeRecord) -> None:
    crash = multiprocessing.get_context("spawn").Process(
        target=_die_before_the_second_link, args=(store.blobs.root, make_record())
    )
    crash.start()
    crash.join()
    assert crash.exitcode == 9
    assert list(store.list_records()) == []
    refused(ExitCode.NOT_STORED, store.put, make_record(preset="reference"))
    store.put(make_record())
    assert store.get(ID) == make_record()


def _put(root: Path, content: bytes, start: multiprocessing.synchronize.Barrier) -> None:
    start.wait()
    Store(FolderBlobs(root)).put(content)


def _fork_writers(root: Path, contents: list[bytes]) -> list[int | None]:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(contents))
    writers = [context.Process(target=_put, args=(root, content, start)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return [writer.exitcode for writer in writers]


@pytest.mark.parametrize(
    ("ids", "runs", "kept"), [(1, 1, 1), (WRITERS, 1, WRITERS), (1, WRITERS, 1)], ids=["same", "others", "one id"]
)
def test_32_writers_at_once_lose_nothing_and_mix_nothing(
    store: Store, make_record: MakeRecord, ids: int, runs: int, kept: int
) -> None:
    """Of different records under one id, one is kept whole and its writer alone succeeds."""
    contents = [make_record(record_id=f"writer-{i % ids:02}", run_id=f"run-{i % runs}") for i in range(WRITERS)]
    # Forked from a process that has no threads.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        codes = pool.submit(_fork_writers, store.blobs.root, contents).result()
    succeeded = {content for content, code in zip(contents, codes) if code == 0}
    assert codes.count(0) == (WRITERS if runs == 1 else 1)
    assert {store.read(entry) for entry in store.list_records()} == succeeded
    assert len(files(store.blobs.root)) == kept * 2


def test_a_full_disk_keeps_nothing_half_written(small_disk: Path, make_record: MakeRecord) -> None:
    store = Store(FolderBlobs(small_disk / "store"))
    store.put(make_record(record_id="fits-first"))
    error = refused(ExitCode.NOT_STORED, store.put, make_record(argv=["x" * 100_000]))
    assert os.strerror(errno.ENOSPC) in error.message
    assert files(store.blobs.root) == ["fits-first.json", "fits-first.json.sha256"]
    store.put(make_record())


def test_a_read_only_disk(small_disk: Path, make_record: MakeRecord) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = Store(FolderBlobs(small_disk / "store"))
    error = refused(ExitCode.NOT_STORED, store.put, make_record())
    assert os.strerror(errno.EROFS) in error.message
    assert not Store(FolderBlobs(small_disk)).health().ok


def test_a_path_through_a_file(tmp_path: Path, make_record: MakeRecord) -> None:
    (tmp_path / "file").write_text("")
    for store in (Store(FolderBlobs(tmp_path / "file")), Store(FolderBlobs(tmp_path / "file" / "store"))):
        assert str(tmp_path / "file") in refused(ExitCode.NOT_STORED, store.put, make_record()).message
        assert not store.health().ok
        refused(ExitCode.USAGE, store.get, ID)


def test_an_empty_store_lists_nothing_and_health_adds_nothing(store: Store) -> None:
    assert list(store.list_records()) == []
    refused(ExitCode.DATA, store.get, ID)
    assert store.health().ok
    assert not store.blobs.root.exists()
    store.blobs.root.mkdir()
    assert store.health().ok
    assert list(store.blobs.root.iterdir()) == []


def test_which_store_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLAGBENCH_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert open_store().url == (tmp_path / "flagbench" / "store").as_uri()
    monkeypatch.setenv("FLAGBENCH_STORE", f"file://{tmp_path}/from%20the%20environment")
    assert open_store().url == (tmp_path / "from the environment").as_uri()
    monkeypatch.chdir(tmp_path)
    strange = tmp_path / os.fsdecode(b"\xff")
    for named, root in ((str(tmp_path), tmp_path), ("relative", tmp_path / "relative"), (strange.as_uri(), strange)):
        assert open_store(named).blobs.root == root


@pytest.mark.parametrize(
    ("url", "remedy"),
    [("https://host/x", "file:///"), ("file://host/x", "file:///host/x")],
)
def test_addresses_that_are_not_a_folder(url: str, remedy: str) -> None:
    error = refused(ExitCode.USAGE, open_store, url)
    assert url in error.message
    assert remedy in error.remedy


def test_what_an_image_stores_is_what_the_host_would_have_stored(tmp_path: Path, make_record: MakeRecord) -> None:
    line = make_record().decode()
    image, host = tmp_path / "image", Store(FolderBlobs(tmp_path / "host"))
    FolderStore(str(image)).put_record(json.loads(line), line)
    host.put(line.encode() + b"\n")
    stored, expected = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.json*")}
        for root in (image, tmp_path / "host")
    )
    assert stored == expected
    assert len(stored) == 2
    (listed,) = Store(FolderBlobs(image)).list_records()
    assert (listed.record_id, listed.error) == (ID, None)
