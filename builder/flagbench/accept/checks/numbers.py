"""Compares a measured number with its limit: the kind of the number, and the outcome of its ratio to a reference.

The other modules of checks use it. A limit is data from manifests/limits.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from flagbench.accept.check import AcceptanceCheck, Outcome
from flagbench.manifests.limits import AcceptanceLimit, Kind, Reference
from flagbench.records.model import Metric
from flagbench.verdict.result import Ratio, four_digits
from flagbench.verdict.subject import Subject
from flagbench_core.case_kinds import MEASURE, kind_of
from flagbench_core.evidence.document import WINDOW
from flagbench_core.evidence.metrics import window_of
from flagbench_core.evidence.roofs import ALL_REDUCE, MAMF

PARTS = 5
"""Consecutive parts, the fifths, into which the repeats or steps of a number that was not steady are divided."""
BY_PARTS = "the slowest and the fastest fifth"
"""The `ci_method` of a number that was not steady."""
LEAST_STEPS_OF_PART = 4
"""With fewer steps in a part, its median says little, and the fifths are not computed."""
_PREFIXES: tuple[tuple[str, Kind], ...] = (
    ("matmul_", "product"),
    (f"{MAMF}_", "product"),
    ("memory_bandwidth", "memory"),
    ("h2d_", "host-link"),
    ("d2h_", "host-link"),
    (ALL_REDUCE, "collective"),
)
"""The kinds of the metrics of the roofs by the prefixes of their names. `product` is a matmul."""
UNITS = {"GB/s": 1e9, "TFLOP/s": 1e12}
"""The units of the metrics of the roofs: how many B/s or FLOP/s they are."""


def kind_of_metric(name: str) -> Kind:
    """The kind of a metric. It is `case` for a metric that is not of the roofs."""
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            return kind
    return "case"


def limit_for(
    limits: Sequence[AcceptanceLimit], kind: Kind, against: Reference, sessions: int = 1
) -> AcceptanceLimit | None:
    """The limit for a kind of number compared with a kind of reference; None if there is no such limit.

    A limit may need earlier runs of several sessions, runs of one machine within two hours of each other. Among those
    that need at most `sessions`, the limit that needs the most applies.
    """
    strictest = None
    for limit in limits:
        if limit.kind != kind or limit.against != against or limit.min_sessions > sessions:
            continue
        if strictest is None or limit.min_sessions > strictest.min_sessions:
            strictest = limit
    return strictest


@dataclass(frozen=True)
class ComparedNumber:
    """A metric, its reference, and the limit of their ratio."""

    metric: Metric
    against: str
    """The reference in words: `claim distilbert/h100-1x1`, `3 earlier runs of this store`."""
    expected: float
    """The value of the reference, in the metric's unit."""
    ratio: Ratio | None
    """The metric over its reference; None if it cannot be computed."""
    limit: AcceptanceLimit
    other_software: bool = False
    """Whether the reference was measured with other software: then the machine can pass, and cannot fail."""


def number_check(number: ComparedNumber, subject: Subject, disturbance: str) -> AcceptanceCheck:
    """Judge a number: it passes from `limit.inconclusive_below` on, and fails below `limit.fail_below`.

    Its whole interval has to lie there. A number that was not steady has no interval. It is judged by the median
    rates of the slowest and the fastest fifth of its repeats or steps: it can pass, and does not fail. Compared with
    a datasheet or a link, the value alone decides.

    Args:
        number: the number, its reference and its limit.
        subject: the run in which it was measured.
        disturbance: other uses of the machine during the run, in words; if not empty, no number fails.
    """
    interval = _interval_of(number, subject)
    judgement = _judge(number, interval, disturbance)
    limit = number.limit
    ranks: tuple[int, ...] = ()
    if subject.world == 1:
        ranks = (0,)
    return AcceptanceCheck(
        name=number.metric.name,
        part=subject.case.name,
        outcome=judgement.outcome,
        measured=f"{four_digits(number.metric.value)} {number.metric.unit}",
        against=f"{four_digits(number.expected)} of {number.against}",
        limit=f"at least {limit.inconclusive_below:.0%}",
        limit_id=limit.id,
        kind=_kind_of(number, subject),
        reference=limit.against,
        floor=limit.inconclusive_below,
        ratio=interval.ratio,
        reason=judgement.reason,
        ranks=ranks,
    )


