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
        self._seen: set[int] = set()
        self._lost: int | None = None

    def progress(self) -> list[Heartbeat | None]:
        """The heartbeat of each rank; None for a rank that has not started."""
        return [reader.progress() for reader in self._readers]

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """All facts of a kind, in rank order."""
        facts = []
        for reader in self._readers:
            facts += [fact for fact in reader.facts() if fact["kind"] == kind]
        return facts

    def phase(self) -> str:
        """The phase of the slowest rank."""
        states = self.progress()
        if any(state is None for state in states):
            return "launch"
        return min((state for state in states if state), key=lambda state: state.beat).phase

    def steps(self) -> dict[int, int]:
        """Steps done, by rank."""
        return {reader.rank: state.steps for reader, state in zip(self._readers, self.progress()) if state}

    def stopped(self) -> dict[int, int]:
        """Process ids of the ranks that are stopped (SIGSTOP), frozen or blocked in the kernel, by rank."""
        pids = {fact["rank"]: fact["pid"] for fact in self.facts("process")}
        return {rank: pid for rank, pid in pids.items() if processes.state(pid) in ("T", "t", "D")}

    def all_reported(self) -> bool:
        """Whether every rank of this node has finished, and on node 0, every rank of the job."""
        if not all(map(is_done, self.progress())):
            return False
        if self._node > 0:
            return True
        reported = [fact["ranks"] for fact in self._readers[0].facts() if fact["kind"] == "done"]
        return reported == [list(range(self._world))]

    def find_removed(self, states: Sequence[Heartbeat | None]) -> int | None:
        """A rank whose spool was removed or emptied since an earlier call, else None; `states`: its `progress`.

        The whole folder may be removed before the first step of a rank is seen.
        """
        if not os.path.isdir(self._folder):
            return self._readers[0].rank
        removed = None
        for reader, state in zip(self._readers, states):
            if state is not None:
                self._seen.add(reader.rank)
            elif reader.rank in self._seen and removed is None:
                removed = reader.rank
        return removed

    def find_incomplete(self) -> int | None:
        """A rank that lacks facts although the run is done: its file was emptied meanwhile. On node 0 of any node."""
        ranks = range(self._world) if self._node == 0 else [reader.rank for reader in self._readers]
        for rank in ranks:
            kinds = {fact["kind"] for fact in SpoolReader(self._folder, rank).facts()}
            if not kinds >= REQUIRED:
                return rank
        return None

    def find_lost(self, states: Sequence[Heartbeat | None]) -> int | None:
        """A rank that ended before it finished; else None. `states`: its `progress`."""
        self._lost = None
        for reader, state in zip(self._readers, states):
            if self._is_lost(reader, state):
                self._lost = reader.rank
                break
        return self._lost

    def _is_lost(self, reader: SpoolReader, state: Heartbeat | None) -> bool:
        if is_done(state):
            return False
        if reader.exit() is not None:
            return True
        if state is not None and reader.rank not in self._pids:
            self._pids.update((fact["rank"], fact["pid"]) for fact in reader.facts() if fact["kind"] == "process")
        pid = self._pids.get(reader.rank)
        return pid is not None and processes.state(pid) in (None, "Z")

    def ends(self, report: Mapping[str, Any]) -> list[RankEnd]:
        """How ranks ended before they finished, as reported by their guards, else by the launcher's `report`."""
        ends: list[RankEnd] = []
        reported = {failure["rank"]: failure for failure in report.get("failures", [])}
        for reader, state in zip(self._readers, self.progress()):
            if is_done(state):
                continue
            rank, status = reader.rank, reader.exit()
            code: int | None
            if status is not None:
                code, end_time = status.code, status.time
            elif rank in reported:
                code, end_time = reported[rank]["exit_code"], reported[rank]["time"]
            elif rank == self._lost:
                code, end_time = None, time.time()
            else:
                continue
            phase, steps = "init", 0
            if state is not None:
                phase, steps = state.phase, state.steps
            ends.append(RankEnd(rank, self._node, code, end_time, phase, steps))
        return ends


def is_done(state: Heartbeat | None) -> bool:
    """Whether a rank has finished its work."""
    return state is not None and state.phase == "done"
