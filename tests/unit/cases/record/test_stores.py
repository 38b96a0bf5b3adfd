"""Stores as the image side names and fills them: a folder, a bucket, the folder of what waits."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from pathlib import Path

import pytest

from flagbench_cases.record import stores
from flagbench_cases.record.stores import Bundle, FolderStore
from flagbench_cases.record.unsent import Unsent
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_core.exit_codes import ExitCode
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

RECORD = {"record_id": "20240506-1", "case": "glm", "stack": "a100-cuda11.6", "created_at": "2024-05-06T07:08:09Z"}
KEY = "results/v1/case=glm/stack=a100-cuda11.6/2024-05-06/20240506-1.json"
LINE = json.dumps(RECORD)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    path = tmp_path / "made.tar.gz"
    path.write_bytes(b"evidence")
    return Bundle(str(path), 1, hashlib.sha256(b"evidence").hexdigest(), 8)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "", "s3:x", "s3://b/x?secret=1", "https://host/x"])
def test_an_address_that_is_no_store(url: str) -> None:
    with refuses(UsageError, "--store") as caught:
        stores.open_store(url)
    assert "secret" not in caught.value.message + caught.value.remedy


def test_where_results_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGBENCH_STORE", "/b")
    assert [each and each.name for each in map(stores.open_store, (None, "/a"))] == ["/b", "/a"]
    monkeypatch.delenv("FLAGBENCH_STORE")
    bucket, folder = stores.open_store("s3://bucket/x?profile=ceph"), stores.open_store("file:///a%20b/../c")
    assert bucket is not None
    assert (bucket.name, bucket.meant_for) == ("s3://bucket/x?profile=ceph",) * 2
    assert folder is not None
    assert (folder.name, folder.meant_for) == ("/c", None)
    assert stores.open_store(None) is None


def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    FolderStore(str(tmp_path / "new" / "store")).check()
    for unusable in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/new")):
        with refuses(UsageError):
            FolderStore(str(unusable)).check()


def test_a_record_and_a_bundle_in_a_folder(tmp_path: Path, bundle: Bundle) -> None:
    place = FolderStore(str(tmp_path / "store"))
    assert place.put_record(RECORD, LINE) == str(tmp_path / "store" / KEY)
    key = "bundles/20240506-1/node-1-%s.tar.gz" % bundle.sha256
    assert place.put_bundle("20240506-1", bundle) == str(tmp_path / "store" / key)
    assert place.put_bundle("20240506-1", bundle), "the same again changes nothing"
    assert files(tmp_path / "store") == {KEY, KEY + ".sha256", key}
    with refuses(CaseError, KEY, code=ExitCode.NOT_STORED):
        place.put_record(RECORD, LINE)


def test_a_bundle_from_another_file_system(tmp_path: Path, bundle: Bundle, small_disk: Path) -> None:
    place = FolderStore(str(small_disk))
    path = place.put_bundle("20240506-1", bundle)
    assert Path(path).read_bytes() == b"evidence"
    large = tmp_path / "large"
    large.write_bytes(os.urandom(200_000))
    with refuses(CaseError, "bundle", code=ExitCode.NOT_STORED):
        place.put_bundle("20240506-2", bundle._replace(path=str(large), sha256="0" * 64))
    assert len(files(small_disk)) == 1, "nothing is left of it"


@pytest.mark.parametrize("out", [False, True])
def test_what_waits_is_where_the_host_looks(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, out: bool
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "an out" if out else tmp_path / "data" / "flagbench" / "unsent"
    unsent = Unsent("20240506-1", "s3://bucket/x", str(folder) if out else None)
    assert shlex.split(unsent.command) == ["flagbench", "results", "push", *([str(folder)] if out else [])]
    unsent.keep_bundle(bundle)
    unsent.keep_record(LINE)
    kept = {"20240506-1.json": LINE + "\n", "20240506-1.node-1-%s.tar.gz" % bundle.sha256: "evidence"}
    assert files(folder) == {name + end for name in kept for end in ("", ".meant-for")}
    for name, content in kept.items():
        assert (folder / name).read_text() == content
        assert (folder / (name + ".meant-for")).read_text() == "s3://bucket/x"
    unsent.forget_bundle(bundle)
    unsent.forget_record()
    unsent.forget_record()  # as after `flagbench results push`
    assert files(folder) == ({"20240506-1.json"} if out else set()), "a record stays where --out asks for it"


def test_what_cannot_wait_does_not_say_that_it_does(bundle: Bundle, small_disk: Path) -> None:
    unsent = Unsent("20240506-1", "s3://bucket/x", str(small_disk))
    large = small_disk.parent / "large"
    large.write_bytes(bytes(200_000))
    with refuses(CaseError, code=ExitCode.NOT_STORED):
        unsent.keep_record("x" * 200_000)
    with refuses(CaseError, code=ExitCode.NOT_STORED):
        unsent.keep_bundle(bundle._replace(path=str(large)))
    assert files(small_disk) == set()
