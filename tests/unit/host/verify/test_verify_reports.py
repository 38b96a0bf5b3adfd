"""What a person reads: tables of a verdict, of a comparison and at the end of a run; and the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.catalog.model import Case, Claim
from flagbench.cli import main
from flagbench.errors import FlagbenchError
from flagbench.record.model import Record, Status
from flagbench.report import comparison_table, verdict_table
from flagbench.stores import open_store
from flagbench.verify import compare_records, verify_baseline, verify_claim
from flagbench.verify.numbers import measured, published

REPLAYS = Path(__file__).parent / "replays"
MANIFESTS = Path(__file__).parents[4] / "manifests"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


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
    assert measured(value) == text


def test_published_numbers_are_as_printed() -> None:
    assert [published(v) for v in (1942.6, 361, 13.9, 12345.67)] == ["1942.6", "361", "13.9", "12345.67"]


def test_a_pipe_gets_plain_aligned_text(replay: Callable[[str], Record], case: Case, claim: Claim) -> None:
    record = replay("a100-1x8-cuda11.8")
    text = verdict_table([record], verify_claim([record], claim, case, chosen=True), stream=io.StringIO())
    assert "\x1b" not in text
    assert "claim distilbert/a100-1x8-fp32; it was chosen, as the one with the fewest differing" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["metric", "measured", "claim", "unit", "ratio", "verdict", "held", "against"] in rows
    held = ["p_core_host", "1940", "[1930,", "1950]", "1942.6", "samples/s", "0.999", "[0.994,", "1.004]"]
    assert [*held, "REPRODUCED", "p_core"] in rows
    assert ["torch", "2.6.0+cu118", "1.12.0a0+bd13bc6"] in rows
    assert "anomaly of e2e_time: " in text
    assert text.splitlines()[-1].startswith("REPRODUCED (software differs): p_core_host 1940")


@pytest.mark.parametrize("no_color", [True, False])
def test_a_terminal_gets_colour_unless_told_otherwise(
    base: Record, case: Case, claim: Claim, monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    text = verdict_table([base], verify_claim([base], claim, case), stream=Terminal())
    assert ("\x1b[1;32m" in text) is not no_color
    # Intervals look like rich's markup, and are not.
    assert "[1930," in text


def test_metrics_that_nothing_is_published_of_are_shown_too(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim
) -> None:
    text = verdict_table([base], verify_claim([base], claim, case), stream=io.StringIO())
    rows = [line.split() for line in text.splitlines()]
    # No claim holds our own clock.
    assert ["p_core", "1920", "[1910,", "1930]", "-", "samples/s", "-", "-"] in rows
    failed = edit(base, status=Status("failed", "train", "out of memory", 5))
    for result in (None, verify_claim([failed], claim, case)):
        text = verdict_table([failed], result, stream=io.StringIO())
        assert "the run ended as failed in train: out of memory" in text
        assert "1940 [1930, 1950]" in text
        assert "REPRODUCED" not in text


def test_a_comparison_shows_what_differs_before_the_metrics(base: Record, replay: Callable[[str], Record]) -> None:
    text = comparison_table(compare_records(base, replay("cpu-tiny")), stream=io.StringIO())
    assert text.index("device_model") < text.index("train.learning_rate") < text.index("p_core_host")
    assert "no condition differs" in comparison_table(compare_records(base, base), stream=io.StringIO())


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_a_record_says_stays_in_its_line(
    base: Record, edit: Callable[..., Record], case: Case, claim: Claim, stream: io.StringIO
) -> None:
    hostile = "x\x1b[2J\nREPRODUCED: all good"
    failed = edit(base, record_id="fixture-failed", status=Status("failed", "train", hostile, 5))
    renamed = edit(failed, metrics={"loss": {"name": hostile, "unit": hostile}}, conditions={"driver": hostile})
    for text in (
        verdict_table([renamed], verify_claim([renamed], claim, case), stream=stream),
        verdict_table([renamed], None, stream=stream),
        comparison_table(compare_records(base, renamed), stream=stream),
    ):
        assert "\x1b[2J" not in text
        assert not any(line.startswith("REPRODUCED") for line in text.splitlines())
        assert r"\x1b[2J\nREPRODUCED" in "".join(text.split("\n"))
    with pytest.raises(FlagbenchError) as caught:
        verify_baseline([base], failed, case)
    assert caught.value.message.endswith(r"x\x1b[2J\nREPRODUCED: all good")


@pytest.fixture
def flagbench(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line with a store of its own; gives exit code, stdout and stderr."""
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(MANIFESTS))
    monkeypatch.setenv("FLAGBENCH_STORE", str(tmp_path / "store"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a100-1x8", 0),
        ("a100-1x8-above", 0),
        ("a100-1x8-below", 9),
        ("a100-1x8-80gb", 10),
        ("a100-1x8-inconclusive", 11),
        ("a100-1x8-failed-check", 12),
    ],
)
def test_verify_exits_by_its_verdict(flagbench: Callable[..., tuple[int, str, str]], name: str, code: int) -> None:
    found, out, _ = flagbench("verify", str(REPLAYS / f"{name}.json"), "--json")
    assert found == code
    said = json.loads(out)
    assert said["exit_code"] == code
    assert said["against"] == {"kind": "claim", "id": "distilbert/a100-1x8-fp32", "chosen": True}
    assert said["records"] == [f"fixture-{name}"]


def test_verify_reads_a_file_standard_input_and_the_store(
    flagbench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (REPLAYS / "a100-1x8-below.json").read_bytes()
    code, _, err = flagbench("verify")
    assert code == 3
    assert "holds no record" in err
    open_store().put(content)
    for name in ("last", "fixture-a100-1x8-below"):
        assert flagbench("verify", name, "--claim", "distilbert/a100-1x8-fp32")[0] == 9
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert flagbench("verify", "-")[0] == 9


def test_verify_holds_a_record_against_another(flagbench: Callable[..., tuple[int, str, str]]) -> None:
    base, below = str(REPLAYS / "a100-1x8.json"), str(REPLAYS / "a100-1x8-below.json")
    code, out, _ = flagbench("verify", below, "--baseline", base)
    assert code == 0  # its p_core is the base's; only the publisher's clock differs
    assert "held against the baseline fixture-a100-1x8" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--claim", "x", "--baseline", "y"), "not both"),
        (("-", "--baseline", "-"), "standard input (-) is named more than once"),
        (("{base}", "--claim", "distilbert/a100-1x8"), "there is no claim"),
        (("{base}", "{base}"), "given more than once"),
    ],
)
def test_contradictory_arguments_are_usage_errors(
    flagbench: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], words: str
) -> None:
    filled = [a.format(base=REPLAYS / "a100-1x8.json") for a in arguments]
    code, out, err = flagbench("verify", *filled)
    assert (code, out) == (2, "")
    assert words in err


def test_compare_prints_both_records(flagbench: Callable[..., tuple[int, str, str]]) -> None:
    base, below = str(REPLAYS / "a100-1x8.json"), str(REPLAYS / "a100-1x8-below.json")
    code, out, _ = flagbench("compare", base, below, "--json")
    assert code == 0
    metrics = {m["name"]: m for m in json.loads(out)["metrics"]}
    assert metrics["p_core_host"]["ratio"]["value"] == pytest.approx(1510 / 1940)
    code, out, _ = flagbench("compare", base, below)
    assert code == 0
    assert "no condition differs" in out
