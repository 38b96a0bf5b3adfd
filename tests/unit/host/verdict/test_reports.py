"""What a person reads: tables of a verdict, of a comparison and at the end of a run; and the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record, Status
from flagbench.report import comparison_table, verdict_table
from flagbench.verdict import Verdict, VerifyResult, compare_records, judge_speed, verify_baseline
from flagbench.verdict.result import four_digits
from unit.host.conftest import Ended

from .conftest import BASE, CASE, CLAIM, REPLAYS, edit, held, replay

Flagbench = Callable[..., Ended]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def table(record: Record, result: VerifyResult | None, stream: io.StringIO | None = None) -> str:
    return verdict_table([record], result, stream=stream or io.StringIO())


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.000123456, "0.0001235"), (0.915, "0.9150"), (1510.2, "1510"), (12345.6, "12,346"), (0.0, "0.000")],
)
def test_measured_numbers_have_four_digits(value: float, text: str) -> None:
    assert four_digits(value) == text


def test_a_pipe_gets_plain_aligned_text() -> None:
    record = replay("a100-1x8-cuda11.8")
    text = verdict_table([record], held(record), stream=io.StringIO(), wide=True)
    assert "\x1b" not in text
    rows = [row.split() for row in text.splitlines()]
    assert ["metric", "measured", "claim", "unit", "ratio", "verdict", "measured", "as"] in rows
    ours, published = [row for row in rows if row[:1] == ["p_core"]]  # no claim has our own clock
    shown = ["1940", "[1855,", "2028]", "1942.6", "samples/s", "0.999", "[0.955,", "1.044]"]
    assert ours == ["p_core", *shown, "REPRODUCED", "p_core_host"]
    assert published == ["p_core", "1920", "[1836,", "2007]", "samples/s"]
    assert ["torch", "2.6.0+cu118", "1.12.0a0+bd13bc6"] in rows


@pytest.mark.parametrize(
    ("name", "verdict", "decided"),
    [
        ("a100-1x8-cuda11.8", "REPRODUCED (software differs)", "p_core_host 1940"),
        ("a100-1x8-below", "BELOW", "p_core_host 1"),
        ("a100-1x8-failed-check", "INVALID", "record fixture-a100-1x8-failed-check"),
        ("a100-1x8-80gb", "NOT_COMPARABLE", "condition that differs"),
        ("a100-1x8-partial-batches", "NOT_COMPARABLE", "record fixture-a100-1x8-partial-batches"),
    ],
)
def test_the_verdict_is_first_then_what_decides_it(name: str, verdict: str, decided: str) -> None:
    lines = table(replay(name), held(replay(name))).splitlines()
    assert (lines[0].partition(":")[0], lines[1], lines[2][: len(decided)]) == (verdict, "", decided)
    assert "NOT_COMPARABLE" not in "".join(lines[1:])


def test_the_conditions_that_decide_are_marked_and_first() -> None:
    tiny = replay("cpu-tiny")
    lines = table(tiny, held(tiny)).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("condition that differs  decides"))
    rows = [line.split() for line in lines[start + 1 : lines.index("", start)]]
    deciding = [row[0] for row in rows if row[1] == "yes"]
    assert deciding == [row[0] for row in rows[: len(deciding)]]
    more = len(deciding) - 3
    assert lines[0].endswith(f"{', '.join(deciding[:3])} and {more} more differ")
    assert len(rows) > len(deciding)


@pytest.mark.parametrize("columns", [60, 80])
def test_claim_ratio_and_verdict_are_the_last_columns(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = table(BASE, held(BASE), Terminal())
    heading = next(line.split() for line in text.splitlines() if line.startswith("metric"))
    assert {"claim", "ratio", "verdict"} <= {*heading}


def test_beside_a_baseline_the_measured_number_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    again = edit(record_id="fixture-again", created_at="2026-11-20T12:00:00Z")
    text = table(again, verify_baseline([again], [BASE], CASE), Terminal())
    heading = next(line.split() for line in text.splitlines() if line.startswith("metric"))
    assert heading == ["metric", "measured", "ratio", "verdict"]
    assert "  baseline: " in text


def test_digests_are_short_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    other = edit(record_id="fixture-other", config_digest="sha256:" + "0" * 64)
    result = replace(verify_baseline([other], [BASE], CASE), verdict=Verdict.NOT_COMPARABLE)
    (row,) = (line for line in table(other, result, Terminal()).splitlines() if line.startswith("config_digest"))
    assert len(row) <= 80


def test_a_difference_of_rounding_is_none() -> None:
    result = held(BASE)
    metrics = tuple(
        replace(metric, difference=1.11e-16) if metric.name == "acc" else metric for metric in result.metrics
    )
    (row,) = (
        line.split() for line in table(BASE, replace(result, metrics=metrics)).splitlines() if line[:4] == "acc "
    )
    assert "+0" in row


def test_a_failed_run_shows_its_error_last() -> None:
    failed = edit(status=Status("failed", "train", "out of memory", 5, "use a smaller batch"))
    text = table(failed, None)
    assert "1940 [1855, 2028]" in text
    assert [line.partition(":")[0] for line in text.splitlines()[-2:]] == ["error", "fix"]
    assert "fix: use a smaller batch" in table(failed, held(failed)).splitlines()


def test_a_comparison_shows_what_differs_before_the_metrics() -> None:
    comparison = compare_records(BASE, replay("cpu-tiny"), CASE)
    text = comparison_table(comparison, judge_speed(comparison, CASE), stream=io.StringIO())
    assert text.startswith("NOT_COMPARABLE: B cannot be compared with the baseline A: device_model, ")
    assert text.index("device_model") < text.index("train.learning_rate") < text.index("p_core_host")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_a_record_says_stays_in_its_line(stream: io.StringIO) -> None:
    hostile = "x\x1b[2J\nREPRODUCED: all good"
    failed = edit(record_id="fixture-failed", status=Status("failed", "train", hostile, 5))
    renamed = edit(failed, metrics={"loss": {"name": hostile, "unit": hostile}}, conditions={"driver": hostile})
    for text in (
        table(renamed, held(renamed), stream),
        table(renamed, None, stream),
        comparison_table(compare_records(BASE, renamed, CASE), None, stream=stream),
    ):
        assert "\x1b[2J" not in text
        assert not any(line.startswith("REPRODUCED") for line in text.splitlines())
        assert r"\x1b[2J\nREPRODUCED" in "".join(text.split("\n"))
    with pytest.raises(FlagbenchError) as caught:
        verify_baseline([BASE], failed, CASE)
    assert caught.value.message.endswith(r"x\x1b[2J\nREPRODUCED: all good")


def path(name: str = "a100-1x8") -> str:
    """The file of a replay."""
    return str(REPLAYS / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "code", "shown"),
    [
        ("a100-1x8", 0, ("p_core_host 194", "1942.6", "0.95 to 1.10")),
        ("a100-1x8-above", 0, ("p_core_host 23", "1942.6", "0.95 to 1.10")),
        ("a100-1x8-below", 9, ("p_core_host 149", "1942.6", "0.95 to 1.10")),
        ("a100-1x8-80gb", 10, ("device_model", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB")),
        ("a100-1x8-inconclusive", 11, ("p_core_host 18", "1942.6", "more runs, each in another session,")),
        ("a100-1x8-failed-check", 12, ("precision", "tf32", "fp32")),
        ("a100-1x8-partial-batches", 10, ("p_core_host", "33,280", "4,160")),
    ],
)
def test_verify_exits_by_its_verdict(flagbench: Flagbench, name: str, code: int, shown: tuple[str, ...]) -> None:
    found = flagbench("verify --json", path(name))
    said = json.loads(found.out)
    assert [each for each in shown if each not in said["reason"]] == []
    qualified = 1 if code in (0, 9, 11) else 0  # the window of 15 s
    assert (found.code, said["exit_code"], len(said["qualifiers"])) == (code, code, qualified)
    assert said["against"] == {"kind": "claim", "id": CLAIM.id, "chosen": True}
    assert said["records"] == [f"fixture-{name}"]


@pytest.mark.parametrize(("option", "chosen"), [("", True), (f"--claim {CLAIM.id}", False)])
def test_verify_reads_standard_input(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, option: str, chosen: bool
) -> None:
    content = Path(path("a100-1x8-below")).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    code, out, _ = flagbench(f"verify - {option}")
    assert (code, "nearest claim" in out) == (9, chosen)


def test_verify_holds_a_record_against_others(flagbench: Flagbench) -> None:
    code, out, _ = flagbench("verify", path("a100-1x8-below"), "--baseline", path())
    assert (code, "slower than the baseline fixture-a100-1x8" in out) == (9, True)
    both = ("verify --json", path("a100-1x8-throttled"), "--baseline", path(), "--baseline", path("a100-1x8-tenant"))
    said = flagbench(*both, "--within", "0.1").json
    assert (said["exit_code"], said["verdict"]) == (0, "SAME")
    assert said["against"]["id"] == "fixture-a100-1x8, fixture-a100-1x8-tenant"
    heading, *others = flagbench("verify", *both[1:]).out.splitlines()
    assert ("fixture" in heading, f"baseline {said['against']['id']}" in others) == (False, True)
    said = json.loads(flagbench(*both).out)
    assert (said["exit_code"], said["verdict"]) == (11, "INCONCLUSIVE")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--claim", "x", "--baseline", "y"), "--claim"),
        ((path(), "--claim", "distilbert/a100-1x8"), "distilbert/a100-1x8"),
        ((path(), path()), "fixture-a100-1x8"),
        ((path(), "--within", "0.03"), "--baseline"),
        ((path(), "--baseline", "y", "--within", "2"), "--within"),
        ((path(), "--baseline", "y", "--within", "nan"), "--within"),
    ],
)
def test_contradictory_arguments_are_usage_errors(
    flagbench: Flagbench, arguments: tuple[str, ...], word: str
) -> None:
    code, out, err = flagbench("verify", *arguments)
    assert (code, out, word in err) == (2, "", True)


def test_compare_prints_both_records(flagbench: Flagbench) -> None:
    for option, words in (("--json", '"schema": "comparison/v1"'), ("", "no condition and no setting differs")):
        code, out, _ = flagbench(f"compare {option}", path(), path("a100-1x8-below"))
        assert (code, words in out) == (0, True)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("a100-1x8-below", "SLOWER"),
        ("a100-1x8-above", "FASTER"),
        ("a100-1x8-unsteady", "INCONCLUSIVE"),
        ("a100-1x8-80gb", "NOT_COMPARABLE"),
    ],
)
def test_compare_says_what_verify_says_and_exits_with_0(flagbench: Flagbench, name: str, verdict: str) -> None:
    verified = json.loads(flagbench("verify --json", path(name), "--baseline", path()).out)
    compared = flagbench("compare --json", path(), path(name)).json
    assert compared["verdict"] == verified["verdict"] == verdict
    assert compared["reason"] == verified["reason"]
    shown = flagbench("compare", path(), path(name))
    assert shown.code == 0
    assert shown.out.startswith(verdict)


def test_the_ratio_of_a_comparison_is_that_of_its_verdict(flagbench: Flagbench) -> None:
    verified = json.loads(flagbench("verify --json", path("a100-1x8-below"), "--baseline", path()).out)
    compared = flagbench("compare --json", path(), path("a100-1x8-below")).json
    (in_verdict,) = (metric["ratio"] for metric in verified["metrics"] if metric["name"] == "p_core")
    (in_table,) = (metric["ratio"] for metric in compared["metrics"] if metric["name"] == "p_core")
    assert in_table["ci95"] is not None
    assert in_table == in_verdict
    assert f"ratio {in_table['value']:.3f} [" in flagbench("compare", path(), path("a100-1x8-below")).out


def test_a_record_compared_with_itself_has_no_verdict(flagbench: Flagbench) -> None:
    assert flagbench("compare", path(), path()).out.startswith("A and B are one record\n")
    assert flagbench("compare --json", path(), path()).json["verdict"] is None


def test_where_no_row_fits_it_names_expect(flagbench: Flagbench) -> None:
    shown = [flagbench("verify", path(name)).out for name in ("cpu-tiny", "a100-1x8-below")]
    assert [f"flagbench expect {CASE.name}" in out for out in shown] == [True, False]
