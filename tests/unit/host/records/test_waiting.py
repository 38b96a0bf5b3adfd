"""What could not be stored waits in one folder, until `flagbench results push` sends it where it was meant for."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from bundles import bundle
from catalogs import CATALOG
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.store import Store
from flagbench.records.store_keys import BundlePlace
from flagbench.records.waiting import adopt_bundles, bundle_folder, find_waiting, set_aside, unsent_folder
from flagbench.runs.keep import keep
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.request import RunRequest
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, MakeRecord

ID, OTHER = "20260101T120000Z-0001", "20260101T120000Z-0002"
CONTENT = bundle()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PLACE = BundlePlace(ID, 0, SHA256)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's data folder for each test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(FolderBlobs(tmp_path / "target"))


@pytest.fixture
def out(tmp_path: Path, make_record: MakeRecord) -> Path:
    """The folder of --out of a run whose record and bundle wait for a folder."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name, content in ((f"{ID}.json", make_record(record_id=ID)), (f"{ID}.node-0-{SHA256}.tar.gz", CONTENT)):
        (folder / name).write_bytes(content)
        (folder / f"{name}.meant-for").write_text("file:///elsewhere")
    return folder


def leave_bundle(folder: Path) -> Path:
    """Write a bundle as a run does."""
    left = folder / PLACE.key
    left.parent.mkdir(parents=True)
    left.write_bytes(CONTENT)
    return left


def test_a_runs_record_and_bundle_wait_and_are_pushed(
    target: Store, tmp_path: Path, make_record: MakeRecord, flagbench: Flagbench
) -> None:
    with bundle_folder() as folder:
        left = leave_bundle(folder)
        (left.parent / "README").write_text("not a bundle")
        outside = tmp_path / "outside" / f"node-1-{SHA256}.tar.gz"
        outside.parent.mkdir()
        outside.write_bytes(CONTENT)
        (folder / "bundles" / OTHER).symlink_to(outside.parent)
        adopted = adopt_bundles(folder, target.url)
    assert not folder.exists()
    assert [each.place for each in adopted] == [PLACE]
    assert outside.exists(), "a link does not lead out of the folder"
    set_aside(make_record(record_id=ID), target.url)
    assert [each.place for each in find_waiting(unsent_folder())] == [PLACE, None], "bundles first"
    pushed = flagbench("results push --json")
    assert pushed.code == 0, pushed.err
    assert [each["record_id"] for name in ("stored", "bundles") for each in pushed.json[name]] == [ID, ID]
    assert (target.find(ID), [each.place for each in target.bundles.find(ID)]) == ([ID], [PLACE])
    assert os.listdir(unsent_folder()) == []
    assert flagbench("results push").err.strip() == "nothing is waiting to be stored"


@pytest.mark.parametrize(
    ("output", "ended", "stored"),
    [(b"", (True, ExitCode.OK), [PLACE]), (b"no record\n", (False, ExitCode.NOT_STORED), [])],
    ids=["of a node that writes none", "damaged"],
)
def test_a_bundle_without_a_record(
    target: Store, output: bytes, ended: tuple[bool, int], stored: list[BundlePlace]
) -> None:
    with bundle_folder() as folder:
        leave_bundle(folder)
        request = RunRequest(CATALOG.cases["distilbert"], CATALOG.stacks["cpu"], bundle=str(folder))
        assert keep(LaunchResult(output, 0), request, target) == ended
    assert [each.place for each in target.bundles.find(ID)] == stored
    assert find_waiting(unsent_folder()) == []


def test_each_waits_for_an_address_of_its_own(target: Store, make_record: MakeRecord, flagbench: Flagbench) -> None:
    set_aside(make_record(record_id=ID), "s3://b")
    set_aside(make_record(record_id=OTHER), target.url)
    ended = flagbench("results push --json")
    assert (ended.code, [each["name"] for each in json.loads(ended.out)["failed"]]) == (ExitCode.USAGE, [ID])
    assert target.find("") == [OTHER]
    assert flagbench(f"results push --store {target.url}").code == 0
    assert target.find("") == [ID, OTHER]


def test_what_waits_in_a_folder_of_out(
    target: Store, out: Path, make_record: MakeRecord, flagbench: Flagbench
) -> None:
    (out / f"{OTHER}.json").write_bytes(make_record(record_id=OTHER))
    assert flagbench(f"results push {out}").code == ExitCode.NOT_STORED, "it may come from another machine"
    pushed = flagbench(f"results push {out} --store {target.url}")
    assert pushed.code == 0, pushed.err
    assert (target.find(""), [each.place for each in target.bundles.find(ID)]) == ([ID], [PLACE])
    assert set(os.listdir(out)) == {f"{ID}.json", f"{OTHER}.json"}, "records are what --out asked for"
    assert flagbench(f"results push {out} --store {target.url}").code == 0
    assert target.find("") == [ID, OTHER], "nothing else waits"


def test_files_are_pushed_each_for_itself(
    store: Store, tmp_path: Path, make_record: MakeRecord, flagbench: Flagbench
) -> None:
    good, bad, none = (tmp_path / f"{name}.json" for name in ("good", "bad", "none"))
    good.write_bytes(make_record(record_id=ID))
    bad.write_text("{}")
    ended = flagbench(f"results push --json {bad} {good} {none}")
    assert (ended.code, store.find("")) == (ExitCode.DATA, [ID])
    assert [each["name"] for each in json.loads(ended.out)["failed"]] == [str(bad), str(none)]


def test_a_store_is_not_pushed(target: Store, make_record: MakeRecord, flagbench: Flagbench, tmp_path: Path) -> None:
    target.put(make_record(record_id=ID))
    assert flagbench(f"results push {tmp_path / 'target'}").code == ExitCode.DATA


def test_what_was_not_written_to_its_end_does_not_wait(target: Store, flagbench: Flagbench) -> None:
    unsent_folder().mkdir(parents=True)
    (unsent_folder() / f"{ID}.json.meant-for").write_text(target.url)
    ended = flagbench("results push --json")
    assert (ended.code, ended.json) == (0, {"stored": [], "bundles": [], "failed": []})


def test_a_full_disk_leaves_no_record_that_says_it_waits(
    small_disk: Path, target: Store, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(small_disk))
    (small_disk / "full").write_bytes(bytes(50_000))
    waits = set_aside(make_record(record_id=ID, argv=["x" * 20_000]), "s3://bucket")
    assert os.listdir(unsent_folder()) == []
    waits.send(target)
    assert target.find(ID) == [ID], "it is stored all the same"


def test_a_folder_of_a_killed_run_goes_with_the_next(tmp_path: Path) -> None:
    """And the folder above it, where nothing waits in it."""
    child = os.fork()
    if not child:
        with bundle_folder():
            os._exit(0)
    os.waitpid(child, 0)
    assert len(os.listdir(unsent_folder())) == 1
    with bundle_folder() as folder:
        assert os.listdir(unsent_folder()) == [folder.name]
    assert not unsent_folder().exists()
