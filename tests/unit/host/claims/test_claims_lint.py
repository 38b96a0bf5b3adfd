"""What `claims lint` finds: planted errors, the known anomalies of the shipped claims, nothing in correct rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.claims.csv_file import read_csv
from flagbench.claims.lint import lint_file, lint_rows
from flagbench.claims.rows import LintFinding

Cells = dict[str, str]

A100 = "NVIDIA A100-SXM4-40GB"
EPOCH = 67_584
"""DistilBERT's counted samples of an epoch with 8 or 16 devices."""


def row(id_: str, case: str, device: str, shape: str, precision: str, **cells: str) -> Cells:
    """A row of a CSV file; `shape` is 2x8 for two nodes with eight devices each."""
    nodes, gpus = shape.split("x")
    own = {"id": id_, "case": case, "device_model": device, "nodes": nodes, "gpus": gpus, "precision": precision}
    return {**own, **cells}


def distilbert(id_: str, device: str, shape: str, core: float, peak: float, epochs: int, **cells: str) -> Cells:
    """A row that is true by arithmetic: 144.96e9 FLOP for a sample, whole epochs, 14.2 s of start."""
    nodes, gpus = map(int, shape.split("x"))
    speed = core * nodes * gpus
    made = {
        "batch_size": "96",
        "p_core": f"{speed:.1f}",
        "p_train": f"{speed * 0.95:.1f}",
        "p_whole": f"{speed * 0.91:.1f}",
        "e2e_time": f"{epochs * EPOCH / (speed * 0.91) + 14.2:.1f}",
        "acc": "0.915",
        "mfu": f"{core * 144.96e9 / peak:.3f}",
    }
    return row(id_, "distilbert", device, shape, "tf32", **made, **cells)


CORRECT: list[Cells] = [
    distilbert("one", A100, "1x1", 287.9, 156e12, 3, mem_peak="32.7", memory_gib="40.0"),
    distilbert("eight", A100, "1x8", 272.6, 156e12, 9, mem_peak="33.4", memory_gib="40.0"),
    distilbert("sixteen", A100, "2x8", 253.6, 156e12, 4, mem_peak="32.9", memory_gib="40.0"),
    distilbert("h200", "NVIDIA H200", "1x8", 871.3, 494.7e12, 7, mem_peak="30.1", memory_gib="141"),
    row(
        "lora",
        "llama2-7b-lora",
        A100,
        "1x1",
        "fp16",
        batch_size="4",
        tokens_per_second_per_device="4017",
        mfu=f"{4017 * 27.15e9 / 312e12:.3f}",
    ),
    row(
        "pretraining",
        "llama2-70b",
        "H800-80GB",
        "4x8",
        "bf16",
        batch_size="1",
        layout="tp4 pp8 dp1",
        tokens_per_second_per_device="908.29",
        mfu=f"{908.29 * 444.5e9 / 989e12:.3f}",
    ),
    row(
        "cloze",
        "glm",
        A100,
        "1x8",
        "fp16",
        batch_size="8",
        choices="9",
        p_core="42.4",
        p_train="42.4",
        p_whole="36.5",
        e2e_time="2763",
        acc="0.808",
        mfu=f"{42.4 / 8 * 9 * 1101.3e9 / 312e12:.3f}",
    ),
    row(
        "scoring",
        "aquila-33b",
        A100,
        "1x8",
        "bf16",
        batch_size="1",
        layout="tp8",
        p_infer_whole="175.5",
        p_infer_core="176.2",
        e2e_time="2479.9",
    ),
]

# Which row is changed, how, and the field and the rule of the finding.
PLANTED = """
eight | p_core=2050.1 | p_core | rates-in-order
h200 | p_train=6200.0 | p_train | rates-in-order
scoring | p_infer_whole=180.0 | p_infer_core | rates-in-order
eight | e2e_time=31.9 | e2e_time | e2e-too-short
cloze | e2e_time=276.3 | e2e_time | e2e-too-short
sixteen | epochs=9 | e2e_time | e2e-too-short
sixteen | e2e_time=1400.3 | e2e_time | e2e-too-long
h200 | e2e_time=74.6 | e2e_time | e2e-is-train-time
eight | p_core=2400.0, mfu=0.279 | p_core | scaling
lora | mfu=0.699 | mfu | mfu-does-not-fit
eight | mfu=0.353 | mfu | mfu-does-not-fit
pretraining | mfu=0.386 | mfu | mfu-formula
pretraining | mfu=1.24 | mfu | above-one
pretraining | hfu=0.350 | mfu | above-hfu
lora | tokens_per_second_per_device=32136, mfu= | tokens_per_second_per_device | above-peak
eight | precision=fp32 | precision | above-peak
cloze | precision=bf16, executed=fp16 | precision | precision-label
scoring | p_infer_whole=8711, p_infer_core=8724 | p_infer_core | padding-counted
sixteen | mem_peak=43.9 | mem_peak | memory-above-card
eight | mem_peak=61.0, memory_gib=80 | mem_peak | memory-of-another-card
pretraining | device_model= | device_model | missing-condition
lora | gpus= | devices | missing-condition
h200 | precision= | precision | missing-condition
eight | batch_size= | batch_size | missing-condition
cloze | choices= | choices | missing-condition
one | gradient_accumulation_steps=not published | gradient_accumulation_steps | missing-condition
h200 | p_core=, mfu= | p_core | gate-missing
h200 | p_core=2180.8, p_train=2071.8, p_whole=1984.5, mfu= | p_core | copied-row
h200 | mem_peak=33.4 | mem_peak | copied-memory
cloze | acc=1.08 | acc | above-one
h200 | acc=0.871 | acc | not-converged
h200 | acc=0.871, converged=TRUE | acc | not-converged
pretraining | tokens_per_second_per_device=-1 | tokens_per_second_per_device | not-positive
pretraining | layout=tp8 pp8 dp1 | layout | contradiction
one | global_batch_size=64, gradient_accumulation_steps=1 | global_batch_size | contradiction
""".strip().splitlines()


