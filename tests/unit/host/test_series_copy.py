"""A series is copied with its records, once, and is verified in the other store as in its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.errors import ExitCode
from flagbench.stores import FolderBlobs, Store
from flagbench.stores.series import place_of, read_series, series_ids
from flagbench.stores.series_document import SeriesDocument

from .conftest import Flagbench, MakeRecord
from .test_series import DAY, planned, stored_series


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(FolderBlobs(tmp_path / "target"))


def pull(flagbench: Flagbench, target: Store, *words: str) -> Any:
    return flagbench("results pull --json --to", target.blobs.root.as_uri(), *words)


def told(ended: Any, code: int = ExitCode.OK) -> tuple[list[str], list[str], list[str]]:
    """The ids of records and of series that were copied, and what was not."""
    assert ended.code == code, ended
    answer = json.loads(ended.out)
    return (
        sorted(each["record_id"] for each in answer["stored"]),
        [each["series_id"] for each in answer["series"]],
        [each["name"] for each in answer["failed"]],
    )


def remove(store: Store, series: SeriesDocument, run: int) -> None:
    place = place_of(series, series.runs[run - 1])
    assert place is not None
    store.blobs.delete(place.key)


def bytes_of(store: Store) -> dict[str, bytes]:
    root = store.blobs.root
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


RECORDS = ["record-mine-1", "record-mine-2", "record-mine-3"]


@pytest.mark.parametrize("words", [(), ("mine",), ("mi",), ("--case", "distilbert")])
def test_a_series_takes_its_records_with_it(
    store: Store, target: Store, flagbench: Flagbench, make_record: MakeRecord, words: tuple[str, ...]
) -> None:
    stored_series(store)
    store.put(make_record(record_id="another-record"))
    everything = not words or words[0].startswith("--")
    assert told(pull(flagbench, target, *words)) == (
        ["another-record"] * everything + RECORDS,
        ["mine"],
        [],
    )
    assert read_series(target, "mine") == read_series(store, "mine")
    assert read_series(target, "mine").problems == ()
    key = "series/mine.json"
    assert target.blobs.get(key, 10**6) == store.blobs.get(key, 10**6)
    before = bytes_of(target)
    assert told(pull(flagbench, target, *words)) == ([], [], []), "it is there already"
    assert bytes_of(target) == before


def test_other_cases_and_records_take_no_series(store: Store, target: Store, flagbench: Flagbench) -> None:
    stored_series(store)
    assert told(pull(flagbench, target, "--case", "glm")) == ([], [], [])
    assert told(pull(flagbench, target, "record-mine-1")) == (["record-mine-1"], [], [])


def test_it_is_verified_in_the_other_store_as_in_its_own(store: Store, target: Store, flagbench: Flagbench) -> None:
    stored_series(store)
    pull(flagbench, target)
    here, there = (flagbench("verify mine --json --store", each.url) for each in (store, target))
    assert (here.code, here.out) == (there.code, there.out)
    assert json.loads(there.out)["series"][0]["held"] == 3


def test_a_record_that_neither_store_has_is_named(store: Store, target: Store, flagbench: Flagbench) -> None:
    remove(store, stored_series(store), 2)
    ended = pull(flagbench, target)
    assert told(ended) == ([RECORDS[0], RECORDS[2]], ["mine"], [])
    assert json.loads(ended.out)["series"][0]["missing"] == ["record-mine-2"]
    assert "run 2: its record record-mine-2 is missing" in ended.err
    assert [run.run for run in read_series(target, "mine").left_out] == [2]


def test_a_series_whose_record_is_not_copied_stays_behind(store: Store, target: Store, flagbench: Flagbench) -> None:
    series = stored_series(store)
    place = place_of(series, series.runs[0])
    assert place is not None
    (store.blobs.root / place.key).write_bytes(b"{}")
    ended = pull(flagbench, target)
    assert told(ended, ExitCode.DATA) == (RECORDS[1:], [], ["record-mine-1", "series mine"])
    assert series_ids(target) == []


def test_another_series_of_the_id_is_never_replaced(store: Store, target: Store, flagbench: Flagbench) -> None:
    stored_series(store)
    stored_series(target, replace(planned(), token="f" * 16))
    before = bytes_of(target)
    ended = pull(flagbench, target)
    assert told(ended, ExitCode.NOT_STORED) == ([], [], ["series mine"])
    assert "another series is already stored as mine" in ended.err
    assert bytes_of(target) == before


def test_one_that_was_begun_elsewhere_is_never_replaced(store: Store, target: Store, flagbench: Flagbench) -> None:
    stored_series(store)
    stored_series(target, replace(planned(), token="f" * 16), end=False)
    assert told(pull(flagbench, target), ExitCode.NOT_STORED)[2] == ["series mine"]


def test_a_killed_series_is_copied_in_its_parts_and_completed_later(
    store: Store, target: Store, flagbench: Flagbench, tmp_path: Path
) -> None:
    stored_series(store, end=False)
    assert told(pull(flagbench, target)) == (RECORDS, ["mine"], [])
    assert read_series(target, "mine") == read_series(store, "mine")
    assert told(pull(flagbench, target)) == ([], [], [])
    ended = Store(FolderBlobs(tmp_path / "ended"))
    stored_series(ended)
    assert told(pull(flagbench, target, "--store", ended.url)) == ([], ["mine"], [])
    assert [blob.key for blob in target.blobs.list("series/")] == ["series/mine.json"]
    assert read_series(target, "mine").problems == ()
    assert told(pull(flagbench, target)) == ([], [], []), "its parts are older than what is there"


def test_a_series_is_pushed_from_a_file_after_its_records(
    store: Store, target: Store, flagbench: Flagbench, tmp_path: Path
) -> None:
    stored_series(store)
    files = [str(path) for path in store.blobs.root.rglob("*.json") if "index" not in path.name]
    push = ("results push --json --store", target.url)
    assert told(flagbench(*push, *sorted(files, key=lambda name: "series" not in name))) == (RECORDS, ["mine"], [])
    assert read_series(target, "mine") == read_series(store, "mine")
    assert told(flagbench(*push, *files))[1] == []

    other = Store(FolderBlobs(tmp_path / "other"))
    printed = tmp_path / "printed.json"
    printed.write_text(flagbench("results series mine").out)
    ended = flagbench("results push --json --store", other.url, str(printed))
    assert told(ended) == ([], ["mine"], [])
    assert json.loads(ended.out)["series"][0]["missing"] == RECORDS
    assert told(flagbench(*push, str(printed)))[1] == [], "the same series, in other bytes"


def test_a_file_of_another_series_or_of_one_that_has_not_ended_is_refused(
    store: Store, target: Store, flagbench: Flagbench, tmp_path: Path
) -> None:
    series = stored_series(store, end=False)
    file = tmp_path / "series.json"
    file.write_bytes(series.to_json())
    push = ("results push --json --store", target.url, str(file))
    ended = flagbench(*push)
    assert (told(ended, ExitCode.DATA)[2], "has not ended" in ended.err) == ([str(file)], True)
    stored_series(target)
    file.write_bytes(replace(series, ended_at=f"{DAY}T12:08:00Z").to_json())
    assert told(flagbench(*push), ExitCode.NOT_STORED)[2] == [str(file)]
    assert read_series(target, "mine").document.ended_at == f"{DAY}T12:07:00Z"


def test_a_store_that_cannot_be_used_fails_each_file_and_is_said_once(
    store: Store, flagbench: Flagbench, tmp_path: Path
) -> None:
    stored_series(store)
    files = [str(tmp_path / name) for name in ("one.json", "two.json")]
    for file in files:
        Path(file).write_text(flagbench("results series mine").out)
    ended = flagbench("results push --json --store", files[0], *files)
    assert told(ended, ExitCode.NOT_STORED)[2] == files
    assert ended.err.count("error: ") == 1


def test_exported_lines_are_the_bytes_whose_sums_the_series_has(
    store: Store, target: Store, flagbench: Flagbench, tmp_path: Path
) -> None:
    remove(store, stored_series(store), 3)
    ended = flagbench("results export --format jsonl --series --since 2026-01-01")
    assert "not exported: record-mine-3" in ended.err
    *records, series = ended.out.splitlines(keepends=True)
    assert "series/v1" not in flagbench("results export --format jsonl").out
    files = []
    for number, line in enumerate((*records, series)):
        files.append(str(tmp_path / f"{number}.json"))
        Path(files[-1]).write_text(line)
    assert told(flagbench("results push --json --store", target.url, *files)) == (RECORDS[:2], ["mine"], [])
    assert read_series(target, "mine").problems == ()
    assert flagbench("results export --format csv --series").code == ExitCode.USAGE
