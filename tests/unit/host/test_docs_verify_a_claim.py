"""The numbers of docs/verify-a-claim.md that no table has, computed again from the manifests."""

from __future__ import annotations

from pathlib import Path

from flagbench.catalog.load import load_catalog

CATALOG = load_catalog()
TEXT = (Path(__file__).parents[3] / "docs" / "verify-a-claim.md").read_text(encoding="utf-8")
GLM_SAMPLE = 1101.3e9 * 10
"""FLOPs of a sample with ten choices, as the case's manifest counts a choice."""
LORA_TOKEN = 27.15e9


def published(claim: str, metric: str) -> float:
    """A published value."""
    found = CATALOG.claims[claim].metric(metric)
    assert found is not None
    return found.value


def test_what_the_devices_really_did() -> None:
    peak = CATALOG.stacks["a100-cuda11.6"].accelerators[0].peaks["fp16"].flops
    assert "1101.3e9 per choice" in CATALOG.cases["glm"].raw["flops"]["source"]
    assert "27.15e9 per token" in CATALOG.cases["llama2-7b-lora"].raw["flops"]["source"]
    glm = published("glm/a100-1x8-fp32", "p_core") / 8 * GLM_SAMPLE
    lora = published("llama2-7b-lora/a100-1x1-fp16-bs4", "tokens_per_second_per_device") * LORA_TOKEN
    for flops in (glm, lora):
        assert f"{flops / 1e12:.1f}" in TEXT
        assert f"{100 * flops / peak:.1f} %" in TEXT


def test_the_row_that_does_not_fit_is_slower_for_each_device() -> None:
    assert published("glm/a100-2x8-fp32-bs8", "p_core") / 16 < published("glm/a100-1x8-fp32-bs16", "p_core") / 8
    assert published("glm/a100-2x8-fp32-bs8", "mfu") > published("glm/a100-1x8-fp32-bs16", "mfu")
