"""What `claims lint` finds: planted errors, the known anomalies of the shipped claims, nothing in correct rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from catalogs import CATALOG
from flagbench.claims.finding import Finding
from flagbench.claims.lint import lint_content
from flagbench.claims.work import unit_work

Cells = dict[str, str]

EPOCH = 67_584
"""DistilBERT's counted samples of an epoch with 8 or 16 devices."""


def distilbert(
    device: str, devices: int, core: float, mem: str, peak: float, *, precision: str, epochs: int
) -> Cells:
    """A row that is true by arithmetic: 144.96e9 FLOP for a sample, whole epochs, 14.2 s of start."""
    whole = core * devices * 0.91
    return {
        "id": f"{device} {devices}",
        "case": "distilbert",
        "device": device,
        "nodes": str(-(-devices // 8)),
        "devices": str(devices),
        "precision": precision,
        "batch_size": "96",
        "p_core": f"{core * devices:.1f}",
        "p_train": f"{core * devices * 0.95:.1f}",
        "p_whole": f"{whole:.1f}",
        "e2e_time": f"{epochs * EPOCH / whole + 14.2:.1f}",
        "acc": "0.915",
        "mfu": f"{core * 144.96e9 / peak:.3f}",
        "mem": mem,
    }


CORRECT: list[Cells] = [
    distilbert("NVIDIA A100-SXM4-40GB", 1, 287.9, "32.7/40.0", 156e12, precision="tf32", epochs=3),
    distilbert("NVIDIA A100-SXM4-40GB", 8, 272.6, "33.4/40.0", 156e12, precision="tf32", epochs=9),
    distilbert("NVIDIA A100-SXM4-40GB", 16, 253.6, "32.9/40.0", 156e12, precision="tf32", epochs=4),
    distilbert("NVIDIA H200", 8, 871.3, "30.1/141", 494.7e12, precision="tf32", epochs=7),
    {
        "id": "lora",
        "case": "llama2_7b_finetune",
        "device": "A100-SXM4-40GB",
        "nodes": "1",
        "devices": "1",
        "precision": "fp16",
        "batch_size": "4",
        "tokens/s/GPU": "4017",
        "mfu": f"{4017 * 27.15e9 / 312e12:.3f}",
        "mem": "32.0/40",
    },
    {
        "id": "pretraining",
        "case": "llama2_70B",
        "device": "H800-80GB",
        "nodes": "4",
        "devices": "32",
        "precision": "bf16",
        "batch_size": "1",
        "layout": "TP4PP8DP1",
        "tokens/s/GPU": "908.29",
        "mfu": f"{908.29 * 444.5e9 / 989e12:.3f}",
        "mem": "74/80",
    },
    {
        "id": "cloze",
        "case": "GLM",
        "device": "NVIDIA A100-SXM4-40GB",
        "nodes": "1",
        "devices": "8",
        "precision": "fp16",
        "batch_size": "8",
        "choices": "9",
        "p_core": "42.4",
        "p_train": "42.4",
        "p_whole": "36.5",
        "e2e_time": "2763",
        "acc": "0.808",
        "mfu": f"{42.4 / 8 * 9 * 1101.3e9 / 312e12:.3f}",
        "mem": "33.0/40.0",
    },
    {
        "id": "scoring",
        "case": "aquila",
        "device": "NVIDIA A100-SXM4-40GB",
        "nodes": "1",
        "devices": "8",
        "precision": "bf16",
        "batch_size": "1",
        "layout": "TP8",
        "p_infer_whole": "175.5",
        "p_infer_core": "176.2",
        "e2e_time": "2479.9",
        "mem": "12.3/40.0",
    },
]

# Name, row, what is changed, and the finding it must give: of which row, field and rule.
PLANTED: list[tuple[str, int, Cells, tuple[str, str, str]]] = [
    ("core below train", 1, {"p_core": "2050.1"}, ("NVIDIA A100-SXM4-40GB 8", "p_core", "rates-in-order")),
    ("train below whole", 3, {"p_train": "6200.0"}, ("NVIDIA H200 8", "p_train", "rates-in-order")),
    ("whole above core", 7, {"p_infer_whole": "180.0"}, ("scoring", "p_infer_core", "rates-in-order")),
    ("shorter than an epoch", 1, {"e2e_time": "31.9"}, ("NVIDIA A100-SXM4-40GB 8", "e2e_time", "e2e-too-short")),
    ("longer than ten epochs", 2, {"e2e_time": "1400.3"}, ("NVIDIA A100-SXM4-40GB 16", "e2e_time", "e2e-too-long")),
    (
        "training time as end-to-end time",
        3,
        {"e2e_time": f"{7 * EPOCH / 6343.1:.1f}"},
        ("NVIDIA H200 8", "e2e_time", "e2e-is-train-time"),
    ),
    ("fewer epochs than stated", 2, {"epochs": "9"}, ("NVIDIA A100-SXM4-40GB 16", "e2e_time", "e2e-too-short")),
    ("before the first evaluation", 6, {"e2e_time": "276.3"}, ("cloze", "e2e_time", "e2e-too-short")),
    (
        "eight devices do more than eight times one",
        1,
        {"p_core": "2400.0", "mfu": "0.279"},
        ("NVIDIA A100-SXM4-40GB 8", "p_core", "scaling"),
    ),
    ("another peak", 4, {"mfu": "0.699"}, ("lora", "mfu", "mfu-does-not-fit")),
    ("percentage of another row", 1, {"mfu": "0.353"}, ("NVIDIA A100-SXM4-40GB 8", "mfu", "mfu-does-not-fit")),
    ("the publisher's formula", 5, {"mfu": "0.386"}, ("pretraining", "mfu", "mfu-formula")),
    ("above the whole peak", 5, {"mfu": "1.24"}, ("pretraining", "mfu", "above-one")),
    (
        "speed of eight devices for one",
        4,
        {"tokens/s/GPU": "32136", "mfu": "/"},
        ("lora", "tokens_per_second_per_device", "above-peak"),
    ),
    ("TF32 called fp32", 1, {"precision": "fp32"}, ("NVIDIA A100-SXM4-40GB 8", "precision", "above-peak")),
    (
        "padding counted",
        7,
        {"p_infer_whole": "8711", "p_infer_core": "8724"},
        ("scoring", "p_infer_core", "padding-counted"),
    ),
    (
        "more memory than there is",
        2,
        {"mem": "43.9/40.0"},
        ("NVIDIA A100-SXM4-40GB 16", "mem_peak", "memory-above-card"),
    ),
    (
        "memory of a larger card",
        1,
        {"mem": "61.0/80"},
        ("NVIDIA A100-SXM4-40GB 8", "mem_peak", "memory-of-another-card"),
    ),
    (
        "tokens made of samples",
        3,
        {"tokens/s": f"{871.3 * 8 * 512:.0f}"},
        ("NVIDIA H200 8", "tokens_per_second", "padding-counted"),
    ),
    ("no device", 5, {"device": ""}, ("pretraining", "device_model", "missing-condition")),
    ("no number of devices", 4, {"devices": "", "nodes": ""}, ("lora", "devices", "missing-condition")),
    ("no precision", 3, {"precision": "/"}, ("NVIDIA H200 8", "precision", "missing-condition")),
    ("no batch", 1, {"batch_size": "-"}, ("NVIDIA A100-SXM4-40GB 8", "batch_size", "missing-condition")),
    ("no number of choices", 6, {"choices": ""}, ("cloze", "choices", "missing-condition")),
    (
        "withheld accumulation",
        0,
        {"gradient_accumulation_steps": "not published"},
        ("NVIDIA A100-SXM4-40GB 1", "gradient_accumulation_steps", "missing-condition"),
    ),
    ("no gate", 3, {"p_core": "/", "mfu": "/"}, ("NVIDIA H200 8", "p_core", "gate-missing")),
    (
        "a row of another card",
        3,
        {name: CORRECT[1][name] for name in ("p_core", "p_train", "p_whole", "e2e_time", "acc")} | {"mfu": "/"},
        ("NVIDIA H200 8", "p_core", "copied-row"),
    ),
    (
        "another card's row times 2.5",
        3,
        {"p_core": "5452.0", "p_train": "5179.4", "p_whole": "4961.4", "e2e_time": "128.3", "mfu": "/"},
        ("NVIDIA H200 8", "p_core", "copied-row"),
    ),
    ("memory of another card's row", 3, {"mem": "33.4/141"}, ("NVIDIA H200 8", "mem_peak", "copied-memory")),
    ("accuracy above one", 6, {"acc": "1.08"}, ("cloze", "acc", "above-one")),
    ("stopped without its accuracy", 3, {"acc": "0.871"}, ("NVIDIA H200 8", "acc", "not-converged")),
    ("no measurement", 5, {"tokens/s/GPU": "-1"}, ("pretraining", "tokens_per_second_per_device", "not-positive")),
    ("no number", 0, {"p_train": "fast"}, ("NVIDIA A100-SXM4-40GB 1", "p_train", "not-a-number")),
    ("a layout of other devices", 5, {"layout": "TP8PP8DP1"}, ("pretraining", "layout", "contradiction")),
]


def table(rows: list[Cells]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), restval="/")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def findings(rows: list[Cells]) -> list[tuple[str, str, str]]:
    return [told(finding) for finding in lint_content(table(rows), "table.csv", CATALOG).findings]


def told(finding: Finding) -> tuple[str, str, str]:
    return finding.name, finding.field, finding.rule


def test_nothing_is_found_in_correct_rows() -> None:
    assert findings(CORRECT) == []
    assert [findings([row]) for row in CORRECT] == [[]] * len(CORRECT)


@pytest.mark.parametrize(("name", "row", "changes", "expected"), PLANTED, ids=[plant[0] for plant in PLANTED])
def test_a_planted_error_is_found_in_its_row_and_in_no_other(
    name: str, row: int, changes: Cells, expected: tuple[str, str, str]
) -> None:
    rows = [{**cells, **changes} if number == row else cells for number, cells in enumerate(CORRECT)]
    if "gradient_accumulation_steps" in changes:  # a new column; the others state it
        rows = [{"gradient_accumulation_steps": "1", **cells} for cells in rows]
    found = findings(rows)
    assert expected in found
    assert {name for name, _, _ in found} == {expected[0]}


@pytest.mark.parametrize("digits", [0, 1, 2, 3])
def test_a_publisher_may_round_as_coarsely_as_he_likes(digits: int) -> None:
    """Rates in order, and utilisations, are judged by the intervals that the printed digits stand for."""
    row = CORRECT[1]
    rounded = {name: f"{float(row[name]):.{digits}f}" for name in ("p_core", "p_train", "p_whole")}
    assert findings([{**row, **rounded, "e2e_time": "/", "mfu": f"{0.2533:.{max(digits, 1)}f}"}]) == []


@pytest.mark.parametrize(
    ("case", "flops"),
    [
        ("distilbert", 144.96e9),
        ("glm", 1101.3e9),
        ("llama2-7b-lora", 27.15e9),
        ("llama2-70b", 444.5e9),
        ("aquila-33b", 72.2e9),
    ],
)
def test_the_work_of_a_unit_is_that_which_the_manifest_states(case: str, flops: float) -> None:
    work = unit_work(CATALOG.cases[case], None, 1)
    assert work is not None
    assert work.executed == pytest.approx(flops, rel=1e-3)
    assert work.least <= work.executed


# -- the shipped claims ----------------------------------------------------------------------------------------

# The anomalies that follow from the row itself: the field and the rule by which each is found.
FOLLOWS: dict[str, tuple[str | None, str]] = {
    "accumulation-unknown": (None, "missing-condition"),
    "acc-counts-duplicates": (None, "counts-duplicates"),
    "aligned-without-losses": (None, "aligned-without-losses"),
    "batch-unnamed": (None, "unnamed"),
    "cannot-converge": (None, "cannot-converge"),
    "choices-unknown": (None, "missing-condition"),
    "cuda-unnamed": (None, "not-published"),
    "e2e-is-train-time": (None, "e2e-is-train-time"),
    "form-factor": (None, "form-factor"),
    "fp16-is-bf16": (None, "precision-label"),
    "label": (None, "label"),
    "learning-rate-unnamed": (None, "unnamed"),
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
    "torch-and-cuda-contradict": (None, "contradiction"),
    "torch-unnamed": (None, "not-published"),
    "withdrawn": (None, "withdrawn"),
    "withdrawn-acc": (None, "withdrawn"),
    "workers-unnamed": (None, "unnamed"),
}
# Those that follow only from what is outside of the row: code, other versions of it, notes under its table.
FROM_ELSEWHERE = {
    *("alignment-in-progress", "amp-needs-an-edit", "another-dataset", "another-device", "bubble", "config-file"),
    *("copied-readme", "data-edited", "earlier-table", "epochs", "examined-in-training-mode", "forward-only-note"),
    *("fp32-needs-an-edit", "hundred-steps", "image-dependent", "last-iteration", "loss-of-all-epochs"),
    *("memory-of-another-batch", "mfu-exact-n", "misses-its-target", "never-merged", "no-flash-in-fp32"),
    *("of-another-vendor", "other-megatron-options", "software-versions", "stop-in-steps", "target-reached"),
}
# What the manifests state beside the row, not as an anomaly.
STATED = {"missing-condition", "not-published", "precision-label", "cannot-converge"}


@pytest.fixture(scope="module")
def shipped() -> dict[str, set[tuple[str, str]]]:
    """By claim, what is found with every anomaly removed from the files."""
    found: dict[str, set[tuple[str, str]]] = {}
    for path in sorted((CATALOG.root / "claims").glob("*.yaml")):
        data: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CBaseLoader)
        for claim in data["claims"]:
            del claim["anomalies"]
            found[claim["id"]] = set()
        text = yaml.dump(data, Dumper=yaml.CDumper, allow_unicode=True, sort_keys=False).encode()
        for finding in lint_content(text, path.name, CATALOG).findings:
            found[finding.name].add((finding.field, finding.rule))
    return found


def test_every_known_anomaly_that_follows_from_its_row_is_found(shipped: dict[str, set[tuple[str, str]]]) -> None:
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
def test_an_error_planted_in_a_claims_file_is_found(line: str, instead: str, expected: tuple[str, str]) -> None:
    text = (CATALOG.root / "claims" / "distilbert.yaml").read_text(encoding="utf-8")
    assert line in text
    # The first row, which has no finding of its own.
    changed = text.replace(line, instead, 1).encode()
    found = {told(finding) for finding in lint_content(changed, "distilbert.yaml", CATALOG).findings}
    assert ("distilbert/a100-1x8-fp32", *expected) in found
