"""A published utilisation, and how it comes from the throughput of its row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalogs import CATALOG
from tools.claim_rules import Fit, read_rows, recompute_utilisation

ROWS = {row.claim.id: row for case in CATALOG.cases.values() for row in read_rows(CATALOG, case)}
ROUNDED_UP, MISFITTING = "glm/a100-1x8-fp32", "glm/a100-2x8-fp32-bs8"


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
    found = recompute_utilisation(ROWS[name])
    assert found is not None
    assert found.computed == pytest.approx(computed, rel=1e-12)
    assert found.fit is fit


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
    row = ROWS["glm/a100-1x1-fp32-bs16"]
    metrics = tuple(replace(m, printed=printed) if m.name == "mfu" else m for m in row.claim.metrics)
    found = recompute_utilisation(replace(row, claim=replace(row.claim, metrics=metrics)))
    assert found is not None
    assert found.fit is fit


def test_a_row_without_throughput_or_formula_is_not_computed() -> None:
    assert recompute_utilisation(ROWS["llama2-7b-lora/c500-1x1-fp16-bs4"]) is None
    row = ROWS["glm/a100-1x1-fp32-bs16"]
    assert recompute_utilisation(replace(row, case=replace(row.case, flops="none"))) is None
