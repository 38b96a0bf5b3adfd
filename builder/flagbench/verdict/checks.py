"""Whether a record has the checks that its case names, and whether they hold again by what else it contains.

When a check applies, and what it demands, is said once, in `flagbench_core.checks`.
"""

from __future__ import annotations

from collections.abc import Iterator

from flagbench.manifests.model import Case
from flagbench.records.model import Check, Record
from flagbench.verdict.derivation import count, number, schedule
from flagbench_core import checks


def missing(record: Record, case: Case) -> tuple[str, ...]:
    """The checks of the case's manifest that apply to a record and that it does not have, in the manifest's order."""
    found = {check.name for check in record.checks}
    facts = _facts(record)
    applying = (name for name in case.checks if facts is None or checks.applies(name, facts))
    return tuple(name for name in applying if name not in found)


def failing_again(record: Record) -> Iterator[str]:
    """The checks of a record that it says have passed and that do not hold, with the numbers."""
    for check in record.checks:
        answer = _again(record, check) if check.ok else None
        if answer is not None and not answer[0]:
            numbers = ", ".join(f"{name} {value:.6g}" for name, value in answer[1].items())
            yield f"the check {check.name} passed, but does not hold: {numbers}"


def _facts(record: Record) -> checks.CheckFacts | None:
    """What decides which checks apply; None where the configuration does not say, which has a rule of its own."""
    config, quality, work = record.config or {}, record.quality, record.work
    parts = (count(config, "layout.tp") or 1) * (count(config, "layout.pp") or 1)
    try:
        return checks.facts_of(
            config,
            replicas=record.system.nodes * record.system.devices_per_node // parts,
            steps=work.steps if work is not None else 0,
            resumed=quality is not None and bool(quality.resumed),
            has_accuracy=any(entry.get("accuracy") is not None for entry in _evaluations(record)),
        )
    except (LookupError, TypeError):
        return None


def _evaluations(record: Record) -> list[dict[str, object]]:
    """The evaluations that followed a step."""
    entries = record.quality.evaluations if record.quality is not None else ()
    return [entry for entry in entries if (number(entry, "epoch") or 0) >= 0]


def _again(record: Record, check: Check) -> checks.Answer | None:
    """A check made of what the record contains; None where it does not have all that it takes."""
    quality, steps = record.quality, record.work.steps if record.work is not None else 0
    if quality is None:
        return None
    began = count(quality.resumed, "step") or 0
    losses = quality.losses.values if quality.losses is not None else ()
    skipped = count(quality.training, "skipped_steps") or 0
    if check.name == "loss_finite":
        return checks.loss_finite(losses.count(None), skipped)
    if check.name == "updated" and not began:  # the steps before the checkpoint are counted too
        warmup = count(schedule(record.config), "warmup_steps") or 0
        return checks.updated(skipped - warmup, steps - warmup)
    if check.name == "learned" and len(losses) == steps:
        return checks.learned([loss for loss in losses if loss is not None])
    if check.name == "evaluated":
        return checks.evaluated(max((count(e, "steps") or 0 for e in _evaluations(record)), default=0), began + steps)
    if check.name == "above_chance":
        chance = number(check.values, "chance")
        for entry in reversed(_evaluations(record)):
            accuracy, counted = number(entry, "accuracy"), count(entry, "counted")
            if accuracy is not None and counted is not None and chance is not None:
                return checks.above_chance(accuracy, counted, chance)
    return None
