"""Find the checks that a record lacks, and those that passed in the run but do not hold by the record's own numbers.

A run makes the checks that its case's manifest names, such as `loss_finite` or `learned`, and records each with its
outcome. When a check applies, and what it demands, is defined in `flagbench_core.checks`, which runs use as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flagbench.manifests.model import Case
from flagbench.records.model import Check, Quality, Record
from flagbench.verdict.derivation import count, number, schedule
from flagbench_core import checks


def find_missing(record: Record, case: Case) -> tuple[str, ...]:
    """Return the checks of the case's manifest that apply to a record and that it does not have, in that order."""
    present = {check.name for check in record.checks}
    facts = _facts(record)
    missing = []
    for name in case.checks:
        applies = facts is None or checks.applies(name, facts)
        if applies and name not in present:
            missing.append(name)
    return tuple(missing)


def find_failing_again(record: Record) -> Iterator[str]:
    """Yield a clause for each check that passed by the record and does not hold when it is made again."""
    for check in record.checks:
        if not check.ok:
            continue
        judgement = _make_again(record, check)
        if judgement is not None and not judgement.holds:
            numbers = ", ".join(f"{name} {value:.6g}" for name, value in judgement.values.items())
            yield f"the check {check.name} passed, but does not hold: {numbers}"


def _make_again(record: Record, check: Check) -> checks.Judgement | None:
    """Make a check again from the record's numbers.

    None if the record lacks one of the numbers, and for a check that needs more than numbers of the record.
    """
    if record.quality is None:
        return None
    if check.name == "loss_finite":
        not_finite = _losses(record.quality).count(None)
        return checks.loss_finite(not_finite, _skipped_steps(record.quality))
    if check.name == "updated":
        return _updated(record, record.quality)
    if check.name == "learned":
        return _learned(record, record.quality)
    if check.name == "evaluated":
        return _evaluated(record, record.quality)
    if check.name == "above_chance":
        return _above_chance(record, check)
    return None


def _updated(record: Record, quality: Quality) -> checks.Judgement | None:
    """Check again that enough steps updated the model; None for a resumed run."""
    # The skipped steps of a resumed run include those before its checkpoint, which are not in its steps.
    if _first_step(quality):
        return None
    warmup = count(schedule(record.config), "warmup_steps") or 0
    return checks.updated(_skipped_steps(quality) - warmup, _steps(record) - warmup)


def _evaluated(record: Record, quality: Quality) -> checks.Judgement:
    """Check again that an evaluation followed the last step."""
    steps_of_evaluations = [count(evaluation, "steps") or 0 for evaluation in _evaluations(record)]
    last_step = _first_step(quality) + _steps(record)
    return checks.evaluated(max(steps_of_evaluations, default=0), last_step)


def _learned(record: Record, quality: Quality) -> checks.Judgement | None:
    """Check again that the loss fell; None if the record does not have the losses of all steps."""
    losses = _losses(quality)
    if len(losses) != _steps(record):
        return None
    return checks.learned([loss for loss in losses if loss is not None])


def _above_chance(record: Record, check: Check) -> checks.Judgement | None:
    """Check again that the accuracy is above that of guessing, by the last evaluation that has one."""
    chance = number(check.values, "chance")
    if chance is None:
        return None
    for evaluation in reversed(_evaluations(record)):
        accuracy = number(evaluation, "accuracy")
        counted = count(evaluation, "counted")
        if accuracy is not None and counted is not None:
            return checks.above_chance(accuracy, counted, chance)
    return None


def _losses(quality: Quality) -> Sequence[float | None]:
    """Return the losses of the first steps; None in place of a loss that is not finite."""
    if quality.losses is None:
        return ()
    return quality.losses.values


def _steps(record: Record) -> int:
    """Return the number of steps that the run made."""
    if record.work is None:
        return 0
    return record.work.steps


def _first_step(quality: Quality) -> int:
    """Return the step of the checkpoint from which the run was resumed; 0 if it was not resumed."""
    return count(quality.resumed, "step") or 0


def _skipped_steps(quality: Quality) -> int:
    """Return the number of steps whose update was skipped, because their gradients were not finite."""
    return count(quality.training, "skipped_steps") or 0


def _facts(record: Record) -> checks.CheckFacts | None:
    """Return the facts that decide which checks apply; None if the configuration lacks one of them.

    Other rules find that the configuration is incomplete.
    """
    config = record.config or {}
    quality = record.quality
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
    """Return the evaluations that followed a step; the one before training has the epoch -1."""
    if record.quality is None:
        return []
    evaluations = []
    for evaluation in record.quality.evaluations:
        epoch = number(evaluation, "epoch") or 0
        if epoch >= 0:
            evaluations.append(evaluation)
    return evaluations
