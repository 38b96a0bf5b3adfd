"""The ranks of one node: starts their processes, and reads how far they are from their spool."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any, Mapping, Sequence

from flagbench_cases.node.outcome import RankEnd
from flagbench_cases.node.progress import LAUNCH
from flagbench_cases.shared import processes
from flagbench_cases.shared.spool import Heartbeat, SpoolReader
from flagbench_core import python_module

REQUIRED = frozenset(("process", "rank", "precision", "plan", "timing", "memory", "ceiling"))
"""The facts that every rank has written by the end of a run."""


class LocalRanks:
    """The ranks `ranks` of node `node`, whose spool is `folder`, in a job of `world` ranks.

    This process is the parent of each: it learns the exit status of a rank and when it ended. A rank dies with it.
    """

    def __init__(self, folder: str, ranks: Sequence[int], node: int, world: int) -> None:
        self._folder = folder
        self._readers = [SpoolReader(folder, rank) for rank in ranks]
        self._node = node
        self._world = world
        self._processes: list[subprocess.Popen[bytes]] = []
        self._released = 0
        """How many of the processes may use their devices."""
        self._started: set[int] = set()
        """The ranks of which a heartbeat was read."""

    # -- processes -------------------------------------------------------------------------------------------

    def start(self, environment: Mapping[str, str]) -> None:
        """Start a process for each rank. Raises OSError.

        They import torch, but use no device before `release`. Call this in the main thread: the kernel ends a rank
        with the thread that started it.

        Args:
            environment: the variables of every rank. Those by which ranks differ are added, as by torch's launcher.
        """
        for local_rank, reader in enumerate(self._readers):
            variables = {
                "RANK": reader.rank,
                "LOCAL_RANK": local_rank,
                "WORLD_SIZE": self._world,
                "LOCAL_WORLD_SIZE": len(self._readers),
            }
            process = subprocess.Popen(
                [sys.executable, "-u", *python_module.options("flagbench_cases.rank.worker"), self._folder],
                env={**environment, **{name: str(value) for name, value in variables.items()}},
                # A byte lets the rank use its device. The end of the pipe says that this process has ended.
                stdin=subprocess.PIPE,
                bufsize=0,
                # A new session: Ctrl-C on the terminal is handled by this process, not by the ranks.
                start_new_session=True,
            )
            self._processes.append(process)

    def release(self, heartbeats: Sequence[Heartbeat | None]) -> bool:
        """Let the first rank use its device, and the others once it has checked the node. Returns whether all may.

        Args:
            heartbeats: what `progress` returned. The heart of the first rank beats once its check has succeeded.
        """
        allowed = 1
        if heartbeats[0] is not None and heartbeats[0].beat > 0:
            allowed = len(self._processes)
        while self._released < allowed:
            gate = self._processes[self._released].stdin
            assert gate is not None
            with contextlib.suppress(BrokenPipeError):  # that rank has ended
                gate.write(b"\n")
            self._released += 1
        return self._released == len(self._processes)

    def running(self) -> bool:
        """Whether a process is still running."""
        return any(process.poll() is None for process in self._processes)

    def find_ends(self) -> list[RankEnd]:
        """How ranks ended that did not finish their work, or ended with an error after it."""
        ends = []
        for process, reader in zip(self._processes, self._readers):
            code = process.poll()
            if code is None:
                continue
            heartbeat = reader.progress() or LAUNCH  # after `poll`, so it is the last one
            if code != 0 or not is_done(heartbeat):
                ends.append(RankEnd(reader.rank, self._node, code, heartbeat.phase, heartbeat.steps))
        return ends

    def close(self) -> None:
        """Close the pipes to the ranks: the host of torch's store, which outlives them, ends too."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()

    # -- progress --------------------------------------------------------------------------------------------

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
        """Steps done, by rank, of the ranks that have started."""
        steps = {}
        for reader, heartbeat in zip(self._readers, self.progress()):
            if heartbeat is not None and has_started(heartbeat):
                steps[reader.rank] = heartbeat.steps
        return steps

    def stopped(self) -> dict[int, int]:
        """Process ids of the ranks that are stopped (SIGSTOP), frozen or blocked in the kernel, by rank."""
        pids = {}
        for process, reader in zip(self._processes, self._readers):
            if process.poll() is None:  # one that is importing torch has no facts yet
                pids[reader.rank] = process.pid
        pids.update((fact["rank"], fact["pid"]) for fact in self.facts("process"))
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


def has_started(heartbeat: Heartbeat | None) -> bool:
    """Whether a rank has met all ranks of the job, and begun its work."""
    return heartbeat is not None and heartbeat.phase != "launch"


def is_done(heartbeat: Heartbeat | None) -> bool:
    """Whether a rank has finished its work."""
    return heartbeat is not None and heartbeat.phase == "done"


def _facts_of_kind(reader: SpoolReader, kind: str) -> list[dict[str, Any]]:
    return [fact for fact in reader.facts() if fact["kind"] == kind]
