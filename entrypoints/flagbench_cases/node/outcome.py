"""Determines why a run ended, from the most to the least conclusive evidence. Pure functions without I/O."""

from __future__ import annotations

import signal
from typing import Any, Dict, NamedTuple, Sequence

from flagbench_cases.record.evidence import OK, Outcome
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.processes import describe_exit
from flagbench_core.exit_codes import ExitCode

SIGNAL_REMEDY = "find out who sent the signal; the kernel log lists kills by the kernel"
EARLY_REMEDY = "see the log above; the process was ended from within, for example by a library"
MEMORY_REMEDY = "use a smaller --set batch_size or fewer workers, or give the container more memory"

Failure = Dict[str, Any]
"""The fact that a rank writes when it fails (rank/failure.py).

{"rank", "time", "code": exit code, "message", "remedy", "secondary": whether it follows from the failure of another
rank}; with "phase" only if that is not the phase of the run: `preflight`.
"""


class RankEnd(NamedTuple):
    """How a rank ended that did not finish its work, or ended with an error after it."""

    rank: int
    node: int
    code: int  # exit code, or minus the signal number
    phase: str
    steps: int

    def reason(self, layout: Layout) -> str:
        """What happened, for the record's status."""
        where = f"on node {self.node}, in phase {self.phase} after {self.steps} steps"
        if self.phase == "done":
            return f"{layout.name(self.rank)} {self._how()} {where}"
        return f"{layout.name(self.rank)} {self._how()} {where}, before it finished"

    def _how(self) -> str:
        if self.code < 0:
            return f"was killed by {describe_exit(self.code)}"
        return f"ended with {describe_exit(self.code)}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.code < 0:
            return SIGNAL_REMEDY
        return EARLY_REMEDY


def outcome_of(
    failures: Sequence[Failure],
    ends: Sequence[RankEnd],
    layout: Layout,
    *,
    done: bool,
    memory_killed: bool,
    phase: str,
) -> Outcome:
    """Return the outcome of a run of which a rank, or every rank, has ended by itself.

    The most conclusive evidence decides. In this order:

    1. Every rank finished and ended well: the run is ok.
    2. The kernel killed a process for memory, and no rank reported a specific cause.
    3. Ranks failed by themselves (a primary failure): the first of them is the cause.
    4. Ranks ended without reporting a failure, for example by a signal: the likeliest of them is the cause.
    5. Ranks reported only that others were lost (a secondary failure): the cause is on another node.
    6. No evidence at all, but not every rank reported that it finished.

    Args:
        failures: what the ranks of this node reported before they ended.
        ends: of the ranks of this node that did not end well, and had ended before any was made to end.
        layout: names the ranks of a split model.
        done: whether every rank of the job reported that it finished.
        memory_killed: whether the kernel's OOM killer killed a process of this cgroup during the run.
        phase: the phase of the run.
    """
    if done and not ends:
        return OK
    unexplained = _unexplained_ends(failures, ends)
    primary = [failure for failure in failures if not failure["secondary"]]
    # The cgroup counts every process in it: a failure with a specific cause takes precedence.
    if memory_killed and not _has_specific_cause(primary):
        reason = _reason_of_memory_kill(unexplained, layout)
        return Outcome("failed", phase, reason, MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    if primary:
        return _outcome_of_failure(_first_failure(primary), phase, layout)
    if unexplained:
        end = _likeliest_cause(unexplained)
        return Outcome("failed", end.phase, end.reason(layout), end.remedy, ExitCode.RANK_FAILED)
    if failures:
        reason = _reason_of(_first_failure(failures), layout)
        return Outcome("failed", phase, reason, "see the log of the other nodes", ExitCode.RANK_FAILED)
    reason = "the ranks ended before all of them reported that they had finished"
    return Outcome("failed", phase, reason, "see the log above", ExitCode.RANK_FAILED)


def may_be_secondary(failures: Sequence[Failure], ends: Sequence[RankEnd]) -> bool:
    """Return whether this node's ranks may have ended because of a failure on another node."""
    for end in _unexplained_ends(failures, ends):
        if not _is_abort(end):
            return False
    return all(failure["secondary"] for failure in failures)


def _outcome_of_failure(failure: Failure, phase: str, layout: Layout) -> Outcome:
    """Return the outcome of a run in `phase` that ended with a primary failure."""
    if "phase" in failure:  # the node is not fit for this run, whichever rank found out
        return Outcome("failed", failure["phase"], failure["message"], failure["remedy"], failure["code"])
    return Outcome("failed", phase, _reason_of(failure, layout), failure["remedy"], failure["code"])


def _has_specific_cause(failures: Sequence[Failure]) -> bool:
    """Return whether a rank found a cause that has an exit code of its own, such as missing data."""
    return any(failure["code"] != ExitCode.RANK_FAILED for failure in failures)


def _first_failure(failures: Sequence[Failure]) -> Failure:
    """Return the earliest failure: later ones may be its consequences."""
    return min(failures, key=lambda failure: failure["time"])


def _reason_of(failure: Failure, layout: Layout) -> str:
    return f"{layout.name(failure['rank'])}: {failure['message']}"


def _unexplained_ends(failures: Sequence[Failure], ends: Sequence[RankEnd]) -> list[RankEnd]:
    """Return the ends of ranks that reported no failure."""
    explained = {failure["rank"] for failure in failures}
    return [end for end in ends if end.rank not in explained]


def _likeliest_cause(ends: Sequence[RankEnd]) -> RankEnd:
    """Return the first end that is no abort, else the first: an abort is usually the consequence of another end."""
    for end in ends:
        if not _is_abort(end):
            return end
    return ends[0]


def _is_abort(end: RankEnd) -> bool:
    """Return whether a rank was aborted: NCCL does that if the connection to another rank breaks."""
    return end.code == -signal.SIGABRT


def _reason_of_memory_kill(unexplained: Sequence[RankEnd], layout: Layout) -> str:
    """Return the reason, with the name of the rank that was killed if one was ended by a signal."""
    killed = [end for end in unexplained if end.code < 0]
    if not killed:
        return "the kernel's OOM killer killed a process of this run"
    return f"the kernel's OOM killer killed {layout.name(_likeliest_cause(killed).rank)}"
