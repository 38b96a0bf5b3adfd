"""`flagbench align A B`: records and published curves, by file, standard input or from the store."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flagbench.records.store import Store
from flagbench_cases.shared.spool import Step
from flagbench_core.exit_codes import ExitCode
from honest import CLAIMS, Pace, honest_record
from unit.host.conftest import Flagbench

IDS = ("20260102T000000Z-beta", "20260101T000000Z-alpha")
"""Newest first."""


def curve(factor: float = 1.0) -> list[float]:
    return [factor * (6.0 - step / 30) for step in range(60)]


def record(record_id: str, factor: float) -> bytes:
    losses: dict[int, Iterator[float]] = {}

    def with_loss(rank: int, step: Step) -> Step:
        return step._replace(loss=next(losses.setdefault(rank, iter(curve(factor)))))

    made = honest_record(
        CLAIMS["distilbert/a100-1x8-fp32"],
        Pace(noise=0.01),
        count=60,
        change=with_loss,
        record_id=record_id,
        run_id=record_id,
        created_at=f"2026-01-{record_id[6:8]}T00:00:00Z",
    )
    return json.dumps(made).encode()


def csv(factor: float = 1.0, steps: range = range(1, 61)) -> str:
    return "step,loss\n" + "".join(f"{step},{curve(factor)[step - 1]}\n" for step in steps)


@pytest.fixture(autouse=True)
def filled(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records in the store, 1 % apart, and an empty folder to work in."""
    for record_id, factor in zip(IDS, (1.01, 1.0)):
        store.put(record(record_id, factor))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_two_stored_records(flagbench: Flagbench) -> None:
    told = flagbench("align --json last last~1").json
    assert (told["verdict"], told["a"], told["b"], told["case"]) == ("ALIGNED", *IDS, "distilbert")
    assert (told["compared"], told["mean_error"]) == (40, pytest.approx(0.01))


def test_a_published_curve_is_a_reference(flagbench: Flagbench, tmp_path: Path) -> None:
    path = tmp_path / "\u66f2\u7ebf.csv"
    path.write_text(csv(), encoding="utf-8")
    ended = flagbench("align", IDS[0], str(path))
    assert (ended.code, ended.out.partition(":")[0]) == (ExitCode.OK, "ALIGNED")
    assert flagbench("align", IDS[0], str(path), "--within", "0.001").code == ExitCode.BELOW


def test_standard_input_is_a_curve_or_a_record(
    flagbench: Flagbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.csv").write_text(csv())
    for content in (csv(1.03).encode(), record("20260103T000000Z-gamma", 1.03)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert flagbench("align -", str(tmp_path / "b.csv")).code == ExitCode.BELOW
    assert flagbench("align - -").code == ExitCode.USAGE


def test_another_rule_is_marked_as_such(flagbench: Flagbench) -> None:
    assert "NOT THE PUBLISHED RULE" not in flagbench("align last last~1").out
    for option in ("--from-step=5", "--within=0.05"):
        ended = flagbench("align last last~1", option)
        assert (ended.code, "NOT THE PUBLISHED RULE" in ended.out) == (ExitCode.OK, True)
        assert flagbench("align --json last last~1", option).json["published_rule"] is False


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (csv(1.5), ExitCode.BELOW),
        (csv(steps=range(1, 21)), ExitCode.INCONCLUSIVE),
        (csv(steps=range(1, 60)) + "60,0\n", ExitCode.INVALID),
        ("", ExitCode.DATA),
    ],
)
def test_the_exit_code_tells_the_verdict(flagbench: Flagbench, tmp_path: Path, content: str, code: int) -> None:
    (tmp_path / "b.csv").write_text(content)
    assert flagbench("align last", str(tmp_path / "b.csv")).code == code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("last last", ExitCode.USAGE),
        ("last nothing.csv", ExitCode.DATA),
        ("last last~5", ExitCode.DATA),
        ("last last~1 --within nan", ExitCode.USAGE),
        ("last last~1 --from-step 0", ExitCode.USAGE),
    ],
)
def test_what_cannot_be_compared(flagbench: Flagbench, words: str, code: int) -> None:
    ended = flagbench(f"align {words}")
    assert (ended.code, ended.out) == (code, "")


@pytest.mark.parametrize("other", ["last~1", "b.csv"])
def test_losses_that_contradict_the_evidence_are_invalid(flagbench: Flagbench, store: Store, other: str) -> None:
    Path("b.csv").write_text(csv())
    made = json.loads(record("20260105T000000Z-doctored", 1.03))
    made["quality"]["losses"]["values"] = curve()
    store.put(json.dumps(made).encode())
    ended = flagbench("align last", other)
    assert (ended.code, "its evidence gives" in ended.out) == (ExitCode.INVALID, True)


def test_a_huge_file_is_refused(flagbench: Flagbench, tmp_path: Path) -> None:
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(2**40)
    assert flagbench("align last", str(tmp_path / "huge.csv")).code == ExitCode.DATA
