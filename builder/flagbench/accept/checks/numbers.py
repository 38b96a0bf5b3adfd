"""Measured numbers and their limits: the kind of a number, and the outcome of its ratio to a reference."""

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
from flagbench_core.evidence.metrics import window_of
from flagbench_core.evidence.roofs import ALL_REDUCE, MAMF
from flagbench_core.evidence.section import MEASURE, WINDOW, kind_of

PARTS = 5
"""Consecutive parts into which the repeats or steps of a number that was not steady are divided."""
BY_PARTS = "the slowest and the fastest fifth"
"""The `ci_method` of a number that was not steady."""
LEAST_STEPS_OF_PART = 4
"""With fewer steps in a part, its median says little, and the number has no interval."""
_PREFIXES: tuple[tuple[str, Kind], ...] = (
    ("matmul_", "product"),
    (f"{MAMF}_", "product"),
    ("memory_bandwidth", "memory"),
    ("h2d_", "host-link"),
    ("d2h_", "host-link"),
    (ALL_REDUCE, "collective"),
)
"""The kinds of the metrics of the roofs, by the prefixes of their names."""
UNITS = {"GB/s": 1e9, "TFLOP/s": 1e12}
"""The units of the metrics of the roofs, in B/s and FLOP/s."""


def kind_of_metric(name: str) -> Kind:
    """The kind of a metric: that of the roofs' metrics by their prefix, and `case` for every other one."""
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            return kind
    return "case"


def limit_for(
    limits: Sequence[AcceptanceLimit], kind: Kind, against: Reference, sessions: int = 1
) -> AcceptanceLimit | None:
    """The limit of a kind of number against a reference; None without one.

    Of several limits, the one that needs the most sessions applies, among those that need no more than `sessions`.
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
    """Judge a number: it passes from `inconclusive_below` on, and fails below `fail_below`.

    Its whole interval has to lie there. A number that was not steady has no interval, but the median rates of the
    slowest and the fastest fifth of its repeats or steps: by these it can pass, and does not fail. The value alone is
    compared with a datasheet or a link.

    Args:
        disturbance: what else used the machine during the run; then no number fails.
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
    """The kind of a number: for the roofs that of the metric, as the limit of a published row is one for cases."""
    if subject.case.kind == MEASURE:
        return kind_of_metric(number.metric.name)
    return number.limit.kind


class _Interval(NamedTuple):
    """The ratio by which a number is judged."""

    ratio: Ratio | None
    """With its interval, or with its slowest and fastest fifth in place of one, if it has either."""
    steady: bool
    """Whether the interval, if there is one, comes from a steady number."""


def _interval_of(number: ComparedNumber, subject: Subject) -> _Interval:
    ratio = number.ratio
    if ratio is None:
        return _Interval(None, steady=False)
    if ratio.ci95 is not None or by_value(number.limit):
        return _Interval(ratio, steady=True)
    fifths = _fifths(subject, number.metric.name)
    if fifths is None:
        return _Interval(ratio, steady=False)
    ends = (ratio.value * fifths.slowest, ratio.value * fifths.fastest)
    return _Interval(Ratio(ratio.value, ends, BY_PARTS), steady=False)


def by_value(limit: AcceptanceLimit) -> bool:
    """Whether a limit is so far from what sound devices reach that the value alone is compared."""
    return limit.against in ("datasheet", "link")


class _Judgement(NamedTuple):
    outcome: Outcome
    reason: str = ""


def _judge(number: ComparedNumber, interval: _Interval, disturbance: str) -> _Judgement:
    limit = number.limit
    ratio = interval.ratio
    if ratio is None:
        return _Judgement(Outcome.INCONCLUSIVE, "it was not steady")
    if ratio.ci95 is None and not by_value(limit):
        return _Judgement(Outcome.INCONCLUSIVE, "it was not steady")
    low, high = ratio.ci95 or (ratio.value, ratio.value)
    if low >= limit.inconclusive_below:
        return _Judgement(Outcome.PASS)
    if number.other_software:
        return _Judgement(Outcome.NOT_KNOWN, "below its limit, which is of other software")
    if not interval.steady:
        return _Judgement(Outcome.INCONCLUSIVE, "it was not steady")
    if high >= limit.inconclusive_below:
        return _Judgement(Outcome.INCONCLUSIVE, "its interval contains the limit")
    if limit.fail_below is None or high >= limit.fail_below:
        return _Judgement(Outcome.INCONCLUSIVE, "below the limit, which alone does not drain a machine")
    if disturbance:
        return _Judgement(Outcome.INCONCLUSIVE, f"below the limit, while there were {disturbance}")
    return _Judgement(Outcome.FAIL, "below the limit")


class _Fifths(NamedTuple):
    """The lowest and the highest median rate of the five parts of a measurement, relative to the median of all."""

    slowest: float
    fastest: float


def _fifths(subject: Subject, name: str) -> _Fifths | None:
    """The fifths of the repeats or steps that a metric was measured in; None without evidence of enough of them."""
    section = subject.section
    if section is None:
        return None
    if subject.case.kind == MEASURE:
        stretch = section.stretch(name.removesuffix("_busbw"))
    else:
        stretch = section.stretch(kind_of(subject.config), WINDOW)
    window = window_of(stretch)
    if window is None or len(window.micro) < LEAST_STEPS_OF_PART * PARTS or not all(window.micro):
        return None
    rates = []
    for amount, micro in zip(window.stretch.amount("samples"), window.micro, strict=True):
        rates.append(amount / micro)
    medians = []
    for part in range(PARTS):
        begin = len(rates) * part // PARTS
        end = len(rates) * (part + 1) // PARTS
        medians.append(median(rates[begin:end]))
    median_of_all = median(rates)
    return _Fifths(min(medians) / median_of_all, max(medians) / median_of_all)
