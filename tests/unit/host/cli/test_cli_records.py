"""Every command that takes a record takes a file, standard input, an id, its beginning, last and last~N."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flagbench.records.store import Store
from flagbench_cases.shared.spool import Step
from flagbench_core.exit_codes import ExitCode
from honest import CLAIMS, Pace, honest_record
from unit.host.conftest import Flagbench, MakeRecord

IDS = ("20260103T000000Z-alpha", "20260102T000000Z-beta", "20260102T000000Z-be", "20260101T000000Z-gamma")
"""Newest first."""


@pytest.fixture(autouse=True)
def filled(store: Store, tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """The four records in the store, and an empty folder to work in."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for number, record_id in enumerate(IDS):
        store.put(make_record(record_id=record_id, created_at=f"2026-01-{9 - number:02}T00:00:00Z"))


def compared(flagbench: Flagbench, a: str, b: str) -> tuple[str, str]:
    """The ids of the records of those names; none of them has a configuration, which makes them invalid."""
    ended = flagbench("compare --json", a, b)
    assert ended.code == ExitCode.INVALID
    told = json.loads(ended.out)
    return told["a"], told["b"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("last", IDS[0]),
        ("last~0", IDS[0]),
        ("last~", IDS[1]),
        ("last~1", IDS[1]),
        ("last~003", IDS[3]),
        ("20260103", IDS[0]),
        ("20260101T000000Z-gamma", IDS[3]),
        # The whole of one id, although another begins with it.
        ("20260102T000000Z-be", IDS[2]),
        ("20260102T000000Z-bet", IDS[1]),
    ],
)
def test_a_record_is_found_by_each_of_its_names(flagbench: Flagbench, name: str, meant: str) -> None:
    assert flagbench("results show --json", name).json["record_id"] == meant
    other = IDS[1] if meant != IDS[1] else IDS[0]
    assert compared(flagbench, other, name)[1] == meant
    assert f'"{meant}"' in flagbench("verify --json", name).out
    ended = flagbench("verify", other, "--baseline", name)  # none of them has a configuration
    assert (ended.code, meant in ended.err) == (ExitCode.DATA, True)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("last~4", ExitCode.DATA),
        ("last~99999999999999999999", ExitCode.USAGE),
        ("last~-1", ExitCode.USAGE),
        ("20260102", ExitCode.USAGE),
        ("20260104T000000Z-delta", ExitCode.DATA),
        ("*", ExitCode.USAGE),
        ("x" * 5000, ExitCode.USAGE),
        ("\udcff", ExitCode.USAGE),
        ("", ExitCode.USAGE),
    ],
)
def test_a_name_that_matches_no_record_or_several_is_an_error(flagbench: Flagbench, name: str, code: int) -> None:
    for command in ("verify", "compare last", "results show"):
        ended = flagbench(command, name)
        assert (ended.code, ended.out) == (code, "")
        assert ended.err.startswith("error: ")
        assert len(ended.err) < 1000


def test_a_beginning_of_several_ids_lists_them(flagbench: Flagbench) -> None:
    ended = flagbench("verify 20260102T")
    assert [line.strip() for line in ended.err.splitlines()[1:-1]] == sorted(IDS[1:3])


def test_an_existing_path_is_a_path(flagbench: Flagbench, make_record: MakeRecord) -> None:
    Path("20260103").write_bytes(make_record(record_id="from-a-file"))
    Path("last").write_bytes(make_record(record_id="from-a-file"))
    assert compared(flagbench, "last", "20260103") == (IDS[0], "from-a-file")
    assert compared(flagbench, "./last", "last") == ("from-a-file", IDS[0])
    assert flagbench("results show --json ./last").json["record_id"] == "from-a-file"


@pytest.mark.parametrize("command", ["compare - -", "verify - -", "verify - --baseline -"])
def test_standard_input_is_named_once(flagbench: Flagbench, command: str) -> None:
    assert flagbench(command).code == ExitCode.USAGE


def trained(factor: float) -> bytes:
    """A sound record of 60 steps, with the usual losses of `honest_record` times a factor."""

    def with_loss(rank: int, step: Step) -> Step:
        return step._replace(loss=factor * step.loss)

    record_id = f"20260101T000000Z-{factor}"
    claim = CLAIMS["distilbert/a100-1x8-fp32"]
    record = honest_record(claim, Pace(noise=0.01), count=60, change=with_loss, record_id=record_id, run_id=record_id)
    return json.dumps(record).encode()


def test_compare_says_where_losses_part(flagbench: Flagbench) -> None:
    Path("a.json").write_bytes(trained(1.0))
    Path("b.json").write_bytes(trained(1.03))
    ended = flagbench("compare a.json b.json")
    assert ended.code == ExitCode.OK
    assert "\nlosses DIVERGED: the mean relative error of 40 steps is 3 %, not less than 2 %\n" in ended.out
    assert "\nthe losses part at step 1: " in ended.out
    losses = flagbench("compare --json b.json b.json").json["losses"]
    assert losses["outcome"] == "ALIGNED"
    assert losses["errors"] == {
        "steps": 40, "missing": 0, "mean": 0.0, "largest": 0.0, "largest_step": 21, "parts_at": None,
    }  # fmt: skip


def test_losses_that_contradict_the_evidence_are_invalid(flagbench: Flagbench) -> None:
    Path("a.json").write_bytes(trained(1.0))
    record = json.loads(trained(1.03))
    record["quality"]["losses"]["values"] = json.loads(trained(1.0))["quality"]["losses"]["values"]
    Path("b.json").write_text(json.dumps(record))
    ended = flagbench("compare --json a.json b.json")
    assert (ended.code, json.loads(ended.out)["losses"]["outcome"]) == (ExitCode.INVALID, "INVALID")
