"""Whether a record reproduces a claim, and why not. Pure: no Docker, no network, no framework."""

from flagbench.verify.compare import Comparison, compare_records
from flagbench.verify.conditions import Agreement, ConditionResult
from flagbench.verify.interval import Estimate, Interval, Ratio
from flagbench.verify.published import Reproduction, reproductions
from flagbench.verify.result import Against, AgainstKind, MetricResult, Verdict, VerifyResult
from flagbench.verify.verdict import choose_claim, verify_baseline, verify_claim

__all__ = [
    "Against",
    "AgainstKind",
    "Agreement",
    "Comparison",
    "ConditionResult",
    "Estimate",
    "Interval",
    "MetricResult",
    "Ratio",
    "Reproduction",
    "Verdict",
    "VerifyResult",
    "choose_claim",
    "compare_records",
    "reproductions",
    "verify_baseline",
    "verify_claim",
]
