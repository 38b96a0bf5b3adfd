"""tools/lint_claims.py: nothing is found in the published rows, and an error planted in a copy of them is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.manifests.load import load_catalog
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Anomaly, Claim
from tools.lint_claims import ANOMALIES, ROOT, lint
from unit.host.conftest import Edit

DISTILBERT, GLM, LLAMA3 = "claims/distilbert.yaml", "claims/glm.yaml", "claims/llama3-8b.yaml"
BRIDGE = "catalogue/megatron-bridge.csv"

# A file, what stands in it, what is written instead, and the rule that finds it; the rules of ANOMALIES are below. Of
# DistilBERT, the first row.
PLANTED = [
    # a wrong digit
    (DISTILBERT, "p_core, value: 1942.6", "p_core, value: 1842.6", "rates-in-order"),
    (DISTILBERT, "p_core, value: 4058.3", "p_core, value: 4958.3", "scaling"),
    (DISTILBERT, "mem_peak, value: 13.9", "mem_peak, value: 43.9", "memory-above-card"),
    (GLM, "p_core, value: 43.5", "p_core, value: 48.5", "mfu-does-not-fit"),
    # the cell of another column, or of another row
    (DISTILBERT, "acc, value: 0.915", "acc, value: 13.9", "above-one"),
    (DISTILBERT, "e2e_time, value: 361, ", "e2e_time, value: 0.915, ", "e2e-too-short"),
    # another unit
    (LLAMA3, "value: 3698.7,", "value: 29589.6,", "above-peak"),
    (DISTILBERT, "p_whole, value: 1764.0", "p_whole, value: -1", "not-positive"),
    # a condition
    (DISTILBERT, "      gpus: 8\n", "      gpus: 4\n", "contradiction"),
    (DISTILBERT, "value: 13.9, of: 40.0", "value: 13.9, of: 80.0", "memory-of-another-card"),
    (LLAMA3, "layout: dp2 tp1 pp4", "layout: dp2 tp2 pp4", "contradiction"),
    # the catalogue
    (BRIDGE, "tokens_per_second_per_device,28672,", "tokens_per_second_per_device,23672,", "flops-per-token"),
    (BRIDGE, "tflops_per_device,934,", "tflops_per_device,9340,", "above-peak"),
    ("catalogue/flagperf.csv", ",mfu,34.2,", ",mfu,342,", "above-one"),
]


def rules(catalog: Catalog, row: str) -> list[str]:
    return [finding.rule for finding in lint(catalog) if finding.row == row]


def change(claim: Claim, **fields: object) -> Catalog:
    """The catalog with another version of a claim."""
    return replace(CATALOG, claims={**CATALOG.claims, claim.id: replace(claim, **fields)})


def test_nothing_is_found_in_the_published_rows() -> None:
    assert lint(CATALOG) == []


@pytest.mark.parametrize(("file", "old", "new", "rule"), PLANTED)
def test_planted_errors(file: str, old: str, new: str, rule: str, manifests: Path, edit: Edit) -> None:
    edit(manifests / file, old, new)
    findings = lint(load_catalog(manifests))
    assert rule in {finding.rule for finding in findings}
    assert {finding.file for finding in findings} == {f"manifests/{file}"}


def test_a_row_copied_to_another_claim() -> None:
    claim = CATALOG.claims["distilbert/a100-2x8-fp32-bs96"]
    other = CATALOG.claims["distilbert/a100-1x8-fp32-bs96"]
    assert "copied-row" in rules(change(claim, metrics=other.metrics), claim.id)


def test_a_row_entered_twice(manifests: Path) -> None:
    path = manifests / "catalogue" / "torchtune.csv"
    text = path.read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("18,") and "tokens_per_second" in line)
    path.write_text(f"{text}19,{line.removeprefix('18,')}\n", encoding="utf-8")
    assert rules(load_catalog(manifests), "row 19") == ["duplicate-row"]


def test_the_target_is_that_of_the_preset_of_the_run() -> None:
    claim = CATALOG.claims["distilbert/a100-1x8-fp32"]
    assert "not-converged" not in rules(CATALOG, claim.id)  # 0.915 of 0.91
    assert "not-converged" in rules(change(claim, run=replace(claim.run, preset="tiny")), claim.id)  # of 0.95


def test_a_utilisation_that_other_rows_of_the_device_have() -> None:
    claim = CATALOG.claims["llama3-8b/h100-1x8-fp8"]
    metrics = tuple(metric for metric in claim.metrics if metric.name != "mfu")
    assert "mfu-blank" in rules(change(claim, metrics=metrics), claim.id)


@pytest.mark.parametrize(("anomaly", "rule"), ANOMALIES.items())
def test_what_an_anomaly_states_is_found_without_it(anomaly: str, rule: str) -> None:
    claim = next(claim for claim in CATALOG.claims.values() if anomaly in {entry.id for entry in claim.anomalies})
    others = tuple(entry for entry in claim.anomalies if ANOMALIES.get(entry.id) != rule)
    assert rule in rules(change(claim, anomalies=others), claim.id)


def test_an_anomaly_that_the_row_does_not_have() -> None:
    claim = CATALOG.claims["distilbert/a100-1x8-fp32"]
    stated = (*claim.anomalies, Anomaly("mfu-blank", "p_core", "as the source says"))
    assert rules(change(claim, anomalies=stated), claim.id) == ["mfu-blank"]


def test_program(manifests: Path, edit: Edit) -> None:
    program = [sys.executable, str(ROOT / "tools" / "lint_claims.py")]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"{len(CATALOG.claims)} claims and the catalogue: 0 findings\n")

    edit(manifests / DISTILBERT, "p_core, value: 1942.6", "p_core, value: 1842.6")
    ended = subprocess.run([*program, str(manifests)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0] == (
        "manifests/claims/distilbert.yaml: distilbert/a100-1x8-fp32: p_core: rates-in-order: 1842.6, "
        "but p_train, which includes more of the time, is 1861.9"
    )

    edit(manifests / DISTILBERT, "unit: samples/s", "unit: samples")
    ended = subprocess.run([*program, str(manifests)], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "manifests/claims/distilbert.yaml:" in ended.stderr
