"""The verdict on a series that was run for a row; the same function for the run, and for its bundle later."""

from __future__ import annotations

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case, Claim
from flagbench.records.model import Record
from flagbench.records.named import Runs
from flagbench.records.series import Series
from flagbench.verdict import Verdict, VerifyResult, verify_claim
from flagbench.verdict.result import Against
from flagbench.verdict.series import with_provenance

NO_SAMPLE = "the runs are not one sample"
"""Begins the reason of a verdict that further runs do not change."""


def series_verdict(series: Series, claim: Claim, case: Case) -> tuple[list[Record], VerifyResult]:
    """The records that the verdict is on, and the verdict.

    A series with problems is INVALID, one of runs that are not one sample INCONCLUSIVE. Raises FlagbenchError (data)
    where no run left a record.
    """
    runs = Runs([*series.records], [series])
    held = runs.to_verify()
    against = Against("claim", claim.id)
    if held:
        try:
            result = verify_claim(held, claim, case)
        except FlagbenchError as error:
            ids = tuple(record.record_id for record in held)
            reason = f"{NO_SAMPLE}: {error.message}"
            result = VerifyResult(Verdict.INCONCLUSIVE, (), reason, case.gate, against, ids, (), ())
    else:  # problems, which with_provenance makes the reason
        result = VerifyResult(Verdict.INVALID, (), "", case.gate, against, (), (), ())
    return held, with_provenance(result, held, runs.summaries("runs"), runs.in_series)
