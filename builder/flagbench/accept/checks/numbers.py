"""Measured numbers and their limits: of which kind a number is, and what its ratio to a reference decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flagbench.accept.check import AcceptanceCheck, Outcome
from flagbench.manifests.limits import AcceptanceLimit, Kind, Reference
from flagbench.records.model import Metric
from flagbench.verdict.result import Ratio, four_digits
from flagbench.verdict.subject import Subject
from flagbench_core.evidence.metrics import window_of
from flagbench_core.evidence.roofs import ALL_REDUCE, MAMF
from flagbench_core.evidence.section import MEASURE, WINDOW, kind_of

PARTS, BY_PARTS = 5, "the slowest and the fastest fifth"
"""The `ci_method` of a number that was not steady."""
STEPS_OF_A_PART = 4
_PREFIXES: tuple[tuple[str, Kind], ...] = (
    ("matmul_", "product"),
    (f"{MAMF}_", "product"),
    ("memory_bandwidth", "memory"),
    ("h2d_", "host-link"),
    ("d2h_", "host-link"),
    (ALL_REDUCE, "collective"),
)
"""The kinds of the metrics of the roofs, by how their names begin."""
UNITS = {"GB/s": 1e9, "TFLOP/s": 1e12}
"""Of the metrics of the roofs, in B/s and FLOP/s."""


def kind_of_metric(name: str) -> Kind:
    """Of which kind a metric is; every metric that the roofs do not have is of a case."""
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            return kind
    return "case"


def limit_for(
    limits: Sequence[AcceptanceLimit], kind: Kind, against: Reference, sessions: int = 1
) -> AcceptanceLimit | None:
    """The limit of a kind of number against a reference: the one that demands the most sessions that there are."""
    held = None
    for limit in limits:
        if limit.kind != kind or limit.against != against or limit.min_sessions > sessions:
            continue
        if held is None or limit.min_sessions > held.min_sessions:
            held = limit
    return held


@dataclass(frozen=True)
class HeldNumber:
    """A metric beside what it is compared with."""

    metric: Metric
    against: str
    """`claim distilbert/h100-1x1`, `3 earlier runs of this store`."""
    expected: float
    """In the metric's unit."""
    ratio: Ratio | None
    limit: AcceptanceLimit
    other_software: bool = False
    """Whether the reference is of other software: then it can pass a machine and say nothing against it."""


def number_check(number: HeldNumber, subject: Subject, disturbed: str) -> AcceptanceCheck:
    """What a number decides: it passes from `inconclusive_below` on, and fails below `fail_below`.

    Its whole interval has to be there. Instead of an interval, one that is not steady has the median rates of the
    slowest and the fastest fifth of its repeats or steps. It passes by them, and does not fail. Where the reference
    is a datasheet or a link, the value alone is compared.
    """
    ratio, steady = _with_ends(number, subject)
    outcome, reason = _outcome(number, ratio, steady, disturbed)
    limit = number.limit
    ranks: tuple[int, ...] = ()
    if subject.world == 1:
        ranks = (0,)
    return AcceptanceCheck(
        name=number.metric.name,
        part=subject.case.name,
        outcome=outcome,
        measured=f"{four_digits(number.metric.value)} {number.metric.unit}",
        against=f"{four_digits(number.expected)} of {number.against}",
        limit=f"at least {limit.inconclusive_below:.0%}",
        limit_id=limit.id,
        kind=_kind_of(number, subject),
        reference=limit.against,
        floor=limit.inconclusive_below,
        ratio=ratio,
        reason=reason,
        ranks=ranks,
    )


def _kind_of(number: HeldNumber, subject: Subject) -> Kind:
    """That of the metric for the roofs, which published rows of a case limit as well."""
    if subject.case.kind == MEASURE:
        return kind_of_metric(number.metric.name)
    return number.limit.kind


def _with_ends(number: HeldNumber, subject: Subject) -> tuple[Ratio | None, bool]:
    """The ratio with its interval, or with its fifths; and whether the number was steady."""
    ratio = number.ratio
    if ratio is None or ratio.ci95 is not None or by_value(number.limit):
        return ratio, ratio is not None
    ends = _fifths(subject, number.metric.name)
    if ends is None:
        return ratio, False
    return Ratio(ratio.value, (ratio.value * ends[0], ratio.value * ends[1]), BY_PARTS), False


def by_value(limit: AcceptanceLimit) -> bool:
    """Whether a limit is so far from what sound devices reach that the value alone is compared."""
    return limit.against in ("datasheet", "link")


def _outcome(number: HeldNumber, ratio: Ratio | None, steady: bool, disturbed: str) -> tuple[Outcome, str]:
    limit = number.limit
    if ratio is None:
        return Outcome.INCONCLUSIVE, "it was not steady"
    low, high = ratio.ci95 or (ratio.value, ratio.value)
    if ratio.ci95 is None and not by_value(limit):
        return Outcome.INCONCLUSIVE, "it was not steady"
    if low >= limit.inconclusive_below:
        return Outcome.PASS, ""
    if number.other_software:
        return Outcome.NOT_KNOWN, "below its limit, which is of other software"
    if not steady:
        return Outcome.INCONCLUSIVE, "it was not steady"
    if high >= limit.inconclusive_below:
        return Outcome.INCONCLUSIVE, "its interval contains the limit"
    if limit.fail_below is None or high >= limit.fail_below:
        return Outcome.INCONCLUSIVE, "below the limit, which alone does not drain a machine"
    if disturbed:
        return Outcome.INCONCLUSIVE, f"below the limit, while there were {disturbed}"
    return Outcome.FAIL, "below the limit"


def _fifths(subject: Subject, name: str) -> tuple[float, float] | None:
    """The lowest and the highest median rate of five consecutive parts of what a metric was measured in, relative to
    the median of all; None where there is no evidence of so many."""
    section = subject.section
    if section is None:
        return None
    if subject.case.kind == MEASURE:
        stretch = section.stretch(name.removesuffix("_busbw"))
    else:
        stretch = section.stretch(kind_of(subject.config), WINDOW)
    window = window_of(stretch)
    if window is None or len(window.micro) < STEPS_OF_A_PART * PARTS or not all(window.micro):
        return None
    rates = []
    for amount, micro in zip(window.stretch.amount("samples"), window.micro, strict=True):
        rates.append(amount / micro)
    medians = []
    for part in range(PARTS):
        begin, end = len(rates) * part // PARTS, len(rates) * (part + 1) // PARTS
        medians.append(median(rates[begin:end]))
    middle = median(rates)
    return min(medians) / middle, max(medians) / middle
