"""What could not be stored waits in one folder, until `flagbench results push` sends it where it was meant for."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bundles import bundle
from flagbench.errors import ExitCode
from flagbench.stores import FolderBlobs, Store
from flagbench.stores.layout import BundlePlace
from flagbench.stores.waiting import adopt_bundles, bundle_folder, set_aside, unsent_folder, waiting

from .conftest import ROOT, Flagbench, MakeRecord

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
def out(tmp_path: Path, make_record: MakeRecord) -> Callable[[str], Path]:
    """Makes the folder of --out of a run whose record and bundle wait for an address."""

    def make(address: str) -> Path:
        folder = tmp_path / "out"
        folder.mkdir()
        for name, content in ((f"{ID}.json", make_record(record_id=ID)), (f"{ID}.node-0-{SHA256}.tar.gz", CONTENT)):
            (folder / name).write_bytes(content)
            (folder / f"{name}.meant-for").write_text(address)
        return folder

    return make


def test_a_runs_record_and_bundle_wait_and_are_pushed(
    target: Store, tmp_path: Path, make_record: MakeRecord, flagbench: Flagbench
) -> None:
    with bundle_folder() as folder:
        left = folder / PLACE.key
        left.parent.mkdir(parents=True)
        left.write_bytes(CONTENT)
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
    assert [each.place for each in waiting(unsent_folder())] == [PLACE, None], "bundles first"
    pushed = flagbench("results push --json")
    assert pushed.code == 0, pushed.err
    assert [each["record_id"] for name in ("stored", "bundles") for each in pushed.json[name]] == [ID, ID]
    assert (target.find(ID), [each.place for each in target.bundles.of(ID)]) == ([ID], [PLACE])
    assert os.listdir(unsent_folder()) == []
    assert flagbench("results push").err.strip() == "nothing is waiting to be stored"


def test_each_waits_for_an_address_of_its_own(target: Store, make_record: MakeRecord, flagbench: Flagbench) -> None:
    set_aside(make_record(record_id=ID), "s3://b")
    set_aside(make_record(record_id=OTHER), target.url)
    ended = flagbench("results push --json")
    assert (ended.code, [each["name"] for each in json.loads(ended.out)["failed"]]) == (ExitCode.USAGE, [ID])
    assert target.find("") == [OTHER]
    assert flagbench(f"results push --store {target.url}").code == 0
    assert target.find("") == [ID, OTHER]


@pytest.mark.parametrize("address", ["", "ticket:run-1"])
def test_what_has_no_address_needs_one(
    target: Store, make_record: MakeRecord, flagbench: Flagbench, address: str
) -> None:
    set_aside(make_record(record_id=ID), address)
    ended = flagbench("results push")
    assert (ended.code, "--store" in ended.err) == (ExitCode.NOT_STORED, True)
    assert ("--ticket" in ended.err) is bool(address)
    assert flagbench(f"results push --store {target.url}").code == 0
    assert target.find(ID) == [ID]


def test_what_a_killed_run_left_is_removed_by_the_next_and_what_a_live_one_has_is_not() -> None:
    script = (
        "import time\nfrom flagbench.stores.waiting import bundle_folder\n"
        "with bundle_folder() as folder:\n    print(folder, flush=True)\n    time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "builder")}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        theirs = Path(run.stdout.readline().strip())
        try:
            with bundle_folder():
                assert theirs.is_dir()
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        assert theirs.is_dir()
        with bundle_folder():
            assert not theirs.exists()


def test_the_folder_of_out_may_name_no_folder_of_this_machine(
    target: Store, out: Callable[[str], Path], flagbench: Flagbench
) -> None:
    folder = out(target.url)
    refused = flagbench(f"results push {folder}")
    assert (refused.code, "--store" in refused.err) == (ExitCode.NOT_STORED, True)
    assert target.find("") == [], "it may come from another machine"
    pushed = flagbench(f"results push {folder} --store {target.url}")
    assert pushed.code == 0, pushed.err
    assert (target.find(ID), [each.place for each in target.bundles.of(ID)]) == ([ID], [PLACE])
    assert os.listdir(folder) == [f"{ID}.json"], "the record is what --out asked for"


def test_records_of_an_out_folder_in_which_nothing_waits(
    store: Store, out: Callable[[str], Path], make_record: MakeRecord, flagbench: Flagbench
) -> None:
    folder = out("s3://bucket")
    (folder / f"{OTHER}.json").write_bytes(make_record(record_id=OTHER))
    assert flagbench(f"results push {folder} --store {store.url}").code == 0
    assert store.find("") == [ID], "what waits comes first"
    assert flagbench(f"results push {folder}").code == 0
    assert store.find("") == [ID, OTHER]


def test_files_are_pushed_each_for_itself(
    store: Store, tmp_path: Path, make_record: MakeRecord, flagbench: Flagbench
) -> None:
    good, bad, none = (tmp_path / f"{name}.json" for name in ("good", "bad", "none"))
    good.write_bytes(make_record(record_id=ID))
    bad.write_text("{}")
    ended = flagbench(f"results push --json {bad} {good} {none}")
    assert (ended.code, store.find("")) == (ExitCode.DATA, [ID])
    assert [each["name"] for each in json.loads(ended.out)["failed"]] == [str(bad), str(none)]


def test_what_was_not_written_to_its_end_does_not_wait(target: Store, flagbench: Flagbench) -> None:
    unsent_folder().mkdir(parents=True)
    (unsent_folder() / f"{ID}.json.meant-for").write_text(target.url)
    ended = flagbench("results push --json")
    assert (ended.code, ended.json) == (0, {"stored": [], "bundles": [], "failed": []})


def test_a_full_disk_leaves_no_record_that_says_it_waits(
    small_disk: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(small_disk))
    (small_disk / "full").write_bytes(bytes(50_000))
    with pytest.raises(Exception, match="space"):
        set_aside(make_record(record_id=ID, argv=["x" * 20_000]), "s3://bucket")
    assert os.listdir(unsent_folder()) == []
