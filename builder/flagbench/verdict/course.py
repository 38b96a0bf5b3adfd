"""Whether a record agrees on how its run went: its names, its times, its steps, and the work that it did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from flagbench.records.model import Record
from flagbench.verdict.derivation import Unknown, look_up, schedule
from flagbench.verdict.subject import Subject, differ, text

CLOCK_SLACK = 60.0
"""Seconds by which two readings of a machine's clock may disagree, apart from what it was set by."""

_RECORD_ID = re.compile(
    r"(?P<time>[0-9]{8}T[0-9]{6}Z)-(?P<name>[a-z0-9.-]+)-(?P<size>[0-9]+x[0-9]+)-[0-9a-f]{8}", re.ASCII
)
"""An id as a run makes it: time, case and stack, nodes x devices per node, and a random part."""


def contradictions(subject: Subject) -> Iterator[str]:
    """Every contradiction between the parts of a record that say how its run went, one clause each."""
    yield from _identity(subject)
    yield from _outcome(subject)
    yield from _length(subject)
    yield from _amounts(subject)


def _identity(subject: Subject) -> Iterator[str]:
    """What the record's own fields, configuration, id and command line call the run."""
    record = subject.record
    for name, stated in (("case", record.case), ("preset", record.preset), ("division", record.division)):
        found = look_up(subject.config, name)
        if subject.config and found != stated:
            yield differ(name, stated, f"config.{name} is", "missing" if isinstance(found, Unknown) else found)
    if (division := record.conditions.get("division")) not in (None, record.division):
        yield differ("the condition division", division, "division is", record.division)
    if match := _RECORD_ID.fullmatch(record.record_id):
        named = (f"{record.case}-{record.stack}", f"{record.system.nodes}x{record.system.devices_per_node}")
        if (match["name"], match["size"]) != named:
            yield differ("record_id", record.record_id, "the run is", "-".join(named))
        yield from _times(record, match["time"])


def _times(record: Record, begun: str) -> Iterator[str]:
    """The id has the time at which the run began, and created_at that at which it ended, by a clock that may be set.

    The id of an older record was made with it, and has the time of created_at.
    """
    try:
        start = datetime.strptime(begun, "%Y%m%dT%H%M%SZ")
        seconds = (datetime.strptime(record.created_at, "%Y-%m-%dT%H:%M:%SZ") - start).total_seconds()
        seconds -= record.system.clock_set_seconds or 0.0
    except ValueError:
        yield f"record_id begins with {begun}, which is not a time"
        return
    if seconds < -CLOCK_SLACK:
        yield f"created_at is {record.created_at}, before its run began by its record_id, {record.record_id}"
    elif seconds > 0 and record.duration is not None and record.duration > seconds + CLOCK_SLACK:
        yield f"its run took {record.duration:.1f} s, but by record_id and created_at only {seconds:.0f} s"


def _outcome(subject: Subject) -> Iterator[str]:
    """How the run ended, and the metrics that only a whole run has."""
    record, status = subject.record, subject.record.status
    if (status.phase, status.exit_code) != ("done", 0):
        yield f"status.state is {status.state}, but its phase is {status.phase} and its exit_code {status.exit_code}"
    if status.reason is not None:
        yield f"status.state is {status.state}, but it has a reason: {text(status.reason)}"
    resumed = bool(record.quality and record.quality.resumed)
    if record.argv and resumed != ("--resume" in subject.arguments.options):
        said = "says" if "--resume" in subject.arguments.options else "does not say"
        yield f"quality.resumed is {'set' if resumed else 'null'}, but its command line {said} --resume"
    engines = subject.case.raw["engines"]
    engine = engines.get(str(look_up(subject.config, "engine.name")), next(iter(engines.values())))
    if resumed and not engine.get("resume", subject.case.raw["resume"]):
        yield f"quality.resumed is set, but {subject.case.name} resumes nothing"
    window = schedule(subject.config).get("window_steps")
    part = "it was resumed" if resumed else f"config has window_steps {text(window)}" if window is not None else None
    for metric in record.metrics:
        if part and (metric.name == "e2e_time" or "_whole" in metric.name):
            yield f"it has the metric {metric.name} of a whole run, but {part}"


def _length(subject: Subject) -> Iterator[str]:
    """The steps of the window and of the whole run, and those that the configuration plans."""
    record, length = subject.record, schedule(subject.config)
    window, work = record.window, record.work
    planned, warmup = length.get("window_steps"), length.get("warmup_steps")
    if window is not None and planned is not None and window.steps != planned:
        yield differ("window.steps", window.steps, "config has window_steps", planned)
    steps = next((rank.steps for rank in record.ranks if rank.steps is not None), None)
    if window is not None and steps is not None and window.first_step + window.steps > steps:
        yield f"the window ends with step {window.first_step + window.steps}, but its ranks have {steps} steps"
    if window is not None and window.rank is not None and window.rank >= subject.world:
        yield f"window.rank is {window.rank}, but system has {subject.world} ranks"
    if "infer" in subject.config:
        return
    if window is not None and isinstance(warmup, int) and window.first_step != warmup:
        yield differ("window.first_step", window.first_step, "config has warmup_steps", warmup)
    if work is not None and steps is not None and work.steps != steps:
        yield differ("work.steps", work.steps, "its ranks have steps:", steps)


def _amounts(subject: Subject) -> Iterator[str]:
    """Samples and tokens, which follow from steps, batch, replicas and length."""
    work, window = subject.record.work, subject.record.window
    if work is not None and work.unit != subject.case.unit:
        yield differ("work.unit", work.unit, f"{subject.case.name} counts", subject.case.unit)
    batch, replicas = subject.counted("samples_per_step"), subject.replicas
    if work is None or batch is None or replicas is None:
        return
    for name, counted, steps in (
        ("work.samples_executed", work.samples_executed, work.steps),
        ("work.samples_published_count", work.samples_published_count, work.steps),
        ("window.samples", window.samples if window else 0, window.steps if window else 0),
    ):
        full = steps * batch * replicas
        # The publisher counts every batch as full; an older record may not have that count.
        if counted > full or (name == "work.samples_published_count" and 0 < counted < full):
            yield f"{name} is {counted}, but {steps} steps x batch {batch} x {replicas} replicas are {full}"
    yield from _tokens(subject)


def _tokens(subject: Subject) -> Iterator[str]:
    work, length = subject.record.work, subject.counted("tokens_per_sample")
    if work is None or work.tokens_executed is None or length is None:
        return
    tokens, useful, least = work.tokens_executed, work.tokens_useful, work.samples_executed * length
    most = least * max((entry.high for entry in subject.case.ranges.values()), default=1)
    if not least <= tokens <= most:
        yield f"work.tokens_executed is {tokens}, but {work.samples_executed} samples of {length} tokens are {least}"
    if useful is not None and useful > tokens:
        yield differ("work.tokens_useful", useful, "work.tokens_executed is", tokens)
