"""Whether the checks that a run passed pass again, as far as its record has what they were made of.

The rules are those of record/checks.py of the image side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flagbench.records.model import Check
from flagbench.verdict.derivation import count, number, schedule
from flagbench.verdict.subject import Subject, text
from flagbench_core.evidence import Section

MAX_SKIPPED_SHARE = 0.1
"""Of the measured steps, those that the loss scaler may skip."""
_ACCURACY = re.compile(
    r"acc (\d\.\d{4}) of (\d{1,12}) examples; guessing gives \d\.\d{4}, at most (\d\.\d{4})", re.ASCII
)
"""The detail of `above_chance`: no other part of a record has the accuracy of guessing."""


def losses_of(subject: Subject) -> tuple[Any, ...]:
    """The losses of the first steps, None where they are not finite."""
    quality = subject.record.quality
    return quality.losses.values if quality is not None and quality.losses is not None else ()


def first_step(subject: Subject) -> int:
    """The step that a run began with: later than 0 if it was resumed."""
    quality = subject.record.quality
    return (count(quality.resumed, "step") or 0) if quality is not None else 0


def finite_losses(values: Sequence[Any]) -> list[float]:
    """The losses that are finite."""
    return [float(value) for value in values if value is not None]


def evaluated(subject: Subject) -> list[Mapping[str, Any]]:
    """The evaluations that followed a step."""
    quality = subject.record.quality
    return [entry for entry in (quality.evaluations if quality else ()) if entry["epoch"] >= 0]


def contradictions(subject: Subject, section: Section) -> Iterator[str]:
    """The checks of a record that do not pass again, one clause each."""
    for check in subject.record.checks:
        again = _AGAIN.get(check.name)
        if again is not None and (wrong := again(subject, section, check)):
            yield f"the check {check.name} passed, but {wrong}"


Again = Callable[[Subject, Section, Check], str | None]


def _skipped(subject: Subject) -> int:
    """The steps that the loss scaler skipped."""
    training = subject.record.quality and subject.record.quality.training
    return count(training, "skipped_steps") or 0 if subject.config.get("precision") == "fp16" else 0


def _loss_finite(subject: Subject, section: Section, check: Check) -> str | None:
    values = losses_of(subject)
    bad, skipped = values.count(None), _skipped(subject)
    return f"{bad} losses are not finite, and {skipped} steps were skipped" if bad > skipped else None


def _updated(subject: Subject, section: Section, check: Check) -> str | None:
    if first_step(subject):  # the steps before the checkpoint are counted too
        return None
    warmup = count(schedule(subject.config), "warmup_steps") or 0
    skipped, measured = _skipped(subject) - warmup, section.steps - warmup
    too_many = skipped > MAX_SKIPPED_SHARE * measured
    return f"at least {skipped} of {measured} measured steps were skipped" if too_many else None


def _learned(subject: Subject, section: Section, check: Check) -> str | None:
    values = losses_of(subject)
    finite = finite_losses(values)
    tenth = len(finite) // 10
    if not tenth or len(values) < section.steps:
        return None
    early, late = (math.fsum(part) / tenth for part in (finite[:tenth], finite[-tenth:]))
    return None if late < early else f"the mean loss of the first tenth is {early:.6g}, of the last {late:.6g}"


def _was_evaluated(subject: Subject, section: Section, check: Check) -> str | None:
    last = max((number(entry, "steps") or 0 for entry in evaluated(subject)), default=None)
    end = section.steps + first_step(subject)
    return None if last == end else f"the last evaluation followed step {text(last)} of {end}"


def _above_chance(subject: Subject, section: Section, check: Check) -> str | None:
    """By the number that the check found and that of the last evaluation, which are the same."""
    last = next((e for e in reversed(evaluated(subject)) if e.get("accuracy") is not None), None)
    if last is None:
        return "no evaluation has an accuracy"
    words = _ACCURACY.match(check.detail)
    if words and not (f"{last['accuracy']:.4f}" == words[1] and last["counted"] == int(words[2])):
        return f"of acc {words[1]} of {words[2]} examples; the last has {last['accuracy']:.4f} of {last['counted']}"
    if words and last["accuracy"] <= float(words[3]) - 1e-4:
        return f"the accuracy of {last['accuracy']:.4f} is not above {words[3]}"
    return None


_AGAIN: Mapping[str, Again] = {
    "loss_finite": _loss_finite,
    "updated": _updated,
    "evaluated": _was_evaluated,
    "learned": _learned,
    "above_chance": _above_chance,
}
