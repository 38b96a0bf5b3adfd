"""Every published utilisation follows from the throughput of its row, or is named as one that does not.

And what docs/verify-a-claim.md derives from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.cli import main
from flagbench.manifests.model import Anomaly, Claim
from flagbench.manifests.utilisation import ANOMALIES, Fit, Reproduction, reproduce_utilisation, reproductions

FOUND = {entry.claim: entry for entry in reproductions(CATALOG)}
ROUNDED_UP, MISFITTING = "glm/a100-1x8-fp32", "glm/a100-2x8-fp32-bs8"


def recomputed(claim: Claim) -> Reproduction:
    found = reproduce_utilisation(claim, CATALOG.cases[claim.case])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "computed", "fit"),
    [
        (ROUNDED_UP, 42.4 / 8 * 6 * 0.33e9 * 512 / 156e12, Fit.ROUNDED_UP),
        ("glm/a100-1x8-fp32-bs16", 43.5 / 8 * 6 * 0.33e9 * 512 / 156e12, Fit.ROUNDED),
        ("glm/a100-1x1-fp32-bs16", 5.5 * 6 * 0.33e9 * 512 / 156e12, Fit.ROUNDED),
        (MISFITTING, 84.9 / 16 * 6 * 0.33e9 * 512 / 156e12, Fit.NONE),
        ("llama2-70b/h800-4x8-fp32-tp8-pp4", 253.61 * 6 * 70e9 / 495e12, Fit.ROUNDED),
        ("llama2-70b/h800-4x8-amp-tp8-pp4", 641.93 * 6 * 70e9 / 989e12, Fit.TRUNCATED),
        ("llama2-70b/h800-4x8-amp-tp4-pp8", 791.37 * 6 * 70e9 / 989e12, Fit.ROUNDED),
        ("llama2-70b/h800-4x8-amp-tp4-pp8-gas1024", 908.29 * 6 * 70e9 / 989e12, Fit.ROUNDED),
        ("llama2-7b-lora/a100-1x1-fp16-bs4", 4017 * 2 * 7e9 / 156e12, Fit.ROUNDED),
    ],
)
def test_published_utilisation_is_the_formula_of_its_throughput(name: str, computed: float, fit: Fit) -> None:
    assert FOUND[name].computed == pytest.approx(computed, rel=1e-12)
    assert FOUND[name].fit is fit
    assert FOUND[name].problem is None


@pytest.mark.parametrize("name", [ROUNDED_UP, MISFITTING])
def test_a_row_that_fits_no_rounding_is_an_anomaly(name: str) -> None:
    assert [row for row, entry in FOUND.items() if entry.listed] == [
        ROUNDED_UP,
        MISFITTING,
        "llama3-8b/a100-1x8-pp4-dp2-tp1",
    ]
    claim = CATALOG.claims[name]
    assert recomputed(replace(claim, anomalies=())).problem is not None
    # The anomaly has to be of the field it speaks of.
    elsewhere = (Anomaly(ANOMALIES[FOUND[name].fit], "p_core", "of another cell"),)
    assert recomputed(replace(claim, anomalies=elsewhere)).problem is not None


@pytest.mark.parametrize("anomaly", ANOMALIES.values())
def test_a_listed_row_that_fits_is_a_problem_too(anomaly: str) -> None:
    claim = CATALOG.claims["glm/a100-1x1-fp32-bs16"]
    listed = recomputed(replace(claim, anomalies=(*claim.anomalies, Anomaly(anomaly, "mfu", "it does not fit"))))
    assert listed.problem is not None


@pytest.mark.parametrize(
    ("printed", "fit"),
    [
        ("0.0357", Fit.ROUNDED),
        ("0.036", Fit.ROUNDED),
        ("0.035", Fit.TRUNCATED),
        ("0.0358", Fit.ROUNDED_UP),
        ("0.04", Fit.ROUNDED),
        ("3.5%", Fit.TRUNCATED),
        ("0.034", Fit.NONE),
        ("0.037", Fit.NONE),
        ("3.7%", Fit.NONE),
        ("0.0360", Fit.NONE),
    ],
)
def test_the_printed_digits_decide_what_fits(printed: str, fit: Fit) -> None:
    """5.5 samples/s gives 0.035741: less than one unit of the last printed digit away, whichever way."""
    claim = CATALOG.claims["glm/a100-1x1-fp32-bs16"]
    metrics = tuple(replace(m, printed=printed) if m.name == "mfu" else m for m in claim.metrics)
    assert recomputed(replace(claim, metrics=metrics)).fit is fit


def test_a_row_without_throughput_or_formula_is_not_computed() -> None:
    hidden = CATALOG.claims["llama2-7b-lora/c500-1x1-fp16-bs4"]
    assert reproduce_utilisation(hidden, CATALOG.cases["llama2-7b-lora"]) is None
    claim = CATALOG.claims["glm/a100-1x1-fp32-bs16"]
    assert reproduce_utilisation(claim, replace(CATALOG.cases["glm"], flops="none")) is None


def test_lint_prints_how_each_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["claims", "lint"]) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == list(FOUND)


def test_lint_exits_2_for_a_misfit_that_is_no_anomaly(
    manifests: Path,
    edit: Callable[[Path, str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit(manifests / "claims" / "glm.yaml", "name: mfu, value: 0.036,", "name: mfu, value: 0.046,")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    assert main.run(["claims", "lint", "--json"]) == 2
    entries = json.loads(capsys.readouterr().out)["utilisations"]
    (wrong,) = (entry for entry in entries if entry["problem"] is not None)
    assert (wrong["claim"], wrong["printed"], wrong["fit"]) == ("glm/a100-1x1-fp32-bs16", "0.046", "does not fit")
