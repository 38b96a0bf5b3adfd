"""Why a run ended, from the most to the least telling evidence. Pure: it reads no file and asks no process."""

import signal
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from flagbench_cases.record.evidence import OK, Outcome
from flagbench_cases.shared.errors import ExitCode
from flagbench_cases.shared.processes import describe_exit

SIGNAL_REMEDY = "find out who sent it; the kernel log names its own kills"
EARLY_REMEDY = "see the log above; something in that process, perhaps a library, ended it"
MEMORY_REMEDY = "use a smaller --set batch_size or fewer workers, or give the container more memory"


class RankEnd(NamedTuple):
    """How a rank ended before its work was done."""

    rank: int
    node: int
    code: Optional[int]  # minus the number of a signal; None: gone, exit status unknown
    time: float  # Unix seconds
    phase: str
    steps: int

    @property
    def reason(self) -> str:
        """What happened, for the record."""
        if self.code is None:
            how = "was gone or had become another program"
        else:
            how = "%s %s" % ("was ended by" if self.code < 0 else "ended with", describe_exit(self.code))
        where = "on node %d, in phase %s after %d steps" % (self.node, self.phase, self.steps)
        return "rank %d %s %s, before its work was done" % (self.rank, how, where)

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return SIGNAL_REMEDY if self.code is not None and self.code < 0 else EARLY_REMEDY


def outcome_of(
    report: Dict[str, Any],
    failures: List[Dict[str, Any]],
    ends: Sequence[RankEnd],
    *,
    done: bool,
    memory_killed: bool,
    returncode: Optional[int],
    phase: str,
) -> Outcome:
    """The outcome of a run whose agent ended by itself.

    `report` is what the agent left (agent.json; empty where it died), `failures` what the ranks of this node said
    before they ended, `ends` how ranks of this node ended that had not done their work, `done` whether every rank of
    the job has reported that it did, `memory_killed` whether the kernel killed anything of this cgroup for memory
    meanwhile.
    """
    if done and (report.get("ok") or not (report or failures or ends)):
        return OK  # also where the launcher, with nothing left to do, was killed before it could say so
    if report.get("code") is not None:
        return Outcome("failed", report["phase"], report["message"], report["remedy"], report["code"])
    # SIGTERM is how the launcher ends the others once one has failed; a rank that left a reason needs no other.
    explained = {failure["rank"] for failure in failures}
    early = [end for end in ends if end.rank not in explained and end.code != -signal.SIGTERM]
    primary = [f for f in failures if not f["secondary"]]
    # The cgroup counts every process in it: a failure that says its own cause is not overruled by another's kill.
    if memory_killed and all(f["code"] == ExitCode.RANK_FAILED for f in primary):
        killed = [end for end in early if end.code is not None and end.code < 0]
        return Outcome("failed", phase, _killed_for_memory(killed), MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    if primary:
        first = min(primary, key=_time)
        reason = "rank %d: %s" % (first["rank"], first["message"])
        return Outcome("failed", phase, reason, first["remedy"], first["code"])
    if early:
        end = min(early, key=lambda end: end.time)
        return Outcome("failed", end.phase, end.reason, end.remedy, ExitCode.RANK_FAILED)
    if failures:
        first = min(failures, key=_time)
        reason = "rank %d: %s" % (first["rank"], first["message"])
        return Outcome("failed", phase, reason, "see the log of the other nodes", ExitCode.RANK_FAILED)
    if report.get("ok"):
        words = "the ranks ended before every one of them had reported that its work was done"
        return Outcome("failed", phase, words, "see the log above", ExitCode.RANK_FAILED)
    if ends:
        end = min(ends, key=lambda end: end.time)
        return Outcome("failed", end.phase, end.reason, end.remedy, ExitCode.RANK_FAILED)
    ended_by = -report["signal"] if report.get("signal") else returncode
    words = report.get("message") or "the launcher of the ranks ended with %s" % describe_exit(ended_by)
    remedy = "see the log above; check --master on every node"
    return Outcome("failed", "launch", words, remedy, ExitCode.RANK_FAILED)


def may_be_secondary(report: Dict[str, Any], failures: List[Dict[str, Any]], ends: Sequence[RankEnd]) -> bool:
    """Whether this node's ranks may have ended because another node did, and not for a cause of their own.

    SIGABRT is how NCCL ends a rank whose peers have gone.
    """
    explained = {failure["rank"] for failure in failures}
    theirs = (-signal.SIGTERM, -signal.SIGABRT)
    own = [end for end in ends if end.rank not in explained and end.code not in theirs]
    return report.get("code") is None and not own and all(f["secondary"] for f in failures)


def _time(failure: Dict[str, Any]) -> float:
    return failure["time"]


def _killed_for_memory(killed: List[RankEnd]) -> str:
    if not killed:
        return "the kernel killed a process of this run for memory"
    return "the kernel killed rank %d for memory" % min(killed, key=lambda end: end.time).rank
