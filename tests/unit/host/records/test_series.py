"""A series against its records: what was changed afterwards, in either, makes it worthless; what is gone is named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flagbench.records.blobs import ListingDenied, StoreError
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.model import Builder
from flagbench.records.runs_and_series import SeriesSummary
from flagbench.records.series import LeftOut, SeriesWriter, load_series, read_series, series_ids
from flagbench.records.series_document import (
    MAX_RUNS,
    SeriesDocument,
    SeriesError,
    SeriesRequest,
    parse_series,
    planned_runs,
    seed_of,
    series_id_of,
)
from flagbench.records.store import Store
from flagbench_core.config import digest as config_digest
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import RECORD, Flagbench

DAY = "2026-01-01"
Edit = Callable[[dict[str, Any]], object]


def planned(name: str = "mine", count: int = 3, side: str | None = None) -> SeriesDocument:
    """A series before its first run."""
    series_id = series_id_of(name, side)
    return SeriesDocument(
        series_id=series_id,
        nonce=name,
        nonce_by="user",
        seeds="derived",
        token="0123456789abcdef",
        flagbench=Builder("0.1.0"),
        request=SeriesRequest(
            ("run", "distilbert:cpu", f"--repeat={count}", f"--name={name}"), "distilbert", "cpu", "native"
        ),
        requested=count,
        runs=planned_runs(name, series_id, count, None),
        started_at=f"{DAY}T12:00:00Z",
    )


def record_of(run_id: str, seed: int, minute: int, **changes: Any) -> bytes:
    """The record of a run that took some of the minute before it."""
    config = {"nodes": 1, "seed": seed}
    record = {
        **RECORD,
        "record_id": f"record-{run_id}",
        "run_id": run_id,
        "created_at": f"{DAY}T12:{minute:02}:00Z",
        "config": config,
        "config_digest": config_digest(config),
        **changes,
    }
    return json.dumps(record).encode() + b"\n"


@pytest.fixture
def document(store: Store) -> dict[str, Any]:
    """A sound series of three runs of a minute each, in the store with its records."""
    return dict(json.loads(stored_series(store).to_json()))


def stored_series(store: Store, series: SeriesDocument | None = None, *, end: bool = True) -> SeriesDocument:
    """Store a series and its records; without its end it is as a kill leaves it."""
    writer = SeriesWriter(store, series or planned())
    writer.begin()
    for run in writer.series.runs:
        content = record_of(run.run_id, run.seed, minute=2 * run.run)
        stored = store.put(content)
        raw = json.loads(content)
        writer.add(
            msgspec.structs.replace(
                run,
                state="ok",
                exit_code=0,
                record_id=stored.record_id,
                sha256=hashlib.sha256(content).hexdigest(),
                created_at=stored.created_at,
                config_digest=raw["config_digest"],
                started_at=f"{DAY}T12:{2 * run.run - 1:02}:00Z",
                seconds=60.0,
            )
        )
    if end:
        writer.finish(f"{DAY}T12:07:00Z")
    return writer.series


def stored_record(store: Store, number: int) -> Any:
    """The entry of a run's record."""
    return next(entry for entry in store.list_records() if entry.record_id == f"record-mine-{number}")


ENDING = ("record_id", "sha256", "created_at", "config_digest", "started_at", "seconds")


def exchange(runs: list[Any]) -> None:
    """Exchange the records of the first two runs."""
    for name in ENDING:
        runs[0][name], runs[1][name] = runs[1][name], runs[0][name]


TAMPERED: dict[str, tuple[Edit, str]] = {
    "another name": (lambda d: d.update(nonce="yours"), "name yours"),
    "another id": (lambda d: d.update(series_id="yours"), "yours"),
    "one run left out": (lambda d: d["runs"].pop(), "3 were requested"),
    "one run left out of all": (lambda d: (d["runs"].pop(1), d.update(requested=2)), "numbered"),
    "records exchanged": (lambda d: exchange(d["runs"]), "run_id"),
    "another seed": (lambda d: d["runs"][0].update(seed=1), "seed 1"),
    "a seed that is called given": (lambda d: d.update(seeds="given"), "seed"),
    "another sum": (lambda d: d["runs"][0].update(sha256="0" * 64), "sha256"),
    "a good run called failed": (lambda d: d["runs"][0].update(state="failed"), "status.state"),
    "a run without its record": (lambda d: d["runs"][0].update(record_id=None), "names no record"),
    "a run shorter than its work": (lambda d: d["runs"][0].update(seconds=3.0), "took 12.5 s"),
}


@pytest.mark.parametrize(("change", "named"), TAMPERED.values(), ids=TAMPERED)
def test_a_series_that_was_changed_is_invalid(
    document: dict[str, Any], flagbench: Flagbench, tmp_path: Path, change: Edit, named: str
) -> None:
    file = tmp_path / "series.json"
    change(document)
    file.write_text(json.dumps(document))
    ended = flagbench("verify --json", str(file))
    assert ended.code == ExitCode.INVALID
    answer = json.loads(ended.out)
    assert (named in answer["reason"], answer["findings"]) == (True, [])
    assert flagbench("verify record-mine-1 --baseline", str(file)).code == ExitCode.DATA


def test_a_sound_series_is_no_problem(document: dict[str, Any], store: Store, flagbench: Flagbench) -> None:
    found = read_series(store, "mine")
    assert (found.problems, found.left_out, len(found.records)) == ((), (), 3)
    assert json.loads(flagbench("verify mine --json").out)["series"][0]["problems"] == []


def test_a_record_that_was_damaged_is_a_problem(document: dict[str, Any], store: Store) -> None:
    Path(stored_record(store, 2).location).write_bytes(b"{}")
    found = read_series(store, "mine")
    assert ("record-mine-2" in found.problems[0], len(found.records)) == (True, 2)


