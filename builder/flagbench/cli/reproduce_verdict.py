"""The verdict on a series that was run for a row; the same function for the run, and for its bundle later."""

from __future__ import annotations

from flagbench.catalog.model import Case, Claim
from flagbench.cli.series import Runs
from flagbench.record.model import Record
from flagbench.stores.series import Series
from flagbench.verify import Verdict, VerifyResult, verify_claim
from flagbench.verify.provenance import with_provenance
from flagbench.verify.result import Against


def series_verdict(series: Series, claim: Claim, case: Case) -> tuple[list[Record], VerifyResult]:
    """The records that the verdict is on, and the verdict.

    A series with problems is INVALID. Raises FlagbenchError: data where no run left a record, and as `verify_claim`.
    """
    runs = Runs([*series.records], [series])
    held = runs.to_verify()
    if held:
        result = verify_claim(held, claim, case)
    else:  # problems, which with_provenance makes the reason
        result = VerifyResult(Verdict.INVALID, (), "", case.gate, Against("claim", claim.id), (), (), ())
    return held, with_provenance(result, held, runs.summaries("runs"), runs.in_series)
