"""Why a run ended, from the most to the least telling evidence. Pure: it reads no file and asks no process."""

import signal
from typing import Any, Dict, List, Optional

from flagbench_cases.errors import ExitCode
from flagbench_cases.evidence import OK, Outcome
from flagbench_cases.processes import describe_exit

MEMORY_REMEDY = "use a smaller --set batch_size or fewer workers, or give the container more memory"


def why(
    report: Dict[str, Any],
    failures: List[Dict[str, Any]],
    *,
    memory_killed: bool,
    returncode: Optional[int],
    phase: str,
    lost: Optional[int] = None,
) -> Outcome:
    """The outcome of a run whose agent ended by itself.

    `report` is what the agent left (agent.json; empty where it died), `failures` what the ranks of this node said
    before they ended, `memory_killed` whether the kernel killed anything of this cgroup for memory meanwhile, `lost`
    a rank that was gone before its agent noticed.
    """
    if report.get("ok"):
        return OK
    if report.get("code") is not None:
        return Outcome("failed", report["phase"], report["message"], report["remedy"], report["code"])
    # SIGTERM is how the launcher ends the others once one has failed.
    killed = [f for f in report.get("failures", []) if f["exit_code"] < 0 and f["exit_code"] != -signal.SIGTERM]
    primary = [f for f in failures if not f["secondary"]]
    # The cgroup counts every process in it: a failure that says its own cause is not overruled by another's kill.
    if memory_killed and all(f["code"] == ExitCode.RANK_FAILED for f in primary):
        return Outcome("failed", phase, _killed_for_memory(killed), MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    if primary:
        first = min(primary, key=_time)
        reason = "rank %d: %s" % (first["rank"], first["message"])
        return Outcome("failed", phase, reason, first["remedy"], first["code"])
    if killed:
        first = min(killed, key=_time)
        words = "rank %d was ended by %s" % (first["rank"], describe_exit(first["exit_code"]))
        remedy = "see who sent it; the kernel log names its own kills"
        return Outcome("failed", phase, words, remedy, ExitCode.RANK_FAILED)
    if failures:
        first = min(failures, key=_time)
        reason = "rank %d: %s" % (first["rank"], first["message"])
        return Outcome("failed", phase, reason, "see the log of the other nodes", ExitCode.RANK_FAILED)
    ended = sorted(report.get("failures", []), key=_time)
    if ended or lost is not None:
        words = "rank %d was gone" % lost if lost is not None else ""
        if ended:
            words = "rank %d ended with %s" % (ended[0]["rank"], describe_exit(ended[0]["exit_code"]))
        words += " before it could say why"
        return Outcome("failed", phase, words, "see the log above", ExitCode.RANK_FAILED)
    ended_by = -report["signal"] if report.get("signal") else returncode
    words = report.get("message") or "the launcher of the ranks ended with %s" % describe_exit(ended_by)
    remedy = "see the log above; check --master on every node"
    return Outcome("failed", "launch", words, remedy, ExitCode.RANK_FAILED)


def _time(failure: Dict[str, Any]) -> float:
    return failure["time"]


def _killed_for_memory(killed: List[Dict[str, Any]]) -> str:
    if not killed:
        return "the kernel killed a process of this run for memory"
    return "the kernel killed rank %d for memory" % min(killed, key=_time)["rank"]
