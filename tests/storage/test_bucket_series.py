"""A series in a bucket: begun once, noted run by run, stored whole, its parts removed; copied there and back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.errors import ExitCode
from flagbench.stores import FolderBlobs, Store, StoreError
from flagbench.stores.series import read_series
from flagbench.stores.series_writer import SeriesWriter
from unit.host.test_series import DAY, planned, record_of, stored_series

pytestmark = pytest.mark.s3


def test_a_series_in_a_bucket(store: Store) -> None:
    first, second = (SeriesWriter(store, replace(planned(count=2), token=each * 16)) for each in "ab")
    first.begin()
    with pytest.raises(StoreError) as caught:
        second.begin()
    assert caught.value.code is ExitCode.USAGE
    run = first.series.runs[0]
    content = record_of(run.run_id, run.seed, minute=2)
    stored = store.put(content)
    first.add(
        replace(
            run,
            state="ok",
            exit_code=0,
            record_id=stored.record_id,
            sha256=hashlib.sha256(content).hexdigest(),
            created_at=stored.created_at,
            config_digest=json.loads(content)["config_digest"],
            started_at=f"{DAY}T12:01:00Z",
            seconds=60.0,
        )
    )
    for _ in range(2):  # as a kill would leave it, and whole
        found = read_series(store, "mine")
        assert (len(found.records), len(found.left_out), found.problems) == (1, 1, ())
        if found.document.ended_at is None:
            first.finish(f"{DAY}T12:03:00Z")
    assert [blob.key for blob in store.blobs.list("series/")] == ["series/mine.json"]
    with pytest.raises(StoreError):
        second.begin()
    assert [blob.key for blob in store.blobs.list("series/")] == ["series/mine.json"]


@pytest.mark.parametrize("end", [True, False])
def test_a_series_is_copied_into_a_bucket_and_out_of_it(
    store: Store, flagbench: Any, tmp_path: Path, end: bool
) -> None:
    first, last = (Store(FolderBlobs(tmp_path / name)) for name in ("first", "last"))
    stored_series(first, end=end)
    for source, target in ((first, store), (store, last)):
        for copied in (["mine"], []):
            pulled = flagbench("results", "pull", "--store", source.url, "--to", target.url, "--json")
            assert pulled.returncode == 0, pulled.stderr
            assert [each["series_id"] for each in json.loads(pulled.stdout)["series"]] == copied
        assert read_series(target, "mine") == read_series(source, "mine")
        assert read_series(target, "mine").problems == ()
    said = [flagbench("verify", "mine", "--json", "--store", each.url) for each in (first, store, last)]
    assert len({(each.returncode, each.stdout) for each in said}) == 1
    assert json.loads(said[0].stdout)["series"][0]["held"] == 3


def test_a_bucket_that_has_another_series_keeps_it(store: Store, flagbench: Any, tmp_path: Path) -> None:
    source = Store(FolderBlobs(tmp_path / "source"))
    stored_series(source)
    stored_series(store, replace(planned(), token="f" * 16))
    (tmp_path / "series.json").write_bytes(source.blobs.get("series/mine.json", 10**6))
    for command in (("pull", "--store", source.url, "--to"), ("push", str(tmp_path / "series.json"), "--store")):
        ended = flagbench("results", *command, store.url)
        assert ended.returncode == ExitCode.NOT_STORED
        assert "another series is already stored as mine" in ended.stderr
    assert read_series(store, "mine").document.token == "f" * 16
