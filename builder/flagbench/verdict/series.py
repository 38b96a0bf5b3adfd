"""Give the verdict on a series: repeated runs of one request, looked at until the verdict is decided.

Checking the verdict several times and stopping at the first definite one is wrong more often than checking once. So
the looks are fixed in advance, the probability of error alpha is spread over them (`stats.looks`), and at each look
the interval is as wide as its part of alpha demands.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim
from flagbench.records.model import Record
from flagbench.records.runs_and_series import Runs, SeriesSummary
from flagbench.records.series import Series
from flagbench.system.clock import parse_utc
from flagbench.verdict.interval import Terms
from flagbench.verdict.result import Against, Verdict, VerifyResult
from flagbench.verdict.stats.between import LEVEL
from flagbench.verdict.stats.looks import look_levels
from flagbench.verdict.verify import verify_claim

CLOCK_SKEW = timedelta(hours=1)
"""The largest difference between the clocks of two machines that is not reported."""


def look_level(series: Sequence[SeriesSummary], runs: int) -> float:
    """Return the level at which the verdict on `runs` runs has to hold: 95 %, or that of the look at them.

    Between two looks, for instance when the time was up, the next look counts. Runs of several series were never
    looked at together, so the strictest of all their looks counts.
    """
    plans = [summary.looks for summary in series if summary.side == "runs" and summary.looks]
    if not plans:
        return LEVEL
    if len(plans) == 1:
        return _level_of_look(plans[0], runs)
    return max(max(look_levels(looks).values()) for looks in plans)


def _level_of_look(looks: Sequence[int], runs: int) -> float:
    """Return the level of the first look at `runs` runs or more; that of the last look if all are at fewer."""
    levels = look_levels(looks)
    for look in looks:
        if look >= runs:
            return levels[look]
    return levels[looks[-1]]


def is_decided(result: VerifyResult) -> bool:
    """Whether further runs are of no use: the verdict is not INCONCLUSIVE, or no metric was compared.

    No metric is compared if the runs are not one sample, which further runs do not change.
    """
    return result.verdict is not Verdict.INCONCLUSIVE or not result.metrics


def with_series(result: VerifyResult, series: Sequence[SeriesSummary]) -> VerifyResult:
    """Return the result with the series to which its records belong.

    Problems of a series of the runs make the verdict INVALID; runs that were left out qualify it.
    """
    result = replace(result, series=tuple(series))
    problems = []
    for summary in series:
        if summary.side == "runs" and summary.problems:
            problems.append(f"series {summary.series_id}: {'; '.join(summary.problems)}")
    if problems:
        return replace(
            result,
            verdict=Verdict.INVALID,
            reason="; ".join(problems),
            qualifiers=(),
            metrics=(),
            findings=(),
            ended=None,
        )
    if result.verdict in (Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return result
    qualifiers = list(result.qualifiers)
    for summary in series:
        if summary.left_out:
            qualifiers.append(f"{len(summary.left_out)} of {summary.requested} runs left out")
    return replace(result, qualifiers=tuple(qualifiers))


def with_future_dates(result: VerifyResult, records: Sequence[Record], now: datetime) -> VerifyResult:
    """Return the result with a qualifier if a record has a date that is in the future by the reader's clock."""
    if result.verdict in (Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return result
    later = []
    for record in records:
        if parse_utc(record.created_at) > now + CLOCK_SKEW:
            later.append(record.created_at)
    if not later:
        return result
    ahead = f"made in the future by this machine's clock ({max(later)})"
    return replace(result, qualifiers=(*result.qualifiers, ahead))


def series_verdict(series: Series, claim: Claim, case: Case) -> tuple[list[Record], VerifyResult]:
    """Return the records that the verdict is on, and the verdict.

    A series with problems is INVALID, and one whose runs are not one sample is INCONCLUSIVE. Raises FlagbenchError
    (DATA) if no run left a record.
    """
    runs = Runs([*series.records], [series])
    records = runs.to_verify()
    summaries = runs.summaries("runs")
    return records, with_series(_verify_sample(records, claim, case, summaries), summaries)


def _verify_sample(
    records: Sequence[Record], claim: Claim, case: Case, summaries: Sequence[SeriesSummary]
) -> VerifyResult:
    """Return the verdict on the records of a series, without regard to the problems of the series itself."""
    against = Against("claim", claim.id)
    if not records:
        # No run can be used; `with_series` adds the reason from the problems of the series.
        return VerifyResult(Verdict.INVALID, (), "", case.gate, against, (), (), ())
    terms = Terms(level=look_level(summaries, len(records)))
    try:
        return verify_claim(records, claim, case, terms=terms)
    except FlagbenchError as error:
        ids = tuple(record.record_id for record in records)
        reason = f"the runs are not one sample: {error.message}"
        return VerifyResult(Verdict.INCONCLUSIVE, (), reason, case.gate, against, ids, (), ())
