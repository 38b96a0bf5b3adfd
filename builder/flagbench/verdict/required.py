"""Whether a record has the checks that its case's manifest names, each where it applies, and each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from flagbench.verdict.derivation import look_up, schedule
from flagbench.verdict.subject import Subject, text

LEAST_STEPS = 50
"""A shorter run's losses are not compared; as in record/checks.py of the image side."""


def _whole(subject: Subject) -> bool:
    return bool(schedule(subject.config).get("window_steps") is None)


def _real(subject: Subject) -> bool:
    return bool(look_up(subject.config, "data.source") != "synthetic")


def _learns(subject: Subject) -> bool:
    """A resumed run lacks the first steps."""
    record = subject.record
    resumed = record.quality is not None and bool(record.quality.resumed)
    long_enough = record.work is not None and record.work.steps >= LEAST_STEPS
    return _real(subject) and _whole(subject) and long_enough and not resumed


def _has_accuracy(subject: Subject) -> bool:
    evaluations = subject.record.quality.evaluations if subject.record.quality is not None else ()
    found = (e.get("accuracy") for e in evaluations if isinstance(e.get("epoch"), int) and e["epoch"] >= 0)
    return _real(subject) and _whole(subject) and any(accuracy is not None for accuracy in found)


APPLIES: Mapping[str, Callable[[Subject], bool]] = {
    "ranks_in_step": lambda subject: (subject.replicas or 2) > 1,
    "updated": lambda subject: subject.config.get("precision") == "fp16",
    "evaluated": _whole,
    "learned": _learns,
    "above_chance": _has_accuracy,
}
"""When a check applies to a run that ended well; one that is not here always does. The image side has the same rules
in record/checks.py."""


def missing_checks(subject: Subject) -> tuple[str, ...]:
    """The checks of the case's manifest that apply to a record and that it does not have, in the manifest's order."""
    found = {check.name for check in subject.record.checks}
    return tuple(
        name for name in subject.case.checks if name not in found and (name not in APPLIES or APPLIES[name](subject))
    )


def problems(subject: Subject) -> Iterator[str]:
    """What is wrong with the checks of a record, one clause each."""
    if not subject.record.checks:
        yield "it has no checks"
        return
    name, times = Counter(check.name for check in subject.record.checks).most_common(1)[0]
    if times > 1:
        yield f"the check {text(name)} is there {times} times"
    missing = missing_checks(subject)
    if missing and not subject.made_elsewhere:
        yield f"its case requires checks that it does not have: {', '.join(missing)}"