def table(rows: list[Cells]) -> str:
    """As CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def findings(rows: list[Cells]) -> list[tuple[str, str, str]]:
    return [told(finding) for finding in lint_rows(read_csv(table(rows), "table.csv", CATALOG)).findings]


def told(finding: LintFinding) -> tuple[str, str, str]:
    return finding.name, finding.field, finding.rule


def test_nothing_is_found_in_correct_rows() -> None:
    assert findings(CORRECT) == []
    assert findings([{**CORRECT[0], "acc": "0.871", "converged": "FALSE", "e2e_time": ""}]) == [], (
        "as spreadsheets write it"
    )
    assert [findings([row]) for row in CORRECT] == [[]] * len(CORRECT)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_error_is_found_in_its_row_alone(planted: str) -> None:
    changed, cells, field, rule = planted.split(" | ")
    changes = dict(cell.split("=") for cell in cells.split(", "))
    # What a new column says of one row, the others state, too.
    stated = {"gradient_accumulation_steps": "1"} if "gradient_accumulation_steps" in changes else {}
    found = findings([{**stated, **row, **(changes if row["id"] == changed else {})} for row in CORRECT])
    assert (changed, field, rule) in found
    assert {name for name, _, _ in found} == {changed}


@pytest.mark.parametrize("digits", [0, 1, 2, 3])
def test_a_publisher_may_round_coarsely(digits: int) -> None:
    """Rates in order, and utilisations, are judged by the intervals that the printed digits stand for."""
    rounded = {name: f"{float(CORRECT[1][name]):.{digits}f}" for name in ("p_core", "p_train", "p_whole")}
    assert findings([{**CORRECT[1], **rounded, "e2e_time": "", "mfu": f"{0.2533:.{max(digits, 1)}f}"}]) == []


@pytest.mark.parametrize("column", ["torch", "cuda", "driver", "division"])
def test_rows_of_other_software_are_not_compared(column: str) -> None:
    faster = {**CORRECT[1], "p_core": "2400.0", "mfu": "0.279"}
    for version in ("1", "2"):
        found = findings([{**CORRECT[0], column: "1"}, {**faster, column: version}])
        assert (("eight", "p_core", "scaling") in found) == (version == "1")


@pytest.mark.parametrize("value", ["0", "-1", "-1942.6"])
def test_a_value_that_is_no_measurement_blames_no_other_row(value: str) -> None:
    found = findings([{**CORRECT[0], "p_core": value, "mfu": ""}, CORRECT[1]])
    assert ("one", "p_core", "not-positive") in found
    assert {name for name, _, _ in found} == {"one"}


@pytest.mark.parametrize(
    "cells",
    [
        {"e2e_time": "9e29"},
        {"p_whole": "1e-29"},
        {"sequence_length": "1e29"},
        {"gradient_accumulation_steps": "-1"},
        {"layout": "tp" + "9" * 5000},
        {"mfu": "0.0" + "1" * 60},
    ],
)
def test_no_number_breaks_a_rule(cells: Cells) -> None:
    findings([{**row, **cells} for row in CORRECT if row["case"] in ("distilbert", "glm")])


# -- the shipped claims ----------------------------------------------------------------------------------------

# The anomalies that follow from the row itself: the field and the rule by which each is found.
FOLLOWS: dict[str, tuple[str | None, str]] = {
    "accumulation-unknown": (None, "missing-condition"),
    "cannot-converge": (None, "cannot-converge"),
    "choices-unknown": (None, "missing-condition"),
    "cuda-unnamed": (None, "not-published"),
    "driver-unnamed": (None, "not-published"),
    "dropout-unknown": (None, "missing-condition"),
    "e2e-is-train-time": (None, "e2e-is-train-time"),
    "fp16-is-bf16": (None, "precision-label"),
    "memory-equals-the-a100s": (None, "copied-memory"),
    "mfu-blank": (None, "mfu-blank"),
    "mfu-does-not-fit": (None, "mfu-does-not-fit"),
    "mfu-formula": (None, "mfu-formula"),
    "mfu-rounding": (None, "mfu-rounding"),
    "mfu-truncated": (None, "mfu-truncated"),
    "not-converged": (None, "not-converged"),
    "one-speed": ("p_core", "gate-missing"),
    "padding-counted": (None, "padding-counted"),
    "recompute-unknown": (None, "missing-condition"),
    "row-spliced": (None, "e2e-too-long"),
    "seed-not-applied": (None, "not-published"),
    "steps-unknown": (None, "not-published"),
    "throughput-blank": (None, "gate-missing"),
    "throughput-hidden": (None, "gate-missing"),
    "torch-unnamed": (None, "not-published"),
}
# Those that follow only from what is outside of the row: code, other versions of it, notes under its table.
FROM_ELSEWHERE = {
    *("aligned-without-losses", "batch-unnamed", "form-factor", "label", "learning-rate-unnamed", "withdrawn"),
    *("acc-counts-duplicates", "torch-and-cuda-contradict"),
    *("withdrawn-acc", "workers-unnamed", "alignment-in-progress", "amp-needs-an-edit"),
    *("another-dataset", "another-device", "bubble", "config-file"),
    *("copied-readme", "data-edited", "earlier-table", "epochs", "examined-in-training-mode", "forward-only-note"),
    *("fp32-needs-an-edit", "hundred-steps", "image-dependent", "last-iteration", "loss-of-all-epochs"),
    *("memory-of-another-batch", "mfu-exact-n", "misses-its-target", "never-merged", "no-flash-in-fp32"),
    *("of-another-vendor", "other-megatron-options", "software-versions", "stop-in-steps", "target-reached"),
    *("warm", "not-an-a100", "two-models", "counted-twice", "factor-of-a-node", "two-chips", "few-iterations"),
    *("share", "two-devices", "four-devices", "no-unit", "pinned", "one-way-or-both", "h200"),
    *("model-of-the-defaults", "dropout-of-the-defaults", "no-recompute", "mfu-range"),
}
# What the manifests state beside the row, not as an anomaly.
STATED = {"missing-condition", "not-published", "precision-label", "cannot-converge"}


@pytest.fixture(scope="module")
def shipped() -> dict[str, set[tuple[str, str]]]:
    """What is found in each claim; its anomalies are not read."""
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in CATALOG.claims}
    for path in sorted((CATALOG.root / "claims").glob("*.yaml")):
        for finding in lint_file(path, CATALOG).findings:
            found[finding.name].add((finding.field, finding.rule))
    return found


def test_every_anomaly_that_follows_from_its_row_is_found(shipped: dict[str, set[tuple[str, str]]]) -> None:
    known = [(claim, anomaly) for claim in CATALOG.claims.values() for anomaly in claim.anomalies]
    assert {anomaly.id for _, anomaly in known} == FOLLOWS.keys() | FROM_ELSEWHERE
    for claim, anomaly in known:
        if anomaly.id in FOLLOWS:
            field, rule = FOLLOWS[anomaly.id]
            if anomaly.id == "throughput-hidden" and anomaly.field == "mfu":
                rule = "unverifiable"
            assert (field or anomaly.field, rule) in shipped[claim.id], (claim.id, anomaly.id)


def test_nothing_else_is_found_in_the_shipped_claims(shipped: dict[str, set[tuple[str, str]]]) -> None:
    for claim in CATALOG.claims.values():
        expected = {anomaly.field for anomaly in claim.anomalies} | {CATALOG.cases[claim.case].gate}
        extra = {(field, rule) for field, rule in shipped[claim.id] if field not in expected and rule not in STATED}
        assert extra == set(), claim.id


@pytest.mark.parametrize(
    ("line", "instead", "expected"),
    [
        ("p_core, value: 1942.6", "p_core, value: 1842.6", ("p_core", "rates-in-order")),
        ("e2e_time, value: 361", "e2e_time, value: 36.1", ("e2e_time", "e2e-too-short")),
        ("      gpus: 8", "      gpus: 4", ("devices", "contradiction")),
        ("      devices: 8", "      devices: 2", ("devices", "contradiction")),
        ("      batch_size: 32\n", "", ("batch_size", "missing-condition")),
        ("      sequence_length: 512\n", "", ("sequence_length", "missing-condition")),
        ("      batch_size: 32\n", "      batch_size: not published\n", ("batch_size", "missing-condition")),
        ("value: 13.9, of: 40.0", "value: 41.9, of: 40.0", ("mem_peak", "memory-above-card")),
        ("      executed: tf32", "      executed: fp32", ("precision", "above-peak")),
    ],
)
def test_an_error_planted_in_a_claims_file_is_found(
    line: str, instead: str, expected: tuple[str, str], tmp_path: Path
) -> None:
    text = (CATALOG.root / "claims" / "distilbert.yaml").read_text(encoding="utf-8")
    assert line in text
    # The first row, which has no finding of its own.
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(line, instead, 1), encoding="utf-8")
    assert ("distilbert/a100-1x8-fp32", *expected) in {told(finding) for finding in lint_file(path, CATALOG).findings}
