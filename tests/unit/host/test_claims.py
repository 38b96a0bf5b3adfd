"""The claims against themselves: what a claim runs is what it says."""

from __future__ import annotations

from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import NOT_PUBLISHED, Case, Claim

CATALOG = load_catalog()
CLAIMS = CATALOG.claims


def setting(case: Case, claim: Claim, name: str) -> Any:
    """What a run of the claim has for a settable of its case: its own setting, else the reference preset's."""
    value: Any = case.presets["reference"]
    for key in case.settable[name]["path"].split("."):
        value = value[key]
    return claim.run.set.get(name, value)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_what_a_claim_runs_is_what_it_says(claim: Claim) -> None:
    conditions = dict(claim.conditions)
    assert claim.run.nodes == conditions["nodes"]
    assert claim.run.nodes * claim.run.gpus == conditions["devices"]
    assert claim.run.precision == claim.precision_executed == conditions["precision"]
    assert claim.run.division == conditions["division"]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_every_setting_of_a_claims_run_is_its_condition(claim: Claim) -> None:
    case = CATALOG.cases[claim.case]
    # One condition names three dropouts, so no single setting is equal to it.
    for name in sorted(set(case.settable) & set(claim.conditions) - {"dropout"}):
        assert claim.conditions[name] in (setting(case, claim, name), NOT_PUBLISHED), name
    if "max_samples" in case.settable and claim.conditions["stop_rule"] != NOT_PUBLISHED:
        target, limit = setting(case, claim, "target_acc"), setting(case, claim, "max_samples")
        assert claim.conditions["stop_rule"] == f"acc >= {target} or {limit} samples"
    if "decay_steps" in case.settable:
        steps, share = setting(case, claim, "decay_steps"), setting(case, claim, "warmup_share")
        rising = round(steps * share, 1)
        assert claim.conditions["schedule"] == (
            f"linear warm-up {rising} steps, then linear to 0.1 over {round(steps - rising, 1)} steps"
        )


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_an_anomaly_is_of_something_that_the_case_knows(claim: Claim) -> None:
    case = CATALOG.cases[claim.case]
    known = {metric.name for metric in case.metrics} | set(claim.conditions)
    assert {anomaly.field for anomaly in claim.anomalies} <= known
    ids = [anomaly.id for anomaly in claim.anomalies]
    assert len(ids) == len(set(ids))


def test_a_row_without_a_stack_is_of_a_device_that_no_stack_runs_on() -> None:
    devices = {device.name for stack in CATALOG.stacks.values() for device in stack.accelerators}
    for claim in CLAIMS.values():
        assert (claim.stack is None) == (claim.conditions["device_model"] not in devices), claim.id


def test_the_counted_samples_explain_the_anomalies_of_glm() -> None:
    for name, steps, batch, initialisation in (
        ("1x8-fp32", 1500, 8, 133),
        ("1x8-fp32-bs16", 750, 16, 121),
        ("2x8-fp32-bs8", 750, 8, 89),
    ):
        claim = CLAIMS[f"glm/a100-{name}"]
        whole, spent = claim.metric("p_whole"), claim.metric("e2e_time")
        assert whole is not None
        assert spent is not None
        assert steps * batch * claim.run.nodes * claim.run.gpus == 96_000 == 5 * 19_200
        assert spent.value - 96_000 / whole.value == pytest.approx(initialisation, abs=0.6)
