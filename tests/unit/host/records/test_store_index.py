"""A listing opens only records that its index does not know, and the index can be lost at any time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.index import Index, Summary
from flagbench.records.store import ReadRecord, Store, StoredRecord

MakeRecord = Callable[..., bytes]
SUMMARY = Summary(
    "2026-01-01T12:00:00Z", "run-1", "tiny", "faithful", "ok", 12.5, None, None, None, 1, {"p_core": 321.5}, 0
)


INDEX = Path("results", "index-v1.json")


class CountingBlobs(FolderBlobs):
    """A folder that knows which objects were opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def get(self, key: str, limit: int) -> bytes:
        """As the folder does."""
        self.opened.append(key)
        return super().get(key, limit)


@pytest.fixture
def root(tmp_path: Path, make_record: MakeRecord) -> Path:
    """A store of three records on three days."""
    store = Store(FolderBlobs(tmp_path / "store"))
    for day in (1, 2, 3):
        store.put(make_record(record_id=f"record-{day}", created_at=f"2026-01-0{day}T12:00:00Z"))
    return tmp_path / "store"


def listed(root: Path) -> tuple[list[StoredRecord], int]:
    """What is listed, and how many records were opened for it."""
    blobs = CountingBlobs(root)
    return list(Store(blobs).list_records()), len(blobs.opened)


@pytest.mark.parametrize("readers", [1, 4])
def test_a_second_listing_opens_nothing(root: Path, monkeypatch: pytest.MonkeyPatch, readers: int) -> None:
    monkeypatch.setattr(CountingBlobs, "readers", readers)
    first, opened = listed(root)
    assert opened == 3
    read = [read for _, read in Store(CountingBlobs(root)).read_all(first)]
    assert [read.record.record_id for read in read if isinstance(read, ReadRecord)] == [
        entry.record_id for entry in first
    ]
    assert listed(root) == (first, 0)
    assert first[0].summary == msgspec.structs.replace(SUMMARY, created_at="2026-01-03T12:00:00Z")


def test_the_last_record_is_found_by_opening_one(root: Path) -> None:
    blobs = CountingBlobs(root)
    assert (next(Store(blobs).list_records()).record_id, len(blobs.opened)) == ("record-3", 1)


def test_changes_made_by_another_program_are_noticed(root: Path, make_record: MakeRecord) -> None:
    listed(root)
    Store(FolderBlobs(root)).put(make_record(record_id="record-4", created_at="2026-01-04T00:00:00Z"))
    entries, opened = listed(root)
    assert (entries[0].record_id, opened) == ("record-4", 1)
    Path(entries[1].location).write_bytes(b"{}")
    Path(entries[2].location).unlink()
    entries, opened = listed(root)
    sound = {entry.record_id: entry.error is None for entry in entries}
    assert sound == {"record-4": True, "record-3": False, "record-1": True}
    assert opened == 1
    assert entries[1].created_at == "2026-01-03T12:00:00Z"
    rows = msgspec.json.decode((root / INDEX).read_bytes().partition(b"\n")[2])
    assert not any("record-2" in key for key in rows)


def summed(content: bytes) -> bytes:
    """An index of this content, with a checksum that fits."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: content.replace(b'"ok"', b'"ko"', 1),
        lambda content: summed(b'{"a": 1}'),
        lambda content: summed(content.partition(b"\n")[2].replace(b'"machine_digest"', b'"machine"')),
        lambda content: summed(b'{"a": ' + b"[" * 200_000),
        lambda content: summed(b'{"a": {"x": ' + b'{"x":' * 200_000),
        None,
    ],
    ids=["flipped", "of other types", "of an earlier version", "deep lists", "deep objects", "gone"],
)
def test_a_damaged_index_is_built_again(root: Path, damaged: Callable[[bytes], bytes] | None) -> None:
    before, _ = listed(root)
    content = (root / INDEX).read_bytes()
    (root / INDEX).unlink()
    if damaged is not None:
        (root / INDEX).write_bytes(damaged(content))
    assert listed(root) == (before, 3)
    assert listed(root) == (before, 0)


def test_a_folder_in_the_place_of_the_index_only_costs_time(root: Path) -> None:
    (root / INDEX).mkdir()
    assert listed(root) == listed(root)
    assert listed(root)[1] == 3


def test_two_writers_lose_nothing_and_readers_see_whole_files(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    path = tmp_path / INDEX
    path.parent.mkdir()
    one, other = Index(blobs), Index(blobs)
    one.put("a", "1-1", SUMMARY)
    one.save()
    before = path.read_bytes()
    with path.open("rb") as reader:
        other.put("b", "1-1", SUMMARY)
        other.save()
        assert reader.read() == before
    assert [Index(blobs).get(name, "1-1") for name in ("a", "b")] == [SUMMARY, SUMMARY]
    assert os.listdir(path.parent) == [path.name]
