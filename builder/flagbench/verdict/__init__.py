"""Whether a record reproduces a claim, and why not. Pure: no Docker, no network, no framework."""

from flagbench.verdict.compare import Comparison, compare_records, judge_speed
from flagbench.verdict.conditions import Agreement
from flagbench.verdict.result import Verdict, VerifyResult
from flagbench.verdict.verify import choose_claim, select_claims, verify_baseline, verify_claim, verify_reference

__all__ = [
    "Agreement",
    "Comparison",
    "Verdict",
    "VerifyResult",
    "choose_claim",
    "compare_records",
    "judge_speed",
    "select_claims",
    "verify_baseline",
    "verify_claim",
    "verify_reference",
]