def test_a_record_that_was_removed_is_left_out_and_named(
    document: dict[str, Any], store: Store, flagbench: Flagbench
) -> None:
    store.remove(stored_record(store, 2))
    found = read_series(store, "mine")
    assert ([(run.run, run.run_id) for run in found.left_out], found.problems) == ([(2, "mine-2")], ())
    assert "record-mine-2" in found.left_out[0].reason
    for left in [*store.list_records()]:
        store.remove(left)
    assert flagbench("verify mine").code == ExitCode.DATA


def test_runs_in_a_row_with_one_reason_are_named_together() -> None:
    left = tuple(LeftOut(number, f"mine-{number}", "not run") for number in (1, 3, 4, 5))
    text = SeriesSummary("mine", "runs", "mine", "user", "derived", 5, 1, left).text
    assert "(run 1: not run; runs 3 to 5: not run)" in text


def test_runs_of_two_images_are_no_series(store: Store, document: dict[str, Any]) -> None:
    for number in (1, 2):
        image = {"context_digest": f"sha256:{str(number) * 64}", "reason": None}
        system = {**RECORD["system"], "image": image}
        content = record_of(f"mine-{number}", seed_of("mine", number), minute=2 * number, system=system)
        store.remove(stored_record(store, number))
        store.put(content)
        document["runs"][number - 1]["sha256"] = hashlib.sha256(content).hexdigest()
    store.blobs.clear("series/")
    store.blobs.put_if_absent("series/mine.json", json.dumps(document).encode())
    assert "different images" in read_series(store, "mine").problems[0]


def test_two_writers_of_one_name(store: Store) -> None:
    first, second = (SeriesWriter(store, msgspec.structs.replace(planned(), token=c * 16)) for c in "ab")
    first.begin()
    for _ in range(2):  # while the first runs, and when it has ended
        with pytest.raises(StoreError) as caught:
            second.begin()
        assert caught.value.code is ExitCode.USAGE
        first.finish(f"{DAY}T12:00:00Z")
    assert load_series(store, "mine").token == "a" * 16
    assert series_ids(store) == ["mine"]
    with pytest.raises(StoreError) as caught:
        second.finish(f"{DAY}T12:00:00Z")
    assert caught.value.code is ExitCode.NOT_STORED


def test_a_store_that_shows_nothing_still_takes_a_series(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: FolderBlobs, prefix: str) -> None:
        raise ListingDenied("no", remedy="no")

    writer = SeriesWriter(store, planned())
    with monkeypatch.context() as patch:
        patch.setattr(FolderBlobs, "list", deny)
        writer.begin()
        writer.finish(f"{DAY}T12:00:00Z")
    assert [run.state for run in load_series(store, "mine").runs] == ["not_run"] * 3


def test_seeds_follow_from_the_name_as_documented() -> None:
    digest = hashlib.sha256(b"mine-3").digest()
    assert seed_of("mine", 3) == int.from_bytes(digest[:4], "big") % 2**31
    most = planned_runs("x" * 64, series_id_of("x" * 64, "a"), MAX_RUNS, None)
    assert len({run.seed for run in most}) > MAX_RUNS - 5
    assert max(len(run.run_id) for run in most) <= 128


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"schema": "series/v1"}',
        b'{"schema": "series/v2"}',
        b'{"schema": "series/v1", "runs": ' + b"[" * 2000,
        b"\xff",
        b" " * (5 * 2**20),
    ],
    ids=["empty", "no fields", "few fields", "another version", "deep", "not UTF-8", "large"],
)
def test_what_is_no_series_is_refused(content: bytes) -> None:
    with pytest.raises(SeriesError) as caught:
        parse_series(content, "the file")
    assert caught.value.code is ExitCode.DATA
    assert "the file" in caught.value.message


def test_a_series_that_was_moved_to_another_name_is_damaged(document: dict[str, Any], store: Store) -> None:
    store.blobs.put_if_absent("series/yours.json", json.dumps(document).encode())
    with pytest.raises(SeriesError):
        load_series(store, "yours")


def test_names_that_fit_nothing_or_several(document: dict[str, Any], store: Store, flagbench: Flagbench) -> None:
    SeriesWriter(store, planned("minute")).begin()
    assert flagbench("verify mi").code == ExitCode.USAGE
    assert flagbench("verify other").code == ExitCode.DATA
    assert flagbench("results series other").code == ExitCode.DATA
    assert flagbench("results series min").code == ExitCode.USAGE
    assert flagbench("results series minu").json["series_id"] == "minute"
    assert "minute is a series" in flagbench("results show minu").err
    assert flagbench("results series ../x").code == ExitCode.DATA
    assert [row["series_id"] for row in flagbench("results series --json").json["series"]] == ["mine", "minute"]


def test_exported_lines_are_the_bytes_whose_sums_the_series_has(store: Store, flagbench: Flagbench) -> None:
    series = stored_series(store)
    store.blobs.delete(next(entry.blob.key for entry in store.list_records() if entry.record_id == "record-mine-3"))
    ended = flagbench("results export --format jsonl --series --since 2026-01-01")
    assert "not exported: record-mine-3" in ended.err
    *records, exported = ended.out.splitlines(keepends=True)
    sums = {hashlib.sha256(line.encode()).hexdigest() for line in records}
    assert sums == {run.sha256 for run in series.runs[:2]}
    assert json.loads(exported)["series_id"] == "mine"
    assert "series/v1" not in flagbench("results export --format jsonl").out
    assert flagbench("results export --format csv --series").code == ExitCode.USAGE
