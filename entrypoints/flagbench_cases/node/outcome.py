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
        if self.code is None:
            how = "disappeared"
        else:
            how = f"{'was killed by' if self.code < 0 else 'ended with'} {describe_exit(self.code)}"
        where = f"on node {self.node}, in phase {self.phase} after {self.steps} steps"
        return f"{layout.name(self.rank)} {how} {where}, before it finished"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return SIGNAL_REMEDY if self.code is not None and self.code < 0 else EARLY_REMEDY


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
        ends: how ranks of this node ended that had not finished their work.
        layout: names the ranks of a split model.
        done: whether every rank of the job reported that it finished.
        memory_killed: whether the kernel's OOM killer killed a process of this cgroup during the run.
        returncode: the agent's exit status.
        phase: the phase of the run.
    """
    if done and (report.get("ok") or not (report or failures or ends)):
        return OK  # also if the agent was killed after the ranks had finished
    if report.get("code") is not None:
        return Outcome("failed", report["phase"], report["message"], report["remedy"], report["code"])
    # The launcher sends SIGTERM to the remaining ranks once one has failed. A rank that reported is explained.
    explained = {failure["rank"] for failure in failures}
    early = [end for end in ends if end.rank not in explained and end.code != -signal.SIGTERM]
    primary = [f for f in failures if not f["secondary"]]
    # The cgroup counts every process in it: a failure with a specific cause takes precedence.
    if memory_killed and all(f["code"] == ExitCode.RANK_FAILED for f in primary):
        killed = [end for end in early if end.code is not None and end.code < 0]
        return Outcome("failed", phase, _killed_for_memory(killed, layout), MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    if primary:
        first = min(primary, key=_time)
        reason = f"{layout.name(first['rank'])}: {first['message']}"
        return Outcome("failed", phase, reason, first["remedy"], first["code"])
    if early:
        end = min(early, key=lambda end: end.time)
        return Outcome("failed", end.phase, end.reason(layout), end.remedy, ExitCode.RANK_FAILED)
    if failures:
        first = min(failures, key=_time)
        reason = f"{layout.name(first['rank'])}: {first['message']}"
        return Outcome("failed", phase, reason, "see the log of the other nodes", ExitCode.RANK_FAILED)
    if report.get("ok"):
        reason = "the ranks ended before all of them reported that they had finished"
        return Outcome("failed", phase, reason, "see the log above", ExitCode.RANK_FAILED)
    if ends:
        end = min(ends, key=lambda end: end.time)
        return Outcome("failed", end.phase, end.reason(layout), end.remedy, ExitCode.RANK_FAILED)
    ended_by = -report["signal"] if report.get("signal") else returncode
    reason = report.get("message") or f"the launcher of the ranks ended with {describe_exit(ended_by)}"
    remedy = "see the log above; check --master on every node"
    return Outcome("failed", "launch", reason, remedy, ExitCode.RANK_FAILED)


def may_be_secondary(report: dict[str, Any], failures: list[dict[str, Any]], ends: Sequence[RankEnd]) -> bool:
    """Whether this node's ranks may have ended because of a failure on another node.

    NCCL aborts (SIGABRT) a rank whose peers are gone.
    """
    explained = {failure["rank"] for failure in failures}
    theirs = (-signal.SIGTERM, -signal.SIGABRT)
    own = [end for end in ends if end.rank not in explained and end.code not in theirs]
    return report.get("code") is None and not own and all(f["secondary"] for f in failures)


def _time(failure: dict[str, Any]) -> float:
    return failure["time"]


def _killed_for_memory(killed: list[RankEnd], layout: Layout) -> str:
    if not killed:
        return "the kernel's OOM killer killed a process of this run"
    return "the kernel's OOM killer killed %s" % layout.name(min(killed, key=lambda end: end.time).rank)
