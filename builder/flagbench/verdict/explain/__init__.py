"""Why a run is slow: what took its time, by its evidence and its telemetry, each with its share of the gap.

run.py       a record's times per step, and what else causes are found from
losses.py    causes whose share of the time was measured
suspects.py  causes that are known to cost time, but not how much
result.py    what an explanation says
explain.py   the gap, its causes in order, and what remains unexplained
"""

from __future__ import annotations

from flagbench.verdict.explain.explain import explain
from flagbench.verdict.explain.result import Cause, Explanation

__all__ = ["Cause", "Explanation", "explain"]
