"""Bundles in a store: kept under keys that name their content, found with one listing, removed with their record."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bundles import bundle
from flagbench.errors import ExitCode
from flagbench.stores import Bundle, FolderBlobs, Store, StoreError, set_aside
from flagbench.stores.blobs import Blob
from flagbench.stores.layout import BundlePlace, InboxPlace, parse_bundle_key, parse_inbox_key
from flagbench.stores.waiting import adopt_bundles, bundle_folder, unsent, waiting

from .conftest import ROOT, Flagbench

ID = "20260101T120000Z-0001"
CONTENT = bundle()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PLACE = BundlePlace(ID, 0, SHA256)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "made.tar.gz"
    made.write_bytes(CONTENT)
    return made


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "flagbench"


@pytest.mark.parametrize(
    "key",
    [
        f"bundles/../node-0-{SHA256}.tar.gz",
        f"bundles/{ID}/node-00-{SHA256}.tar.gz",
        f"bundles/{ID}/node--1-{SHA256}.tar.gz",
        f"bundles/{ID}/node-0-{SHA256[1:]}.tar.gz",
        f"bundles/{ID}/node-0-{SHA256.upper()}.tar.gz",
        f"bundles/{ID}/x/node-0-{SHA256}.tar.gz",
        f"bundles/{ID}/node-0-{SHA256}.tar.gz.part",
        "inbox/run/record.txt",
        "inbox/run/node-1234567.tar.gz",
        "inbox/.hidden/record.json",
        "inbox/a/b/record.json",
    ],
)
def test_keys_that_are_not_of_the_layout(key: str) -> None:
    assert (parse_bundle_key(key), parse_inbox_key(key)) == (None, None)


def test_a_key_says_what_it_was_made_of() -> None:
    assert parse_bundle_key(PLACE.key) == PLACE
    for place in (InboxPlace("run-1", None), InboxPlace("run-1", 99_999)):
        assert parse_inbox_key(place.key) == place


def test_a_bundle_is_kept_once_and_comes_back(store: Store, file: Path, tmp_path: Path) -> None:
    assert store.bundles.put(PLACE, file) is True
    assert store.bundles.put(PLACE, file) is False
    (found,) = store.bundles.of(ID)
    assert (found.place, found.size, found.record_id) == (PLACE, len(CONTENT), ID)
    assert store.bundles.all() == {ID: [found]}
    store.bundles.get(found, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == CONTENT
    assert [entry.name for entry in Path(found.location).parent.iterdir()] == [found.name], "nothing beside it"
    assert [*store.list()] == []
    store.bundles.remove(found)
    store.bundles.remove(found)
    assert store.bundles.of(ID) == []


def test_other_bytes_than_the_name_says_are_neither_kept_nor_given(store: Store, file: Path, tmp_path: Path) -> None:
    store.bundles.put(PLACE, file)
    (found,) = store.bundles.of(ID)
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
    assert len(store.bundles.of(ID)) == 1


def test_a_full_disk_leaves_no_part_of_a_bundle(small_disk: Path, file: Path) -> None:
    file.write_bytes(os.urandom(200_000))
    place = BundlePlace(ID, 0, hashlib.sha256(file.read_bytes()).hexdigest())
    store = Store(FolderBlobs(small_disk / "store"))
    with pytest.raises(StoreError) as caught:
        store.bundles.put(place, file)
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


def test_removing_many_records_takes_one_listing_of_bundles(
    tmp_path: Path, file: Path, make_record: Callable[..., bytes]
) -> None:
    from flagbench import prune

    blobs = Listings(tmp_path / "store")
    store = Store(blobs)
    for number in range(5):
        name = f"20260101T120000Z-000{number}"
        store.put(make_record(record_id=name))
        store.bundles.put(BundlePlace(name, 0, SHA256), file)
    entries = [*store.list()]
    blobs.listed.clear()
    found = prune.records(store, entries)
    assert blobs.listed == ["bundles/"]
    assert all("bundle" in one.detail and one.size > len(CONTENT) for one in found)
    for one in found[1:]:
        one.remove()
    assert [*store.bundles.all()] == [found[0].name]
    assert [entry.record_id for entry in store.list()] == [found[0].name]


def test_pull_and_show_and_rm_know_bundles(
    store: Store, file: Path, tmp_path: Path, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    store.put(make_record(record_id=ID))
    store.bundles.put(PLACE, file)
    assert PLACE.key.rpartition("/")[2] in flagbench("results show last --wide").out
    target = tmp_path / "target"
    assert flagbench(f"results pull --to {target}").code == 0
    assert Store(FolderBlobs(target)).bundles.all() == {}
    assert flagbench(f"results pull --bundles --to {target}").code == 0, "its record is there already"
    assert [each.place for each in Store(FolderBlobs(target)).bundles.of(ID)] == [PLACE]
    assert flagbench("results rm last --yes").code == 0
    assert store.bundles.all() == {}


# -- waiting ---------------------------------------------------------------------------------------------------------


def written(folder: Path, place: BundlePlace = PLACE, content: bytes = CONTENT) -> Path:
    """A bundle as an image writes it."""
    path = folder / place.key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_runs_bundle_waits_for_its_store_under_its_key(data: Path, tmp_path: Path, flagbench: Flagbench) -> None:
    address = (tmp_path / "store").as_uri()
    with bundle_folder(address) as folder:
        written(folder)
        (folder / "bundles" / ID / "README").write_text("not a bundle")
        outside = tmp_path / "outside" / f"node-1-{SHA256}.tar.gz"
        outside.parent.mkdir()
        outside.write_bytes(CONTENT)
        (folder / "bundles" / "20260101T120000Z-link").symlink_to(outside.parent)
        adopted = adopt_bundles(folder, address)
    assert not folder.exists()
    assert [place for place, _ in adopted] == [PLACE]
    assert outside.exists(), "a link does not lead out of the folder"
    assert [each.place for each in unsent(address).bundles.of(ID)] == [PLACE]
    assert flagbench("results push").code == 0
    assert [each.place for each in Store(FolderBlobs(tmp_path / "store")).bundles.of(ID)] == [PLACE]
    assert unsent(address).bundles.all() == {}


def test_what_a_killed_run_left_is_removed_by_the_next_and_what_a_live_one_has_is_not(data: Path) -> None:
    script = (
        "import sys, time\nfrom flagbench.stores.waiting import bundle_folder\n"
        "with bundle_folder('s3://bench') as folder:\n    print(folder, flush=True)\n    time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "builder")}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        theirs = Path(run.stdout.readline().strip())
        try:
            with bundle_folder("s3://bench"):
                assert theirs.is_dir()
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        assert theirs.is_dir()
        with bundle_folder("s3://bench"):
            assert not theirs.exists()
    assert [address for address, _ in waiting()] == ["s3://bench"]


def test_bundles_of_an_out_folder_are_pushed_where_they_were_meant_for(
    tmp_path: Path, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    target, room = Store(FolderBlobs(tmp_path / "target")), tmp_path / "out" / "unsent" / "0123456789abcdef"
    written(room)
    Store(FolderBlobs(room)).put(make_record(record_id=ID))
    (room / "meant-for").write_text(target.url)
    refused = flagbench(f"results push {tmp_path / 'out'}")
    assert (refused.code, target.url in refused.err, "--store" in refused.err) == (ExitCode.NOT_STORED, True, True)
    assert not (tmp_path / "target").exists(), "the folder may come from another machine, and name any of this one"
    pushed = flagbench(f"results push {tmp_path / 'out'} --store {target.url}")
    assert pushed.code == 0, pushed.err
    assert (target.find(ID), [each.place for each in target.bundles.of(ID)]) == ([ID], [PLACE])
    assert not room.parent.exists(), "nothing waits any more"


def test_records_of_an_out_folder_in_which_something_waited_once(
    store: Store, tmp_path: Path, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    out, room = tmp_path / "out", tmp_path / "out" / "unsent" / "0123456789abcdef"
    Store(FolderBlobs(room)).put(make_record(record_id=ID))
    (room / "meant-for").write_text("s3://bucket")
    other = {"record_id": "20260101T120000Z-0002"}
    (out / "record.json").write_bytes(make_record(**other))
    assert flagbench(f"results push {out} --store {store.url}").code == 0
    assert store.find("") == [ID], "what waits comes first"
    room.mkdir(parents=True)  # as a version that left it
    (room / "meant-for").write_text("s3://bucket")
    assert flagbench(f"results push {out}").code == 0
    assert store.find("") == [ID, other["record_id"]]


def test_an_out_folder_of_a_run_that_was_killed_before_it_kept_anything(tmp_path: Path, flagbench: Flagbench) -> None:
    out, room = tmp_path / "out", tmp_path / "out" / "unsent" / "0123456789abcdef"
    out.mkdir()
    assert flagbench(f"results push {out}").code == ExitCode.DATA, "it may be another folder"
    room.mkdir(parents=True)
    (room / "meant-for").write_text("s3://bucket")
    ended = flagbench(f"results push {out}")
    assert (ended.code, ended.err.strip()) == (0, "nothing is waiting to be stored")
    assert not room.exists()


def test_a_folder_without_room_for_bundles_does_not_keep_records_back(
    store: Store,
    file: Path,
    tmp_path: Path,
    make_record: Callable[..., bytes],
    flagbench: Flagbench,
) -> None:
    store.put(make_record(record_id=ID))
    store.bundles.put(PLACE, file)
    target = Store(FolderBlobs(tmp_path / "target"))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / ".pulling").write_text("not a folder")
    pulled = flagbench(f"results pull --bundles --to {target.url}")
    assert (pulled.code, "writable" in pulled.err) == (ExitCode.NOT_STORED, True)
    assert target.find(ID) == [ID]


def test_a_room_is_held_while_something_is_put_into_it(
    data: Path, make_record: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that has stored what waited there may be about to remove it."""
    held = []

    def put(self: Store, record: bytes, **more: Any) -> Any:
        descriptor = os.open(data / "unsent", os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(False)
        except BlockingIOError:
            held.append(True)
        finally:
            os.close(descriptor)

    monkeypatch.setattr(Store, "put", put)
    set_aside(make_record(record_id=ID), "s3://bucket")
    assert held == [True]


def test_records_of_an_out_folder_in_which_nothing_waits(
    store: Store, tmp_path: Path, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "record.json").write_bytes(make_record(record_id=ID))
    assert flagbench(f"results push {tmp_path / 'out'}").code == 0
    assert store.find(ID) == [ID]


def test_what_waits_for_a_ticket_is_told_and_goes_where_store_says(
    data: Path, store: Store, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    set_aside(make_record(record_id=ID), "ticket:run-1")
    told = flagbench("results push")
    assert (told.code, "run-1" in told.err, "--ticket" in told.err) == (ExitCode.NOT_STORED, True, True)
    assert flagbench(f"results push --store {store.url}").code == 0
    assert store.find(ID) == [ID]


def test_2000_records_and_their_bundles_are_listed_by_one_listing(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "bundles"
    for number in range(2000):
        (folder / f"20260101T120000Z-{number:04}").mkdir(parents=True)
        (folder / f"20260101T120000Z-{number:04}" / f"node-0-{SHA256}.tar.gz").touch()
    blobs = Listings(tmp_path / "store")
    begin = time.process_time()
    found = Store(blobs).bundles.all()
    assert (len(found), blobs.listed) == (2000, ["bundles/"])
    assert time.process_time() - begin < 2
    assert isinstance(found["20260101T120000Z-0000"][0], Bundle)


def test_a_bundle_that_another_process_stored_meanwhile_is_there(store: Store, file: Path) -> None:
    store.bundles.put(PLACE, file)
    file.unlink()
    assert not store.bundles.put(PLACE, file)
    with pytest.raises(StoreError):
        store.bundles.put(BundlePlace(ID, 1, SHA256), file)


def test_a_record_that_another_process_stored_meanwhile_is_no_failure(
    data: Path, store: Store, make_record: Callable[..., bytes], flagbench: Flagbench, monkeypatch: Any
) -> None:
    set_aside(make_record(record_id=ID), store.url)
    real = Store.read_all

    def read_all(self: Store, entries: Any) -> Any:
        found = [*entries]
        for entry in found:
            self.remove(entry)
        return real(self, found)

    monkeypatch.setattr(Store, "read_all", read_all)
    ended = flagbench("results push")
    assert (ended.code, ended.err.strip()) == (0, "nothing is waiting to be stored")


def test_what_does_not_say_where_it_is_meant_for_waits_on(
    data: Path, store: Store, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    set_aside(make_record(record_id=ID), "s3://bucket")
    (room,) = (data / "unsent").glob("*/meant-for")
    room.write_bytes(b"")
    ended = flagbench("results push")
    assert (ended.code, "--store" in ended.err) == (ExitCode.NOT_STORED, True)
    assert flagbench(f"results push --store {store.url}").code == 0
    assert store.find(ID) == [ID]


def test_a_pull_of_bundles_that_was_killed_is_resumed_and_leaves_nothing(
    store: Store, file: Path, tmp_path: Path, make_record: Callable[..., bytes], flagbench: Flagbench
) -> None:
    store.put(make_record(record_id=ID))
    store.bundles.put(PLACE, file)
    target = Store(FolderBlobs(tmp_path / "target"))
    left = tmp_path / "target" / ".pulling" / ID / PLACE.key.rpartition("/")[2]
    left.parent.mkdir(parents=True)
    left.write_bytes(CONTENT[:100])
    assert flagbench(f"results pull --bundles --to {target.url}").code == 0
    assert [each.place for each in target.bundles.of(ID)] == [PLACE]
    assert not (tmp_path / "target" / ".pulling").exists()
