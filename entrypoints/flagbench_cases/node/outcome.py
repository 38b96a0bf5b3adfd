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
    """How a rank ended before it finished its work."""

    rank: int
    node: int
    code: int | None  # exit code, or minus the signal number; None: exit status unknown
    time: float  # Unix seconds
    phase: str
    steps: int

    def reason(self, layout: Layout) -> str:
        """What happened, for the record's status."""
        where = f"on node {self.node}, in phase {self.phase} after {self.steps} steps"
        return f"{layout.name(self.rank)} {self._how()} {where}, before it finished"

    def _how(self) -> str:
        if self.code is None:
            return "disappeared"
        if self.code < 0:
            return f"was killed by {describe_exit(self.code)}"
        return f"ended with {describe_exit(self.code)}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.code is not None and self.code < 0:
            return SIGNAL_REMEDY
        return EARLY_REMEDY


def outcome_of(
    report: dict[str, Any],
    failures: list[dict[str, Any]],
    ends: Sequence[RankEnd],
    layout: Layout,
    *,
    done: bool,
    memory_killed: bool,
    returncode: int | None,
    phase: str,
) -> Outcome:
    """The outcome of a run whose agent has ended.

    Args:
        report: the agent's agent.json; empty if the agent died.
        failures: what the ranks of this node reported before they ended.
        ends: of the ranks of this node that ended before they finished their work.
        layout: names the ranks of a split model.
        done: whether every rank of the job reported that it finished.
        memory_killed: whether the kernel's OOM killer killed a process of this cgroup during the run.
        returncode: the agent's exit status.
        phase: the phase of the run.
    """
    if done and report.get("ok"):
        return OK
    if done and not report and not failures and not ends:
        return OK  # the agent was killed after the ranks had finished
    if report.get("code") is not None:
        return Outcome("failed", report["phase"], report["message"], report["remedy"], report["code"])
    # The launcher sends SIGTERM to the remaining ranks once one has failed.
    early = _unexplained_ends(failures, ends, ignored=(-signal.SIGTERM,))
    primary = [failure for failure in failures if not failure["secondary"]]
    # The cgroup counts every process in it: a failure with a specific cause takes precedence.
    if memory_killed and not _has_specific_cause(primary):
        reason = _reason_of_memory_kill(early, layout)
        return Outcome("failed", phase, reason, MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    if primary:
        first = min(primary, key=_time)
        return Outcome("failed", phase, _reason_of(first, layout), first["remedy"], first["code"])
    if early:
        return _outcome_of_first_end(early, layout)
    if failures:
        first = min(failures, key=_time)
        remedy = "see the log of the other nodes"
        return Outcome("failed", phase, _reason_of(first, layout), remedy, ExitCode.RANK_FAILED)
    if report.get("ok"):
        reason = "the ranks ended before all of them reported that they had finished"
        return Outcome("failed", phase, reason, "see the log above", ExitCode.RANK_FAILED)
    if ends:
        return _outcome_of_first_end(ends, layout)
    return _outcome_of_launcher(report, returncode)


def _has_specific_cause(failures: list[dict[str, Any]]) -> bool:
    return any(failure["code"] != ExitCode.RANK_FAILED for failure in failures)


def _reason_of(failure: dict[str, Any], layout: Layout) -> str:
    return f"{layout.name(failure['rank'])}: {failure['message']}"


def _outcome_of_first_end(ends: Sequence[RankEnd], layout: Layout) -> Outcome:
    end = min(ends, key=lambda end: end.time)
    return Outcome("failed", end.phase, end.reason(layout), end.remedy, ExitCode.RANK_FAILED)


def _outcome_of_launcher(report: dict[str, Any], returncode: int | None) -> Outcome:
    """The outcome if only the launcher ended: by a signal that it reported, or by its exit status."""
    status = returncode
    if report.get("signal"):
        status = -report["signal"]
    reason = report.get("message") or f"the launcher of the ranks ended with {describe_exit(status)}"
    remedy = "see the log above; check --master on every node"
    return Outcome("failed", "launch", reason, remedy, ExitCode.RANK_FAILED)


def may_be_secondary(report: dict[str, Any], failures: list[dict[str, Any]], ends: Sequence[RankEnd]) -> bool:
    """Whether this node's ranks may have ended because of a failure on another node.

    NCCL aborts (SIGABRT) a rank whose peers are gone.
    """
    if report.get("code") is not None:
        return False
    if _unexplained_ends(failures, ends, ignored=(-signal.SIGTERM, -signal.SIGABRT)):
        return False
    return all(failure["secondary"] for failure in failures)


def _unexplained_ends(
    failures: list[dict[str, Any]], ends: Sequence[RankEnd], ignored: Sequence[int]
) -> list[RankEnd]:
    """The ends of ranks that reported no failure, but for those with an `ignored` code."""
    explained = {failure["rank"] for failure in failures}
    return [end for end in ends if end.rank not in explained and end.code not in ignored]


def _time(failure: dict[str, Any]) -> float:
    return failure["time"]


def _reason_of_memory_kill(early: list[RankEnd], layout: Layout) -> str:
    """Names the first rank that was killed by a signal, if there is one."""
    killed = [end for end in early if end.code is not None and end.code < 0]
    if not killed:
        return "the kernel's OOM killer killed a process of this run"
    first = min(killed, key=lambda end: end.time)
    return f"the kernel's OOM killer killed {layout.name(first.rank)}"
