"""What a person reads: tables of a verdict, of a comparison and at the end of a run; and the command line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.record.model import Record, Status
from flagbench.report import comparison_table, verdict_table
from flagbench.verify import VerifyResult, compare_records, verify_baseline
from flagbench.verify.interval import Estimate, four_digits

from ..conftest import Ended
from .conftest import BASE, CASE, REPLAYS, edit, held, replay

Flagbench = Callable[..., Ended]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def table(record: Record, result: VerifyResult | None) -> str:
    return verdict_table([record], result, stream=io.StringIO())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.000123456, "0.0001235"),
        (0.915, "0.9150"),
        (13.9, "13.90"),
        (1510.2, "1510"),
        (12345.6, "12,346"),
        (0.0, "0.000"),
    ],
)
def test_measured_numbers_have_four_digits(value: float, text: str) -> None:
    assert four_digits(value) == text


@pytest.mark.parametrize(("value", "text"), [(1942.6, "1942.6"), (361.0, "361"), (12345.67, "12345.67")])
def test_published_numbers_are_as_printed(value: float, text: str) -> None:
    assert Estimate(value, runs=0).text() == text


def test_a_pipe_gets_plain_aligned_text() -> None:
    record = replay("a100-1x8-cuda11.8")
    text = table(record, held(record))
    assert "\x1b" not in text
    rows = [row.split() for row in text.splitlines()]
    assert ["metric", "measured", "claim", "unit", "ratio", "verdict", "compared", "with"] in rows
    shown = ["p_core_host", "1940", "[1855,", "2028]", "1942.6", "samples/s", "0.999", "[0.955,", "1.044]"]
    assert [row for row in rows if row[:1] == ["p_core_host"]] == [[*shown, "REPRODUCED", "p_core"]]
    # No claim has our own clock.
    assert ["p_core", "1920", "[1836,", "2007]", "-", "samples/s", "-", "-"] in rows
    assert ["torch", "2.6.0+cu118", "1.12.0a0+bd13bc6"] in rows
    assert "anomaly of e2e_time: " in text
    assert text.splitlines()[-1].startswith("REPRODUCED (software differs): p_core_host 1940")


def test_a_failed_run_is_shown_with_what_it_measured() -> None:
    failed = edit(status=Status("failed", "train", "out of memory", 5))
    for result in (None, held(failed)):
        text = table(failed, result)
        assert "the run ended as failed in train: out of memory" in text
        assert "1940 [1855, 2028]" in text
        assert "REPRODUCED" not in text


def test_a_comparison_shows_what_differs_before_the_metrics() -> None:
    text = comparison_table(compare_records(BASE, replay("cpu-tiny"), CASE), stream=io.StringIO())
    assert text.index("device_model") < text.index("train.learning_rate") < text.index("p_core_host")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_a_record_says_stays_in_its_line(stream: io.StringIO) -> None:
    hostile = "x\x1b[2J\nREPRODUCED: all good"
    failed = edit(record_id="fixture-failed", status=Status("failed", "train", hostile, 5))
    renamed = edit(failed, metrics={"loss": {"name": hostile, "unit": hostile}}, conditions={"driver": hostile})
    for text in (
        verdict_table([renamed], held(renamed), stream=stream),
        verdict_table([renamed], None, stream=stream),
        comparison_table(compare_records(BASE, renamed, CASE), stream=stream),
    ):
        assert "\x1b[2J" not in text
        assert not any(line.startswith("REPRODUCED") for line in text.splitlines())
        assert r"\x1b[2J\nREPRODUCED" in "".join(text.split("\n"))
    with pytest.raises(FlagbenchError) as caught:
        verify_baseline([BASE], failed, CASE)
    assert caught.value.message.endswith(r"x\x1b[2J\nREPRODUCED: all good")


def path(name: str) -> str:
    """The file of a replay."""
    return str(REPLAYS / f"{name}.json")


NUMBER = r"[0-9.]+"
INTERVAL = rf"\[{NUMBER}, {NUMBER}\]"
RATIO = rf"samples/s {INTERVAL} \(one run\), claim 1942\.6: ratio {NUMBER} {INTERVAL}, allowed 0\.95 to 1\.10"


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("a100-1x8", 0, f"p_core_host 194. {RATIO}"),
        ("a100-1x8-above", 0, f"p_core_host 23.. {RATIO}"),
        ("a100-1x8-below", 9, f"p_core_host 149. {RATIO}"),
        ("a100-1x8-80gb", 10, "device_model is NVIDIA A100-SXM4-80GB here, NVIDIA A100-SXM4-40GB published"),
        (
            "a100-1x8-inconclusive",
            11,
            f"p_core_host 18.. {RATIO}; the interval crosses a limit; about 6 more runs would decide",
        ),
        (
            "a100-1x8-failed-check",
            12,
            "record fixture-a100-1x8-failed-check: check precision failed: asked for tf32; .*",
        ),
        (
            "a100-1x8-partial-batches",
            10,
            "record fixture-a100-1x8-partial-batches: p_core_host counts every batch as full, 33,280 samples in all, "
            "but the run trained on 4,160; use a training set of at least a hundred steps",
        ),
    ],
)
def test_verify_exits_by_its_verdict_and_says_what_it_rests_on(
    flagbench: Flagbench, name: str, code: int, reason: str
) -> None:
    found = flagbench("verify --json", path(name))
    said = json.loads(found.out)
    assert re.fullmatch(reason, said["reason"])
    assert (found.code, said["exit_code"], said["qualifiers"]) == (code, code, [])
    assert said["against"] == {"kind": "claim", "id": "distilbert/a100-1x8-fp32", "chosen": True}
    assert said["records"] == [f"fixture-{name}"]


def test_verify_reads_standard_input_and_says_whether_the_claim_was_chosen(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = "claim distilbert/a100-1x8-fp32; it was chosen, as the one with the fewest differing"
    for option, said in (("", True), ("--claim distilbert/a100-1x8-fp32", False)):
        content = (REPLAYS / "a100-1x8-below.json").read_bytes()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        code, out, _ = flagbench(f"verify - {option}")
        assert (code, chosen in out) == (9, said)


def test_a_file_whose_name_is_a_dash_is_no_standard_input(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "-").write_bytes((REPLAYS / "a100-1x8-below.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert flagbench("verify ./-").code == 9


def test_verify_holds_a_record_against_another(flagbench: Flagbench) -> None:
    code, out, _ = flagbench("verify", path("a100-1x8-below"), "--baseline", path("a100-1x8"))
    assert code == 9
    assert "compared with the baseline fixture-a100-1x8" in out
    both = ("--baseline", path("a100-1x8"), "--baseline", path("a100-1x8-tenant"))
    said = flagbench("verify --json", path("a100-1x8-throttled"), *both, "--within", "0.1").json
    assert (said["exit_code"], said["verdict"]) == (0, "SAME")
    assert said["against"]["id"] == "fixture-a100-1x8, fixture-a100-1x8-tenant"
    said = json.loads(flagbench("verify --json", path("a100-1x8-throttled"), *both).out)
    assert (said["exit_code"], said["verdict"]) == (11, "INCONCLUSIVE")
    assert "more runs on each side would decide" in said["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--claim", "x", "--baseline", "y"), "not both"),
        ((path("a100-1x8"), "--claim", "distilbert/a100-1x8"), "there is no claim"),
        ((path("a100-1x8"), path("a100-1x8")), "given more than once"),
        ((path("a100-1x8"), "--within", "0.03"), "no --baseline"),
        ((path("a100-1x8"), "--baseline", "y", "--within", "2"), "between 0 and 1"),
        ((path("a100-1x8"), "--baseline", "y", "--within", "nan"), "between 0 and 1"),
    ],
)
def test_contradictory_arguments_are_usage_errors(
    flagbench: Flagbench, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = flagbench("verify", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_compare_prints_both_records(flagbench: Flagbench) -> None:
    for option, words in (("--json", '"schema": "comparison/v1"'), ("", "no condition differs")):
        code, out, _ = flagbench(f"compare {option}", path("a100-1x8"), path("a100-1x8-below"))
        assert code == 0
        assert words in out
