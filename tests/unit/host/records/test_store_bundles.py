"""Bundles in a store: kept under keys that name their content, found with one listing, removed with their record."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundles import bundle
from flagbench.records.blobs import Blob, StoreError
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.removal import remove, with_bundles
from flagbench.records.store import Store
from flagbench.records.store_keys import BundlePlace, parse_bundle_key
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench

ID = "20260101T120000Z-0001"
CONTENT = bundle()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PLACE = BundlePlace(ID, 0, SHA256)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "made.tar.gz"
    made.write_bytes(CONTENT)
    return made


@pytest.mark.parametrize(
    "key",
    [
        f"bundles/../node-0-{SHA256}.tar.gz",
        f"bundles/{ID}/node-00-{SHA256}.tar.gz",
        f"bundles/{ID}/node-0-{SHA256[1:]}.tar.gz",
        f"bundles/{ID}/x/node-0-{SHA256}.tar.gz",
        f"bundles/{ID}/node-0-{SHA256}.tar.gz.part",
    ],
)
def test_keys_that_are_not_of_the_layout(key: str) -> None:
    assert parse_bundle_key(key) is None


def test_a_bundle_is_kept_once_and_comes_back(store: Store, file: Path, tmp_path: Path) -> None:
    assert store.bundles.put(PLACE, file) is True
    assert store.bundles.put(PLACE, file) is False
    (found,) = store.bundles.find(ID)
    assert (found.place, found.size, found.record_id) == (PLACE, len(CONTENT), ID)
    assert store.bundles.all() == {ID: [found]}
    store.bundles.get(found, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == CONTENT
    assert [entry.name for entry in Path(found.location).parent.iterdir()] == [found.name], "nothing beside it"
    assert [*store.list_records()] == []
    store.bundles.remove(found)
    store.bundles.remove(found)
    assert store.bundles.find(ID) == []


def test_bytes_of_another_sha256_are_neither_kept_nor_given(store: Store, file: Path, tmp_path: Path) -> None:
    store.bundles.put(PLACE, file)
    (found,) = store.bundles.find(ID)
    Path(found.location).write_bytes(b"x" * len(CONTENT))
    with pytest.raises(StoreError) as damaged:
        store.bundles.get(found, tmp_path / "got")
    assert damaged.value.code is ExitCode.DATA
    assert not (tmp_path / "got").exists()
    assert store.bundles.put(PLACE, file) is True, "a damaged one is replaced"
    file.write_bytes(b"other")
    with pytest.raises(StoreError) as refused:
        store.bundles.put(BundlePlace(ID, 1, SHA256), file)
    assert refused.value.code is ExitCode.NOT_STORED
    assert len(store.bundles.find(ID)) == 1


def test_a_full_disk_leaves_no_part_of_a_bundle(small_disk: Path, file: Path) -> None:
    file.write_bytes(os.urandom(200_000))
    place = BundlePlace(ID, 0, hashlib.sha256(file.read_bytes()).hexdigest())
    with pytest.raises(StoreError) as caught:
        Store(FolderBlobs(small_disk / "store")).bundles.put(place, file)
    assert (caught.value.code, "space" in caught.value.remedy) == (ExitCode.NOT_STORED, True)
    assert [found for found in small_disk.rglob("*") if found.is_file()] == []


class Listings(FolderBlobs):
    """Counts what is listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[str] = []

    def list(self, prefix: str) -> Iterator[Blob]:
        self.listed.append(prefix)
        return super().list(prefix)


def test_many_records_take_one_listing_of_bundles(
    tmp_path: Path, file: Path, make_record: Callable[..., bytes]
) -> None:
    blobs = Listings(tmp_path / "store")
    store = Store(blobs)
    for number in range(5):
        name = f"20260101T120000Z-000{number}"
        store.put(make_record(record_id=name))
        store.bundles.put(BundlePlace(name, 0, SHA256), file)
    entries = [*store.list_records()]
    blobs.listed.clear()
    records = with_bundles(store, entries)
    assert blobs.listed == ["bundles/"]
    assert all(len(record.bundles) == 1 and record.size > len(CONTENT) for record in records)
    for record in records[1:]:
        remove(store, record)
    assert [*store.bundles.all()] == [records[0].record_id]
    assert [entry.record_id for entry in store.list_records()] == [records[0].record_id]


def test_show_and_rm_know_bundles(
    store: Store, file: Path, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    store.put(make_record(record_id=ID))
    store.bundles.put(PLACE, file)
    assert PLACE.key.rpartition("/")[2] in flagbench("results show last --wide").out
    assert flagbench("results rm last --yes").code == 0
    assert store.bundles.all() == {}


def test_a_bundle_that_another_process_stored_meanwhile_is_there(store: Store, file: Path) -> None:
    store.bundles.put(PLACE, file)
    file.unlink()
    assert not store.bundles.put(PLACE, file)
    with pytest.raises(StoreError):
        store.bundles.put(BundlePlace(ID, 1, SHA256), file)
