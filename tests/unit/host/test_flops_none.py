"""A case that counts no FLOPs says so wherever they would be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from flagbench.manifests.documents import ManifestError
from flagbench.manifests.load import load_catalog
from flagbench_core.flops import FORMULAS
from honest import CLAIMS, honest_record
from tools.lint_claims import lint
from unit.host.conftest import Flagbench

CASE, CLAIM = "llama2-70b", "llama2-70b/h800-4x8-amp-tp8-pp4"


def change(path: Path, **fields: object) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**document, **fields}, allow_unicode=True), encoding="utf-8")


@pytest.fixture
def uncounted(manifests: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The manifests, of which one case counts no FLOPs."""
    path = manifests / "cases" / f"{CASE}.yaml"
    metrics = yaml.safe_load(path.read_text(encoding="utf-8"))["metrics"]
    change(path, flops="none", metrics=[metric for metric in metrics if "fu" not in metric["name"]])
    claims = manifests / "claims" / f"{CASE}.yaml"
    rows = yaml.safe_load(claims.read_text(encoding="utf-8"))["claims"]
    for row in rows:
        row["metrics"] = [metric for metric in row["metrics"] if "fu" not in metric["name"]]
    change(claims, claims=rows)
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    return manifests


def test_metrics_of_flops_contradict_the_manifest(manifests: Path) -> None:
    change(manifests / "cases" / f"{CASE}.yaml", flops="none")
    with pytest.raises(ManifestError) as caught:
        load_catalog(manifests)
    named = {problem.message.split("'")[1] for problem in caught.value.problems}
    assert named == {"mfu", "mfu_published_formula", "hfu"}


@pytest.mark.parametrize("flops", ["glm/v1", {"formula": "llama/v1", "source": "none"}], ids=["text", "id"])
def test_a_wrong_formula_is_answered_with_the_formulas(manifests: Path, flops: object) -> None:
    change(manifests / "cases" / f"{CASE}.yaml", flops=flops)
    with pytest.raises(ManifestError) as caught:
        load_catalog(manifests)
    [problem] = caught.value.problems
    assert all(formula in problem.message for formula in FORMULAS)


def test_list_shows_it(uncounted: Path, flagbench: Flagbench) -> None:
    [listed] = [case for case in flagbench("list cases --json").json["cases"] if case["name"] == CASE]
    assert listed["flops"] is None


def test_verify_applies_no_rule_on_flops(uncounted: Path, flagbench: Flagbench, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps(honest_record(CLAIMS[CLAIM], steps=200)))
    found = flagbench(f"verify {record} --claim {CLAIM} --json").json
    assert any(name.startswith("FLOPs") for name in found["not_compared"])
    assert found["verdict"] == "REPRODUCED"


def test_claims_are_checked_without_flops(uncounted: Path) -> None:
    catalog = load_catalog(uncounted)
    findings = [finding for finding in lint(catalog) if finding.row.startswith(CASE)]
    # What the anomalies say of the utilisation is not found, as the rows have none any more.
    assert {finding.rule for finding in findings} == {"mfu-formula", "mfu-truncated"}
    assert {finding.expected for finding in findings} == {"the row does not have it"}
