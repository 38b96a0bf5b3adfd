"""A series in a bucket: begun once, noted run by run, stored whole, its parts removed."""

from __future__ import annotations

import hashlib
import json

import pytest
from msgspec.structs import replace

from flagbench.records.blobs import StoreError
from flagbench.records.series import SeriesWriter, read_series
from flagbench.records.store import Store
from flagbench_core.exit_codes import ExitCode
from unit.host.records.test_series import DAY, planned, record_of

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
