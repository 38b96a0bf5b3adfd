"""What a verdict's records come from: a series, a launcher, or nobody's word but their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from flagbench.records.model import Record
from flagbench.verdict.looks import at_look
from flagbench.verdict.result import SeriesSummary, Verdict, VerifyResult


def with_provenance(
    result: VerifyResult, records: Sequence[Record], series: Sequence[SeriesSummary], in_series: Collection[str]
) -> VerifyResult:
    """The result with what is known of where its records come from.

    A series of the runs with problems makes the verdict INVALID; runs left out qualify it. Being self-reported
    changes nothing of it.

    Args:
        in_series: ids of the records that are of one of `series`.
    """
    result = replace(
        result,
        series=tuple(series),
        self_reported=tuple(r.record_id for r in records if r.launch is None and r.record_id not in in_series),
    )
    own = [each for each in series if each.side == "runs"]
    if wrong := [f"series {each.series_id}: {'; '.join(each.problems)}" for each in own if each.problems]:
        return replace(result, verdict=Verdict.INVALID, reason="; ".join(wrong), qualifiers=(), metrics=())
    if result.verdict in (Verdict.INVALID, Verdict.NOT_COMPARABLE):
        return result
    if result.against.kind == "claim":
        # Of several series that could each have ended at a look, the one with the strictest counts.
        looks = [each.looks for each in own if each.looks]
        result = at_look(result, looks) if looks else result
    left = tuple(f"{len(each.left_out)} of {each.requested} runs left out" for each in series if each.left_out)
    return replace(result, qualifiers=(*result.qualifiers, *left))
