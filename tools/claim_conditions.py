"""Conditions of a published row that contradict its own `run`."""

from __future__ import annotations

from typing import Any

from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim
from flagbench.manifests.settings import with_settings
from flagbench.verdict.derivation import Unknown, Value, derived_conditions, same
from flagbench_core.evidence.section import kind_of


def contradicted(claim: Claim, case: Case) -> dict[str, tuple[Scalar, Value]]:
    """The conditions that a row states and no run of it can have: each with what its `run` and its case give."""
    conditions: dict[str, tuple[Scalar, Value]] = {}
    for name, given in derived_conditions(case, _config(claim, case)).items():
        stated = claim.conditions.get(name, NOT_PUBLISHED)
        if stated == NOT_PUBLISHED or isinstance(given, Unknown):
            continue
        if not same(stated, given):
            conditions[name] = (stated, given)
    return conditions


def _config(claim: Claim, case: Case) -> dict[str, Any]:
    """The configuration of a whole run of the row, as was published."""
    run = claim.run
    config = with_settings(case, run.preset, run.set)
    config[kind_of(config)]["window_steps"] = None
    config.update(nodes=run.nodes, gpus=run.gpus, precision=run.precision, division=run.division)
    return config
