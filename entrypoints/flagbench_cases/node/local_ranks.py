"""The ranks of one node, as their spool and the process table show them."""

from __future__ import annotations

import os
import time
from typing import Any, Mapping, Sequence

from flagbench_cases.node.outcome import RankEnd
from flagbench_cases.shared import processes
from flagbench_cases.shared.spool import Heartbeat, SpoolReader

REQUIRED = frozenset(("process", "rank", "precision", "plan", "timing", "memory", "ceiling"))
"""The facts that every rank has written by the end of a run."""


class LocalRanks:
    """The ranks `ranks` of node `node`, whose spool is `folder`, in a job of `world` ranks."""

    def __init__(self, folder: str, ranks: Sequence[int], node: int, world: int) -> None:
        self._folder = folder
        self._readers = [SpoolReader(folder, rank) for rank in ranks]
        self._node = node
        self._world = world
        self._pids: dict[int, int] = {}
        self._started: set[int] = set()
        """The ranks of which a heartbeat was read."""

    def progress(self) -> list[Heartbeat | None]:
        """The heartbeat of each rank; None for a rank that has not started."""
        return [reader.progress() for reader in self._readers]

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """All facts of a kind, in rank order."""
        facts = []
        for reader in self._readers:
            facts += _facts_of_kind(reader, kind)
        return facts

    def phase(self) -> str:
        """The phase of the slowest rank."""
        heartbeats: list[Heartbeat] = []
        for heartbeat in self.progress():
            if heartbeat is None:
                return "launch"
            heartbeats.append(heartbeat)
        return min(heartbeats, key=lambda heartbeat: heartbeat.beat).phase

    def steps(self) -> dict[int, int]:
        """Steps done, by rank."""
        steps = {}
        for reader, heartbeat in zip(self._readers, self.progress()):
            if heartbeat is not None:
                steps[reader.rank] = heartbeat.steps
        return steps

    def stopped(self) -> dict[int, int]:
        """Process ids of the ranks that are stopped (SIGSTOP), frozen or blocked in the kernel, by rank."""
        pids = {fact["rank"]: fact["pid"] for fact in self.facts("process")}
        # The states of proc(5): T stopped by a signal, t by a debugger, D in an uninterruptible wait.
        return {rank: pid for rank, pid in pids.items() if processes.state(pid) in ("T", "t", "D")}

    def all_reported(self) -> bool:
        """Whether every rank of this node has finished, and on node 0, every rank of the job."""
        if not all(map(is_done, self.progress())):
            return False
        if self._node > 0:
            return True
        # Rank 0 lists all ranks of the job in one fact, after every rank has told it that it is done.
        done = _facts_of_kind(self._readers[0], "done")
        if len(done) != 1:
            return False
        return done[0]["ranks"] == list(range(self._world))

    def find_removed(self, heartbeats: Sequence[Heartbeat | None]) -> int | None:
        """A rank whose spool was removed or emptied since an earlier call; None if there is none.

        The whole folder may be removed before the first heartbeat of a rank is read.

        Args:
            heartbeats: what `progress` returned.
        """
        if not os.path.isdir(self._folder):
            return self._readers[0].rank
        removed = None
        for reader, heartbeat in zip(self._readers, heartbeats):
            if heartbeat is not None:
                self._started.add(reader.rank)
            elif reader.rank in self._started and removed is None:
                removed = reader.rank
        return removed

    def find_incomplete(self) -> int | None:
        """A rank that lacks facts although the run is done: its file was emptied meanwhile. None if there is none.

        Node 0 checks the ranks of all nodes.
        """
        ranks: Sequence[int] = [reader.rank for reader in self._readers]
        if self._node == 0:
            ranks = range(self._world)
        for rank in ranks:
            kinds = {fact["kind"] for fact in SpoolReader(self._folder, rank).facts()}
            if not kinds >= REQUIRED:
                return rank
        return None

    def find_lost(self, heartbeats: Sequence[Heartbeat | None]) -> int | None:
        """A rank that ended before it finished; None if there is none.

        Args:
            heartbeats: what `progress` returned.
        """
        for reader, heartbeat in zip(self._readers, heartbeats):
            if self._is_lost(reader, heartbeat):
                return reader.rank
        return None

    def _is_lost(self, reader: SpoolReader, heartbeat: Heartbeat | None) -> bool:
        if is_done(heartbeat):
            return False
        if reader.exit() is not None:
            return True
        if heartbeat is not None and reader.rank not in self._pids:
            for fact in _facts_of_kind(reader, "process"):
                self._pids[fact["rank"]] = fact["pid"]
        pid = self._pids.get(reader.rank)
        return pid is not None and processes.state(pid) in (None, "Z")

    def ends(self, report: Mapping[str, Any], lost: int | None) -> list[RankEnd]:
        """How ranks ended before they finished.

        Args:
            report: the launcher's, which says how a rank ended whose guard could not.
            lost: the rank that `find_lost` returned last. If neither its guard nor the launcher reports how it ended,
                it has just ended, with an unknown exit code.
        """
        ends: list[RankEnd] = []
        failures = {failure["rank"]: failure for failure in report.get("failures", [])}
        for reader, heartbeat in zip(self._readers, self.progress()):
            if is_done(heartbeat):
                continue
            rank = reader.rank
            status = reader.exit()
            code: int | None
            if status is not None:
                code = status.code
                end_time = status.time
            elif rank in failures:
                code = failures[rank]["exit_code"]
                end_time = failures[rank]["time"]
            elif rank == lost:
                code = None
                end_time = time.time()
            else:
                continue
            phase = "init"
            steps = 0
            if heartbeat is not None:
                phase = heartbeat.phase
                steps = heartbeat.steps
            ends.append(RankEnd(rank, self._node, code, end_time, phase, steps))
        return ends


def is_done(heartbeat: Heartbeat | None) -> bool:
    """Whether a rank has finished its work."""
    return heartbeat is not None and heartbeat.phase == "done"


def _facts_of_kind(reader: SpoolReader, kind: str) -> list[dict[str, Any]]:
    return [fact for fact in reader.facts() if fact["kind"] == kind]
