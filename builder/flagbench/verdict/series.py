"""What a series adds to a verdict: what its records come from, and a level that holds at every look.

Checking the verdict several times and stopping at the first definite one is wrong more often than checking once. So
alpha is spread over the looks (`stats.looks`), which are fixed in advance, and at each the interval is as wide as its
part demands.
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
from flagbench.verdict.interval import Terms
from flagbench.verdict.result import Against, Verdict, VerifyResult
from flagbench.verdict.stats.between import LEVEL
from flagbench.verdict.stats.looks import look_levels
from flagbench.verdict.verify import verify_claim

CLOCK_SKEW = timedelta(hours=1)
"""How far the clocks of two machines may be apart."""


def look_level(series: Sequence[SeriesSummary], runs: int) -> float:
    """The level at which the verdict on so many runs has to hold: 95 %, or that of the look at them.

    Between two looks, as when the time was up, it is the next one that is used. Runs of several series were never
    looked at together, so the strictest of all their looks counts.
    """
    plans = [each.looks for each in series if each.side == "runs" and each.looks]
    return max((_level(looks, runs if len(plans) == 1 else None) for looks in plans), default=LEVEL)


def _level(looks: Sequence[int], runs: int | None) -> float:
    """The level at the look of so many runs; the strictest of all looks if that is None."""
    levels = look_levels(looks)
    if runs is None:
        return max(levels.values())
    return levels[next((count for count in looks if count >= runs), looks[-1])]


def is_decided(result: VerifyResult) -> bool:
    """Whether further runs of the same kind could not change the verdict, or need not.

    One on runs that are not one sample compares no metric.
    """
    return result.verdict is not Verdict.INCONCLUSIVE or not result.metrics


def with_series(result: VerifyResult, series: Sequence[SeriesSummary]) -> VerifyResult:
    """The result with the series that its records are of.

    A series of the runs with problems makes the verdict INVALID; runs left out qualify it.
    """
    result = replace(result, series=tuple(series))
    own = [each for each in series if each.side == "runs"]
    if wrong := [f"series {each.series_id}: {'; '.join(each.problems)}" for each in own if each.problems]:
        return replace(
            result,
            verdict=Verdict.INVALID,
            reason="; ".join(wrong),
            qualifiers=(),
            metrics=(),
            findings=(),
            ended=None,
        )
    if result.verdict in (Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return result
    left = tuple(f"{len(each.left_out)} of {each.requested} runs left out" for each in series if each.left_out)
    return replace(result, qualifiers=(*result.qualifiers, *left))


def dated(result: VerifyResult, records: Sequence[Record], now: datetime) -> VerifyResult:
    """The result with the records that were made later than the reader's clock says it is, as a qualifier."""
    later = [r for r in records if datetime.strptime(r.created_at, "%Y-%m-%dT%H:%M:%SZ") > now + CLOCK_SKEW]
    if not later or result.verdict in (Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return result
    ahead = f"made in the future by this machine's clock ({max(record.created_at for record in later)})"
    return replace(result, qualifiers=(*result.qualifiers, ahead))


def series_verdict(series: Series, claim: Claim, case: Case) -> tuple[list[Record], VerifyResult]:
    """The records that the verdict is on, and the verdict.

    A series with problems is INVALID, one of runs that are not one sample INCONCLUSIVE. Raises FlagbenchError (data)
    where no run left a record.
    """
    runs = Runs([*series.records], [series])
    held = runs.to_verify()
    against, summaries = Against("claim", claim.id), runs.summaries("runs")
    if held:
        try:
            result = verify_claim(held, claim, case, terms=Terms(level=look_level(summaries, len(held))))
        except FlagbenchError as error:
            ids = tuple(record.record_id for record in held)
            reason = f"the runs are not one sample: {error.message}"
            result = VerifyResult(Verdict.INCONCLUSIVE, (), reason, case.gate, against, ids, (), ())
    else:  # problems, which with_series makes the reason
        result = VerifyResult(Verdict.INVALID, (), "", case.gate, against, (), (), ())
    return held, with_series(result, summaries)