def _kind_of(number: ComparedNumber, subject: Subject) -> Kind:
    """The kind of a number: that of its metric in a run of the roofs, and that of its limit in a run of a case."""
    if subject.case.kind == MEASURE:
        return kind_of_metric(number.metric.name)
    return number.limit.kind


class _Interval(NamedTuple):
    """The ratio by which a number is judged."""

    ratio: Ratio | None
    """The ratio with its interval, or with its slowest and fastest fifth in place of one, if it has either."""
    is_steady: bool
    """Whether the number was steady, so that it may fail."""


def _interval_of(number: ComparedNumber, subject: Subject) -> _Interval:
    """The ratio of a number to its reference, with the interval that it is judged by."""
    ratio = number.ratio
    if ratio is None:
        return _Interval(None, is_steady=False)
    if ratio.ci95 is not None or compares_value_alone(number.limit):
        return _Interval(ratio, is_steady=True)
    fifths = _fifths(subject, number.metric.name)
    if fifths is None:
        return _Interval(ratio, is_steady=False)
    interval = (ratio.value * fifths.slowest, ratio.value * fifths.fastest)
    return _Interval(Ratio(ratio.value, interval, BY_PARTS), is_steady=False)


def compares_value_alone(limit: AcceptanceLimit) -> bool:
    """Whether a number is compared without its interval: such a limit is far from what sound devices reach.

    A number against a roof is the median of thousands of iterations, which has no interval of its own.
    """
    return limit.against in ("datasheet", "link", "roof")


class _Judgement(NamedTuple):
    """The outcome for a number."""

    outcome: Outcome
    reason: str = ""
    """Why it did not pass; empty if it did."""


def _judge(number: ComparedNumber, interval: _Interval, disturbance: str) -> _Judgement:
    """Compare the interval of a number with its limit. See `number_check`."""
    limit = number.limit
    ratio = interval.ratio
    if ratio is None:
        return _Judgement(Outcome.INCONCLUSIVE, "it was not steady")
    if ratio.ci95 is None and not compares_value_alone(limit):
        return _Judgement(Outcome.INCONCLUSIVE, "it was not steady")
    low, high = ratio.ci95 or (ratio.value, ratio.value)
    if low >= limit.inconclusive_below:
        return _Judgement(Outcome.PASS)
    if number.other_software:
        return _Judgement(Outcome.NOT_KNOWN, "below its limit, which is of other software")
    if not interval.is_steady:
        return _Judgement(Outcome.INCONCLUSIVE, "it was not steady")
    if high >= limit.inconclusive_below:
        return _Judgement(Outcome.INCONCLUSIVE, "its interval contains the limit")
    if limit.fail_below is None or high >= limit.fail_below:
        return _Judgement(Outcome.INCONCLUSIVE, "below the limit, which alone does not drain a machine")
    if disturbance:
        return _Judgement(Outcome.INCONCLUSIVE, f"below the limit, while there were {disturbance}")
    return _Judgement(Outcome.FAIL, "below the limit")


class _Fifths(NamedTuple):
    """The lowest and the highest median rate among the five parts of a measurement."""

    slowest: float
    """The lowest, relative to the median of all repeats or steps."""
    fastest: float
    """The highest, relative to the median of all repeats or steps."""


def _fifths(subject: Subject, name: str) -> _Fifths | None:
    """The fifths of the repeats or steps in which a metric was measured; None if the evidence has too few of them."""
    evidence = subject.evidence
    if evidence is None:
        return None
    if subject.case.kind == MEASURE:
        # The bus bandwidth of a collective is computed from the repeats of the collective.
        step_range = evidence.step_range(name.removesuffix("_busbw"))
    else:
        step_range = evidence.step_range(kind_of(subject.config), WINDOW)
    window = window_of(step_range)
    if window is None:
        return None
    step_seconds = window.micro
    if len(step_seconds) < LEAST_STEPS_OF_PART * PARTS or not all(step_seconds):
        return None
    rates = []
    for amount, seconds in zip(window.step_range.amount("samples"), step_seconds, strict=True):
        rates.append(amount / seconds)
    medians = []
    for part in range(PARTS):
        begin = len(rates) * part // PARTS
        end = len(rates) * (part + 1) // PARTS
        medians.append(median(rates[begin:end]))
    median_of_all = median(rates)
    return _Fifths(min(medians) / median_of_all, max(medians) / median_of_all)
