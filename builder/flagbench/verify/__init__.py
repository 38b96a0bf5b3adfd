"""Whether a record reproduces a claim, and why not. Pure: no Docker, no network, no framework."""

from flagbench.verify.align import Alignment, AlignResult, align
from flagbench.verify.compare import Comparison, compare_records
from flagbench.verify.conditions import Agreement
from flagbench.verify.published import reproductions
from flagbench.verify.result import Verdict, VerifyResult
from flagbench.verify.verdict import choose_claim, verify_baseline, verify_claim

__all__ = [
    "Agreement",
    "AlignResult",
    "Alignment",
    "Comparison",
    "Verdict",
    "VerifyResult",
    "align",
    "choose_claim",
    "compare_records",
    "reproductions",
    "verify_baseline",
    "verify_claim",
]
