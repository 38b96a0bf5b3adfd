"""Whether a record is valid: how its run ended, its checks, its numbers, its digest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from flagbench.manifests.model import Case
from flagbench.records.digest import config_digest
from flagbench.records.model import Record
from flagbench.verdict import physics, required
from flagbench.verdict.contradictions import contradictions
from flagbench.verdict.subject import Subject

MOST_CREDIT = 1.01
"""Largest ratio of credited to trained samples: SST-2's 67,349 sentences are credited as 67,584."""

MOST_CLAUSES = 20
"""Clauses of each kind: a record may have any number of devices and settings, and a reader needs a few."""

CLOCK_DRIFT = 1e-4
"""Largest relative drift between a device's clock and the host's."""

_ORDER = (
    ("p_train", "p_core"),
    ("p_whole", "p_train"),
    ("p_val_whole", "p_val_core"),
    ("p_infer_whole", "p_infer_core"),
)
"""Rates that count more of the same work, each beside one that counts less of it."""

# An interval of equal steps may miss its value in the last bits of a division.
_ROUNDING = 1e-9


def problems(record: Record, case: Case | None = None) -> Iterator[str]:
    """Everything that makes a record invalid, one clause each; none where nothing does.

    `case`: the record's; without it, what the record says is not compared with the case and its stacks.
    """
    if record.status.state != "ok":
        yield ending(record)
    yield from (f"check {c.name} failed: {c.detail}" for c in record.checks if not c.ok)
    if record.config is None or record.config_digest is None:
        yield "it has no resolved configuration"
    elif (digest := config_digest(record.config)) != record.config_digest:
        yield f"config_digest is {record.config_digest}, and its configuration gives {digest}"
    for metric in record.metrics:
        low, high = metric.ci95 or (metric.value, metric.value)
        rounding = _ROUNDING * abs(metric.value)
        if not low - rounding <= metric.value <= high + rounding:
            yield f"metric {metric.name} is not within its interval"
    yield from _order_problems(record)
    if case is not None and record.status.state == "ok":  # an interrupted run's record has parts of each
        subject = Subject(record, case)
        yield from islice(contradictions(subject), MOST_CLAUSES)
        yield from islice(required.problems(subject), MOST_CLAUSES)
        yield from islice(physics.problems(subject), MOST_CLAUSES)


def ending(record: Record) -> str:
    """How a failed or interrupted run ended."""
    why = f": {record.status.reason}" if record.status.reason else ""
    return f"the run ended as {record.status.state} in {record.status.phase}{why}"


def gate_problems(record: Record, names: Sequence[str]) -> Iterator[str]:
    """Why a record cannot answer the case's gate: the first of the metrics `names` that it has is not positive."""
    gate = next((m for m in map(record.metric, names) if m is not None), None)
    if gate is not None and gate.value <= 0:
        yield f"the gate metric {gate.name} is {gate.value}, which is not a speed"


def partial_batches(records: Sequence[Record], name: str) -> str | None:
    """Why the metric `name`, which counts every batch as full, is not comparable: too many batches were not full."""
    for record in records:
        if record.work is None:
            continue
        credited, trained = record.work.samples_published_count, record.work.samples_executed
        if credited > MOST_CREDIT * trained:
            return (
                f"record {record.record_id}: {name} counts every batch as full, {credited:,} samples in all, but the "
                f"run trained on {trained:,}; use a training set of at least a hundred steps"
            )
    return None


def _order_problems(record: Record) -> Iterator[str]:
    """Where p_core >= p_train >= p_whole, p_infer_core >= p_infer_whole or p_val_core >= p_val_whole is violated by
    more than one step; none if it holds or cannot be checked.

    p_core is over the window. So is p_train, but in a whole run, where it is over all steps: these take at least as
    long as the window's, and did as much more as the record counts. A pass did its warm-up more.
    """
    window, work = record.window, record.work
    if window and window.steps and window.host_seconds is not None:
        device, host = window.seconds, window.host_seconds
        if device > host * _one_step(window.steps):
            yield f"the window's device time of {device} s is longer than the {host} s it took"
    for names in _ORDER:
        slow, fast = map(record.metric, names)
        if slow is None or fast is None or not fast.n or (fast.name == "p_core" and not slow.n):
            continue
        more = 1.0
        if fast.name == "p_core" and slow.n != fast.n:
            more = work.samples_executed / (window.samples or 1) if work and window else math.inf
        elif fast.name in ("p_val_core", "p_infer_core"):
            more += _warmup_of_a_pass(record) / fast.n
        if slow.value > fast.value * more * _one_step(fast.n):
            yield f"{slow.name} is {slow.value}, which is faster than {fast.name}, {fast.value}"


def _warmup_of_a_pass(record: Record) -> int:
    """The steps of each pass that its core rate leaves out."""
    section = (record.config or {}).get("infer")
    steps = section.get("warmup_steps") if isinstance(section, Mapping) else None
    return max(steps, 0) if isinstance(steps, int) else 0


def _one_step(steps: int) -> float:
    """The share by which a time of so many steps may differ: one step, and a device's clock from the host's."""
    return 1 + 1 / steps + CLOCK_DRIFT
