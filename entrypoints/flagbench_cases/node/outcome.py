"""Determines why a run ended, from the most to the least conclusive evidence. Pure functions without I/O."""

from __future__ import annotations

import signal
from typing import Any, NamedTuple, Sequence

from flagbench_cases.record.evidence import OK, Outcome
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.processes import describe_exit
from flagbench_core.exit_codes import ExitCode

SIGNAL_REMEDY = "find out who sent the signal; the kernel log lists kills by the kernel"
EARLY_REMEDY = "see the log above; the process was ended from within, for example by a library"
MEMORY_REMEDY = "use a smaller --set batch_size or fewer workers, or give the container more memory"


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
    failures: list[dict[str, Any]],
    ends: Sequence[RankEnd],
    layout: Layout,
    *,
    done: bool,
    memory_killed: bool,
    phase: str,
) -> Outcome:
    """The outcome of a run of which a rank, or every rank, has ended by itself.

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
    early = _unexplained_ends(failures, ends)
    primary = [failure for failure in failures if not failure["secondary"]]
    # The cgroup counts every process in it: a failure with a specific cause takes precedence.
    if memory_killed and not _has_specific_cause(primary):
        reason = _reason_of_memory_kill(early, layout)
        return Outcome("failed", phase, reason, MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    if primary:
        first = min(primary, key=_time)
        if "phase" in first:  # the node is not fit for this run, whatever its rank
            return Outcome("failed", first["phase"], first["message"], first["remedy"], first["code"])
        return Outcome("failed", phase, _reason_of(first, layout), first["remedy"], first["code"])
    if early:
        end = min(early, key=_is_abort)
        return Outcome("failed", end.phase, end.reason(layout), end.remedy, ExitCode.RANK_FAILED)
    if failures:
        first = min(failures, key=_time)
        remedy = "see the log of the other nodes"
        return Outcome("failed", phase, _reason_of(first, layout), remedy, ExitCode.RANK_FAILED)
    reason = "the ranks ended before all of them reported that they had finished"
    return Outcome("failed", phase, reason, "see the log above", ExitCode.RANK_FAILED)


def _has_specific_cause(failures: list[dict[str, Any]]) -> bool:
    return any(failure["code"] != ExitCode.RANK_FAILED for failure in failures)


def _reason_of(failure: dict[str, Any], layout: Layout) -> str:
    return f"{layout.name(failure['rank'])}: {failure['message']}"


def may_be_secondary(failures: list[dict[str, Any]], ends: Sequence[RankEnd]) -> bool:
    """Whether this node's ranks may have ended because of a failure on another node."""
    if not all(map(_is_abort, _unexplained_ends(failures, ends))):
        return False
    return all(failure["secondary"] for failure in failures)


def _unexplained_ends(failures: list[dict[str, Any]], ends: Sequence[RankEnd]) -> list[RankEnd]:
    """The ends of ranks that reported no failure."""
    explained = {failure["rank"] for failure in failures}
    return [end for end in ends if end.rank not in explained]


def _is_abort(end: RankEnd) -> bool:
    """Whether a rank was aborted: NCCL does that if the connection to another rank breaks."""
    return end.code == -signal.SIGABRT


def _time(failure: dict[str, Any]) -> float:
    return failure["time"]


def _reason_of_memory_kill(early: list[RankEnd], layout: Layout) -> str:
    """Names the first rank that was killed by a signal, if there is one."""
    killed = [end for end in early if end.code < 0]
    if not killed:
        return "the kernel's OOM killer killed a process of this run"
    first = min(killed, key=_is_abort)
    return f"the kernel's OOM killer killed {layout.name(first.rank)}"
