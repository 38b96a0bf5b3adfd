"""Whether a record has the checks that its case names, and whether they hold again by what else it contains.

When a check applies, and what it demands, is said once, in `flagbench_core.checks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flagbench.manifests.model import Case
from flagbench.records.model import Check, Quality, Record
from flagbench.verdict.derivation import count, number, schedule
from flagbench_core import checks


def missing(record: Record, case: Case) -> tuple[str, ...]:
    """The checks of the case's manifest that apply to a record and that it does not have, in the manifest's order."""
    present = {check.name for check in record.checks}
    facts = _facts(record)
    names = []
    for name in case.checks:
        applies = facts is None or checks.applies(name, facts)
        if applies and name not in present:
            names.append(name)
    return tuple(names)


def failing_again(record: Record) -> Iterator[str]:
    """The checks of a record that it says have passed and that do not hold, with the numbers."""
    for check in record.checks:
        if not check.ok:
            continue
        answer = _check_again(record, check)
        if answer is None:
            continue
        passed, values = answer
        if not passed:
            numbers = ", ".join(f"{name} {number:.6g}" for name, number in values.items())
            yield f"the check {check.name} passed, but does not hold: {numbers}"


def _check_again(record: Record, check: Check) -> checks.Answer | None:
    """A check made of what the record contains; None where it does not have all that it takes."""
    if record.quality is None:
        return None
    if check.name == "loss_finite":
        return checks.loss_finite(_losses(record.quality).count(None), _skipped_steps(record.quality))
    if check.name == "updated":
        return _updated(record, record.quality)
    if check.name == "learned":
        return _learned(record, record.quality)
    if check.name == "evaluated":
        last = max((count(evaluation, "steps") or 0 for evaluation in _evaluations(record)), default=0)
        return checks.evaluated(last, _first_step(record.quality) + _steps(record))
    if check.name == "above_chance":
        return _above_chance(record, check)
    return None


def _updated(record: Record, quality: Quality) -> checks.Answer | None:
    if _first_step(quality):  # the steps before the checkpoint are counted too
        return None
    warmup = count(schedule(record.config), "warmup_steps") or 0
    return checks.updated(_skipped_steps(quality) - warmup, _steps(record) - warmup)


def _learned(record: Record, quality: Quality) -> checks.Answer | None:
    losses = _losses(quality)
    if len(losses) != _steps(record):
        return None
    return checks.learned([loss for loss in losses if loss is not None])


def _above_chance(record: Record, check: Check) -> checks.Answer | None:
    """By the last evaluation that counted its right answers."""
    chance = number(check.values, "chance")
    if chance is None:
        return None
    for evaluation in reversed(_evaluations(record)):
        accuracy, counted = number(evaluation, "accuracy"), count(evaluation, "counted")
        if accuracy is not None and counted is not None:
            return checks.above_chance(accuracy, counted, chance)
    return None


def _losses(quality: Quality) -> Sequence[float | None]:
    """The losses of the first steps; None where one is not finite."""
    if quality.losses is None:
        return ()
    return quality.losses.values


def _steps(record: Record) -> int:
    """The steps that the run made."""
    if record.work is None:
        return 0
    return record.work.steps


def _first_step(quality: Quality) -> int:
    """The step that a resumed run began with."""
    return count(quality.resumed, "step") or 0


def _skipped_steps(quality: Quality) -> int:
    """The steps whose update was skipped."""
    return count(quality.training, "skipped_steps") or 0


def _facts(record: Record) -> checks.CheckFacts | None:
    """What decides which checks apply; None where the configuration does not say, which has a rule of its own."""
    config, quality = record.config or {}, record.quality
    ranks_of_replica = (count(config, "layout.tp") or 1) * (count(config, "layout.pp") or 1)
    try:
        return checks.facts_of(
            config,
            replicas=record.system.nodes * record.system.devices_per_node // ranks_of_replica,
            steps=_steps(record),
            resumed=quality is not None and bool(quality.resumed),
            has_accuracy=any(evaluation.get("accuracy") is not None for evaluation in _evaluations(record)),
        )
    except (LookupError, TypeError):
        return None


def _evaluations(record: Record) -> list[dict[str, object]]:
    """The evaluations that followed a step."""
    if record.quality is None:
        return []
    return [evaluation for evaluation in record.quality.evaluations if (number(evaluation, "epoch") or 0) >= 0]
