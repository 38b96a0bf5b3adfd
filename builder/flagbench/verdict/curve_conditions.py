"""Whether two runs should have the same loss curve: the conditions that their losses depend on."""

from __future__ import annotations

from flagbench.manifests.model import NOT_PUBLISHED, Case, Scalar
from flagbench.records.model import Record
from flagbench.verdict.conditions import ConditionResult, case_conditions, compare_conditions

SAME_CURVE = frozenset(
    {"attention", "division", "engine", "layout", "memory_monitor", "precision", "recompute", "stop_rule"}
)
"""Conditions that say how a curve is computed, or how far, not which one it is. A difference in them is a reason to
compare curves, and is listed."""
BATCH = ("batch_size", "gradient_accumulation_steps")
"""Conditions whose product with the number of replicas is the samples of a step. Only that has to be equal."""


def another_curve(condition: ConditionResult) -> bool:
    """Whether a difference in this condition makes two runs have different loss curves."""
    return condition.forbids and condition.name not in SAME_CURVE


def curve_conditions(a: Record | None, b: Record | None, case: Case | None) -> tuple[ConditionResult, ...]:
    """What the loss depends on and is not known to be equal; nothing if a curve has no record."""
    if a is None or b is None or case is None:
        return ()
    names = _names(case)
    here, there = ({**_known(r), **_samples(r), **_data(r)} for r in (a, b))
    if "samples_per_step" in here and "samples_per_step" in there:
        names = [name for name in names if name not in BATCH]
    facts = [name for name in here if name in there and name not in a.conditions]
    found = compare_conditions(dict.fromkeys((*names, *facts)), here, there)
    return tuple(c for c in found if c.forbids and not (c.here is None and c.expected is None))


def unknown_conditions(a: Record | None, b: Record | None, case: Case | None) -> tuple[str, ...]:
    """What tells one curve from another, but is in neither record."""
    if a is None or b is None or case is None:
        return ()
    known = {*_known(a), *_known(b)}
    return tuple(name for name in _names(case) if name not in known and name not in SAME_CURVE)


def _names(case: Case) -> list[str]:
    """The conditions that the loss depends on."""
    spec = case.metric("loss")
    return list(case_conditions(case) if spec is None else spec.depends_on)


def _known(record: Record) -> dict[str, Scalar | None]:
    """The conditions of a record; of a run, none is merely not published."""
    return {name: value for name, value in record.conditions.items() if value != NOT_PUBLISHED}


def _samples(record: Record) -> dict[str, Scalar | None]:
    """The samples that all replicas together train on in a step."""
    product = 1 if record.layout is None else record.layout.dp
    if record.layout is None:
        product = record.system.nodes * record.system.devices_per_node
    for name in BATCH:
        value = record.conditions.get(name, 1 if name != BATCH[0] else None)
        if isinstance(value, bool) or not isinstance(value, int):
            return {}
        product *= value
    return {"samples_per_step": product}


def _data(record: Record) -> dict[str, Scalar | None]:
    """Facts that tell one training set from another: its hash, or its sizes if it has none."""
    quality = record.raw.get("quality")
    facts = quality.get("data") if isinstance(quality, dict) else None
    if not isinstance(facts, dict):
        return {}
    sums = {name: value for name, value in facts.items() if name.endswith("sha256")}
    if "train_sha256" in sums:
        facts = sums
    return {f"data.{name}": value for name, value in facts.items() if isinstance(value, str | int | float)}
