"""The numbers of docs/verify-a-claim.md, each computed again from the manifests."""

from __future__ import annotations

import re
from pathlib import Path

from flagbench.catalog.load import load_catalog
from flagbench.verify import reproductions

CATALOG = load_catalog()
TEXT = (Path(__file__).parents[3] / "docs" / "verify-a-claim.md").read_text(encoding="utf-8")
SECTION = " ".join(TEXT.split("## Published utilisations")[1].split("\n## ")[0].split())
A100_FP16 = CATALOG.stacks["a100-cuda11.6"].accelerators[0].peaks["fp16"].flops
GLM_SAMPLE = 1101.3e9 * 10
"""FLOPs of a sample with ten choices, as the case's manifest counts a choice."""
LORA_TOKEN = 27.15e9


def table(heading: str) -> list[list[str]]:
    """The rows of the page's table whose first column has this heading."""
    lines = TEXT[TEXT.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_rows_is_what_lint_computes() -> None:
    expected = []
    for entry in reproductions(CATALOG):
        metric = CATALOG.claims[entry.claim].metric("mfu")
        assert metric is not None
        over = f" / {entry.devices}" if entry.devices > 1 else ""
        expected.append(
            [
                entry.claim,
                f"{entry.throughput.value}{over}",
                f"{entry.computed:.5f}",
                metric.printed or str(metric.value),
                entry.fit.value,
            ]
        )
    assert table("claim") == expected


def test_the_table_of_formulas_is_the_manifests() -> None:
    rows = {row[0]: row for row in table("case")}
    cases = {name: case for name, case in CATALOG.cases.items() if case.published_formula is not None}
    assert set(rows) == set(cases)
    for name, case in cases.items():
        formula = case.published_formula
        assert formula is not None
        numbers = [float(number) for number in re.findall(r"\d[\d.]*e\d+", rows[name][1])]
        assert numbers == [formula.flops_per_unit, formula.peak]
        factors = [float(number) for number in re.findall(r"[\d.]+(?:e\d+)?", rows[name][2].split(":")[0])]
        product = 1.0
        for factor in factors:
            product *= factor
        assert product == formula.flops_per_unit


def test_what_the_devices_really_did() -> None:
    assert "1101.3e9 per choice" in CATALOG.cases["glm"].raw["flops"]["source"]
    assert "27.15e9 per token" in CATALOG.cases["llama2-7b-lora"].raw["flops"]["source"]
    glm, lora = 42.4 / 8 * GLM_SAMPLE, 4017 * LORA_TOKEN
    assert (
        f"at most {glm / 1e12:.1f} TFLOP/s for each device, which is {glm / A100_FP16:.1%}".replace("%", " %")
        in SECTION
    )
    assert f"4017 tokens/s are {lora / 1e12:.1f} TFLOP/s, {lora / A100_FP16:.1%}".replace("%", " %") in SECTION
    assert "of 312e12" in SECTION
    assert A100_FP16 == 312e12
    slow, fast = (CATALOG.claims[f"glm/a100-{name}"].metric("p_core") for name in ("2x8-fp32-bs8", "1x8-fp32-bs16"))
    assert slow is not None
    assert fast is not None
    assert slow.value / 16 < fast.value / 8


def test_the_row_that_prints_a_utilisation_and_hides_its_throughput() -> None:
    hidden = CATALOG.claims["llama2-7b-lora/c500-1x1-fp16-bs4"]
    printed = hidden.metric("mfu")
    assert printed is not None
    assert f"MetaX's LoRA row prints {printed.printed} and hides its throughput" in SECTION
    assert hidden.metric("tokens_per_second_per_device") is None
