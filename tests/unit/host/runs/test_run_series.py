"""`flagbench run --repeat` and `--interleave`: what a series says of runs that end well, badly, or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.cli import main
from flagbench.records import folder_blobs as folder
from flagbench.records.read import read_record
from flagbench.records.series import read_series
from flagbench.records.series_document import SeriesDocument, seed_of
from flagbench.records.store import Store
from flagbench.runs.launchers import LaunchResult, launch_time
from flagbench.schema import violations
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench

from .fake_runs import TAKES, FakeRuns

RUN = "run distilbert:cpu --preset tiny --repeat"


def states(document: dict[str, Any]) -> list[str]:
    return values_of("state", document["runs"])


def values_of(key: str, runs: list[dict[str, Any]]) -> list[Any]:
    return [run[key] for run in runs]


def test_a_series_names_every_run_in_order(fake: FakeRuns, flagbench: Flagbench, store: Store) -> None:
    fake.endings = ["ok", "failed", "ok"]
    ended = flagbench(f"{RUN} 3 --name mine --json")
    assert ended.code == 5
    document = json.loads(ended.out)
    assert violations(SeriesDocument, document) == []
    runs = document["runs"]
    seeds = [seed_of("mine", 1), seed_of("mine", 2), seed_of("mine", 3)]
    assert states(document) == ["ok", "failed", "ok"]
    assert values_of("run_id", runs) == ["mine-1", "mine-2", "mine-3"]
    assert values_of("seed", runs) == seeds
    assert [request.options.seed for request in fake.requests] == seeds
    assert values_of("seconds", runs) == [TAKES] * 3
    assert "run 2 of 3" in ended.err
    for run in runs:
        content = store.get(run["record_id"])
        assert hashlib.sha256(content).hexdigest() == run["sha256"]
        assert read_record(content).launch is not None
    assert [path.name for path in (Path(store.blobs.location("series"))).iterdir() if path.is_dir()] == []
    series = read_series(store, "mine")
    assert ([record.run_id for record in series.records], series.problems) == (["mine-1", "mine-3"], ())
    (left_out,) = series.left_out
    assert left_out.run == 2
    assert "exit code 5" in left_out.reason


def test_verify_takes_a_series_by_id_file_and_last(
    fake: FakeRuns, flagbench: Flagbench, store: Store, tmp_path: Path
) -> None:
    fake.endings = ["failed"]
    shown = flagbench(f"{RUN} 3 --name mine")
    assert shown.code == 5
    file = tmp_path / "series.json"
    file.write_text(flagbench("results series mine").out)
    answers = [flagbench("verify --json", name) for name in ("mine", "min", "last", str(file))]
    assert len({answer.out for answer in answers}) == 1
    (series,) = json.loads(answers[0].out)["series"]
    assert (series["requested"], series["held"], [run["run"] for run in series["left_out"]]) == (3, 2, [1])
    text = flagbench("verify mine").out
    assert "2 of 3 runs" in text
    assert "seeds derived from the name mine" in text
    assert text in shown.out
    assert [row["series_id"] for row in flagbench("results series --json").json["series"]] == ["mine"]
    flagbench(f"{RUN} 2 --name other")
    compared = json.loads(flagbench("verify mine --baseline other --json").out)
    assert compared["verdict"] in ("SAME", "INCONCLUSIVE")
    assert "1 of 3 runs left out" in compared["qualifiers"]


def test_of_a_series_whose_runs_all_failed_the_verdict_says_how(fake: FakeRuns, flagbench: Flagbench) -> None:
    fake.endings = ["failed", "failed"]
    assert flagbench(f"{RUN} 2 --name mine").code == 5
    ended = flagbench("verify mine --json")
    assert (ended.code, json.loads(ended.out)["series"][0]["held"]) == (ExitCode.INVALID, 0)


@pytest.mark.parametrize(
    ("endings", "code", "expected"),
    [
        (["ok", "interrupted"], 7, ["ok", "interrupted", "not_run"]),
        (["ok", "signalled"], 7, ["ok", "ok", "not_run"]),  # Ctrl-C ends it even where its run still ends well
        (["ok", "not started"], 15, ["ok", "failed", "not_run"]),
    ],
)
def test_a_series_that_ends_early(
    fake: FakeRuns, flagbench: Flagbench, endings: list[str], code: int, expected: list[str]
) -> None:
    fake.endings = endings
    ended = flagbench(f"{RUN} 3 --name mine --json")
    assert (ended.code, states(json.loads(ended.out))) == (code, expected)
    assert len(fake.requests) == 2


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("words", "runs"), [("--run-id mine-2", 1), ("--repeat 2 --name mine", 2)])
def test_a_signal_while_the_last_record_is_stored(
    flagbench: Flagbench, signalled_at_the_second_record: Callable[..., None], words: str, runs: int
) -> None:
    signalled_at_the_second_record(signal.SIGINT)
    assert flagbench(f"run distilbert:cpu --preset tiny {words}").code == ExitCode.INTERRUPTED
    assert len(flagbench("results ls --json").json["records"]) == runs


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("times", "state"), [(1, "ok"), (2, "missing")])
def test_a_signal_while_a_record_is_stored(
    flagbench: Flagbench,
    store: Store,
    signalled_at_the_second_record: Callable[..., None],
    number: int,
    times: int,
    state: str,
) -> None:
    """It ends the series once the run is in it, and at once if it is repeated."""
    signalled_at_the_second_record(*[number] * times)
    assert flagbench(f"{RUN} 3 --name mine").code == ExitCode.INTERRUPTED
    assert [run.state for run in read_series(store, "mine").document.runs] == ["ok", state, "not_run"]


def test_a_killed_series_says_which_runs_are_missing(fake: FakeRuns, flagbench: Flagbench, store: Store) -> None:
    fake.endings = ["ok", "ok", "killed"]
    child = os.fork()
    if not child:
        try:
            main.run([*RUN.split(), "4", "--name", "mine"])
        finally:  # an error ends the child too, which would else go on as a second test process
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = read_series(store, "mine")
    assert (len(found.records), found.problems) == (2, ())
    assert [(run.run, run.reason.partition(":")[0]) for run in found.left_out] == [(3, "missing"), (4, "missing")]
    assert len(json.loads(flagbench("verify last --json").out)["records"]) == 2
    assert "not ended" in flagbench("results series").out
    assert flagbench(f"{RUN} 4 --name mine").code == ExitCode.USAGE


@pytest.mark.parametrize("ending", ["refused", "not started"])
def test_where_the_first_run_does_not_start_there_is_no_series(
    fake: FakeRuns, flagbench: Flagbench, store: Store, ending: str
) -> None:
    fake.endings = [ending]
    ended = flagbench(f"{RUN} 3 --name mine")
    assert (ended.code, ended.out) == ({"refused": 2, "not started": 15}[ending], "")
    assert flagbench("results series --json").json["series"] == []
    fake.endings = []
    assert flagbench(f"{RUN} 1 --name mine").code == 0


def test_one_name_names_one_series(fake: FakeRuns, flagbench: Flagbench, store: Store) -> None:
    assert flagbench(f"{RUN} 1 --name mine").code == 0
    before = flagbench("results series mine").out
    ended = flagbench(f"{RUN} 1 --name mine")
    assert (ended.code, len(fake.requests)) == (ExitCode.USAGE, 1)
    assert "--name" in ended.err
    assert flagbench("results series mine").out == before


def test_a_given_seed_is_that_of_all_runs_and_said(fake: FakeRuns, flagbench: Flagbench) -> None:
    document = json.loads(flagbench(f"{RUN} 2 --seed 7 --json").out)
    assert ([run["seed"] for run in document["runs"]], document["seeds"]) == ([7, 7], "given")
    assert document["nonce_by"] == "flagbench"
    assert "seed was given" in flagbench("verify last").out


def test_two_images_alternate_and_are_cross_linked(fake: FakeRuns, flagbench: Flagbench) -> None:
    ended = flagbench(f"{RUN} 3 --interleave flagbench/distilbert:mine --via docker --name x --json")
    a, b = json.loads(ended.out)
    order = [request.options.run_id for request in fake.requests]
    assert order == ["x-a-1", "x-b-1", "x-b-2", "x-a-2", "x-a-3", "x-b-3"]
    assert (a["interleaved_with"], b["interleaved_with"]) == ("x-b", "x-a")
    assert (a["request"]["image"], b["request"]["image"]) == ("flagbench/distilbert:cpu", "flagbench/distilbert:mine")
    assert [run["seed"] for run in a["runs"]] == [run["seed"] for run in b["runs"]]
    held = flagbench("verify x-b --baseline x-a --json")
    answer = json.loads(held.out)
    assert [each["side"] for each in answer["series"]] == ["runs", "baseline"]
    assert answer["verdict"] not in ("INVALID", "NOT_COMPARABLE")


BAD = [("--name", ["--repeat", "2", "--name", name]) for name in ("", "../x", "\u00fc", "x" * 65)] + [
    ("--repeat", ["--repeat", "1001"]),
    ("--run-id", ["--repeat", "2", "--run-id", "mine"]),
    ("--name", ["--repeat", "2", "--nodes", "2", "--node-rank", "0", "--master", "here:1"]),
    ("--interleave", ["--interleave", "glm:cpu"]),
    ("--interleave", ["--interleave", "flagbench/distilbert:mine", "--via", "native"]),
    ("nosuch", ["--interleave", "distilbert:nosuch"]),
]


@pytest.mark.parametrize(("named", "words"), BAD, ids=[ascii(" ".join(words)) for _, words in BAD])
def test_what_no_series_can_be_made_of(
    fake: FakeRuns, flagbench: Flagbench, store: Store, named: str, words: list[str]
) -> None:
    ended = flagbench("run distilbert:cpu --preset tiny", *words)
    assert (ended.code, ended.out, fake.requests) == (ExitCode.USAGE, "", [])
    assert named in ended.err
    assert not Path(store.blobs.location("series")).exists()


def full_disk(monkeypatch: pytest.MonkeyPatch, full: Callable[[Path], bool]) -> None:
    """Folders for which `full` holds take no more files."""
    temporary = folder._temporary

    def write(place: Path, content: bytes) -> Any:
        if full(place):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return temporary(place, content)

    monkeypatch.setattr(folder, "_temporary", write)


def test_a_series_that_cannot_be_stored_is_printed(
    fake: FakeRuns, flagbench: Flagbench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, lambda place: place.name == "series")
    ended = flagbench(f"{RUN} 2 --name mine --json")
    assert (ended.code, states(json.loads(ended.out))) == (ExitCode.NOT_STORED, ["ok", "ok"])
    assert "No space" in ended.err
    assert len(read_series(store, "mine").records) == 2  # from what was noted after each run


def test_a_store_that_takes_no_series_costs_no_run(
    fake: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    full_disk(monkeypatch, lambda place: "series" in place.parts)
    assert flagbench(f"{RUN} 2 --name mine").code == ExitCode.NOT_STORED
    assert fake.requests == []


def test_unstored_records_are_printed_with_the_series(
    fake: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    full_disk(monkeypatch, lambda place: "results" in place.parts)
    ended = flagbench(f"{RUN} 2 --name mine --json")
    document = json.loads(ended.out)
    assert (ended.code, [record["run_id"] for record in document["unstored"]]) == (14, ["mine-1", "mine-2"])


def test_another_node_writes_no_series(
    fake: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(FakeRuns, "record", lambda self, request, status: b"")
    words = "--nodes 2 --node-rank 1 --master here:1 --name mine --json"
    ended = flagbench(f"{RUN} 2 {words}")
    assert (ended.code, ended.out) == (0, "")
    assert [request.options.run_id for request in fake.requests] == ["mine-1", "mine-2"]
    assert not Path(store.blobs.location("series")).exists()


def test_a_dry_run_of_a_series_starts_nothing(fake: FakeRuns, flagbench: Flagbench) -> None:
    facts = flagbench(f"{RUN} 5 --name mine --dry-run --json").json["series"]
    assert (facts["repeat"], facts["name"], fake.requests) == (5, "mine", [])


def test_every_copy_of_a_record_has_the_launchers_clock(
    fake: FakeRuns, flagbench: Flagbench, store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ended = flagbench("run distilbert:cpu --preset tiny --run-id mine --json --out", str(out))
    record = ended.json
    assert record["launch"] == {"started_at": "2026-01-01T00:00:00Z", "seconds": TAKES, "via": "native"}
    assert (out / "record-of-mine.json").read_bytes() == store.get("record-of-mine")
    assert json.loads(store.get("record-of-mine")) == record


def test_a_copy_that_cannot_be_changed_is_not_stamped(
    fake: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path
) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(launch_time, "write_atomically", refuse)
    out = tmp_path / "out"
    assert "launch" not in flagbench("run distilbert:cpu --preset tiny --run-id mine --json --out", str(out)).json
    assert (out / "record-of-mine.json").read_bytes() == store.get("record-of-mine")


def test_a_stamp_changes_no_other_byte() -> None:
    launch = launch_time.TimedLaunch(LaunchResult(b"", 0), "2026-01-01T00:00:00Z", 1.5, "docker")
    own = b'"launch":{"started_at":"2026-01-01T00:00:00Z","seconds":1.5,"via":"docker"}}\n'
    assert launch_time.with_launch(b'{"a":1.50e3}\n', launch) == b'{"a":1.50e3,' + own
    assert launch_time.with_launch(b'{"a": 1, "launch": {"seconds": 9}}\n', launch) == b'{"a":1,' + own
    for printed in (b"", b"not JSON", b"[]"):
        assert launch_time.with_launch(printed, launch) == printed
