"""Supervises a run on one node: starts the sampler and the ranks, watches them, ends them, determines the outcome.

It does not import torch, so it survives any failure of the ranks.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from typing import Any, Mapping, NamedTuple, Sequence

from flagbench_cases.node import peers
from flagbench_cases.node.local_ranks import LocalRanks, has_started, is_done
from flagbench_cases.node.network import free_port, interface_towards
from flagbench_cases.node.outcome import RankEnd, may_be_secondary, outcome_of
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.progress import Bar, say
from flagbench_cases.record.evidence import OK, Evidence, Outcome, read_spool
from flagbench_cases.shared import processes, tf32_environment, user_home
from flagbench_cases.shared.errors import CaseError, system_error
from flagbench_cases.shared.interpreter import child_environment
from flagbench_cases.shared.interruption import SIGNALS, Interruption
from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.parallel_layout import layout_of
from flagbench_cases.shared.spool import Heartbeat
from flagbench_cases.telemetry.energy import Stretch
from flagbench_cases.telemetry.health import HealthReadings
from flagbench_cases.telemetry.latest import sensors_text
from flagbench_cases.telemetry.summary import read_start, summarise
from flagbench_core import python_module, scratch
from flagbench_core.case_kinds import kind_of
from flagbench_core.config import schedule
from flagbench_core.exit_codes import ExitCode

POLL = 0.1
"""Seconds between two looks at the ranks."""
START_POLL = 0.02
"""The same until the ranks may use their devices, which takes them and the sampler of telemetry about a second."""
START_SECONDS = 300.0
"""Limit until the ranks start: they import torch, possibly from a slow disk, and wait for the other nodes."""
DONE_SECONDS = 15.0
"""How long ranks may take to exit once every rank of this node has finished."""
SIGNAL_SKEW_SECONDS = 0.5
"""Processes of a run may receive a signal sent to all of them this many seconds apart."""
MONITOR_SECONDS = 60.0
"""How long the ranks wait for the sampler: without a persistence daemon, a driver takes seconds to start a device."""
MONITOR_SLOW_SECONDS = 5.0
"""After this many of these seconds, the wait for the sampler is explained on stderr."""
SAMPLER_SECONDS = 0.7
"""How long the sampler may take for its last line. It does not buffer, so little is lost if it is killed."""
MIN_FREE_BYTES = 2**16
"""Bytes: with less free space than this, a disk counts as full."""
FOLDERS = ("data", "weights", "resume", "checkpoints")
"""The options that name folders which a run reads or writes, in addition to that of its record."""
INTERRUPT_REMEDY = "run again; the record has what was measured until then"


class Limits(NamedTuple):
    """Time limits of a run, seconds: without progress, and in total."""

    no_progress: float
    total: float | None

    @property
    def joining(self) -> float:
        """How long to wait for the other nodes, seconds."""
        seconds = max(self.no_progress, START_SECONDS)
        if self.total is None:
            return seconds
        return min(seconds, self.total)


class Lasting:
    """Measures for how long a condition has held without a break."""

    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self, holds: bool, clock: float) -> float:
        """Seconds since the condition began to hold, at time `clock`; 0 if it does not hold."""
        if not holds:
            self._since = None
            return 0.0
        if self._since is None:
            self._since = clock
        return clock - self._since


class Run:
    """One run on this node, from creating the spool to removing it."""

    def __init__(
        self,
        config: dict[str, Any],
        stack: dict[str, Any],
        placement: Placement,
        limits: Limits,
        interruption: Interruption,
    ) -> None:
        self.config = config
        self.stack = stack
        self.placement = placement
        self.layout = layout_of(config)
        self.limits = limits
        scratch.remove_leftovers()
        self._scratch = scratch.Scratch()
        self.folder = self._scratch.folder
        gpus, node = config["gpus"], placement.node_rank
        self.own_ranks = range(node * gpus, (node + 1) * gpus)
        """The ranks of this node."""
        self.ranks = LocalRanks(self.folder, self.own_ranks, node, config["nodes"] * gpus)
        self._ends: list[RankEnd] = []
        """How ranks of this node ended before this process ended the others."""
        self.interruption = interruption
        self.peers = peers.no_peers()
        self._refused_forks = 0
        self._sampler: subprocess.Popen | None = None
        self._sampler_began = 0.0
        self._is_slow = False
        """Whether the sampler is slow, which the user was told."""
        self._silence: str | None = None
        """Why the sampler had written nothing when the ranks were released."""
        self._devices_seen = False
        """Whether the sampler has looked at the devices, or is not waited for any more."""
        self._telemetry = os.path.join(self.folder, "telemetry.jsonl")
        self._health = HealthReadings(stack["monitor"], self._telemetry)
        length = schedule(config)
        at_most = length["window_steps"] is None and length.get("target_acc") is not None
        unit = "lap" if length.get("laps") else "step"
        self.bar = Bar(sensors=lambda: sensors_text(self._telemetry), at_most=at_most, unit=unit)

    # -- the run ---------------------------------------------------------------------------------------------

    def execute(
        self,
        config_digest: str,
        folders: Mapping[str, str | None],
        run_id: str = "",
        roofs: dict[str, Any] | None = None,
    ) -> Outcome:
        """Execute the run; returns its outcome. `folders`: the given ones of FOLDERS; `roofs`: see Request."""
        processes.adopt_orphans()
        kills = processes.oom_kills()
        self._refused_forks = processes.refused_forks()
        self.bar.show(None)
        try:
            port = self.peers.port or self.placement.port or free_port()
            self._write_plan(config_digest, folders, run_id, roofs, port)
            self._start_sampler()
            self.ranks.start(dict(self.environment(), MASTER_ADDR=self.placement.host, MASTER_PORT=str(port)))
            outcome = self._watch()
            if outcome is not None:
                self.peers.report(outcome)
            # The ranks first: the sampler's last line should still show the device in use.
            spare = {self._sampler.pid} if self._sampler else set()
            processes.end_all(os.getpid(), spare=spare)
            if outcome is None:
                outcome = self._outcome(kills)
            if outcome.state == "ok":
                incomplete = self.ranks.find_incomplete()
                if incomplete is not None:
                    outcome = self._removed_outcome(incomplete)
            self.peers.report(outcome)
            # Before the sampler ends: without a persistence daemon it keeps the driver loaded.
            self._health.read_last(self.environment(), hurry=outcome.state == "interrupted")
            return outcome
        except KeyboardInterrupt:  # a second signal: end immediately
            processes.kill_all(os.getpid())
            raise
        finally:
            self.bar.end()
            self._stop_sampler()
            self._health.write()
            processes.end_all(os.getpid())
            self.ranks.close()

    def evidence(self) -> Evidence:
        """The evidence that the run left."""
        evidence = read_spool(self.folder, self.config["nodes"] * self.config["gpus"])
        exits: dict[int, int | None] = {end.rank: end.code for end in self._ends}
        summary = summarise(self._telemetry, self._training_span(evidence), self._window_stretches(evidence))
        reason = None
        if not summary:
            reason = self._silence or "the sampler wrote no samples"
        return evidence._replace(
            exits=exits,
            telemetry=summary,
            telemetry_reason=reason,
            monitor=read_start(self._telemetry) or {},
        )

    def remove_spool(self) -> None:
        """Remove the spool."""
        self._scratch.remove()

    # -- starting --------------------------------------------------------------------------------------------

    def _write_plan(
        self, config_digest: str, folders: Mapping[str, str | None], run_id: str, roofs: Any, port: int
    ) -> None:
        plan = {
            "config": self.config,
            "config_digest": config_digest,
            "stack": self.stack,
            "node_rank": self.placement.node_rank,
            "host": self.placement.host,
            "port": port,
            "join_timeout": max(self.limits.no_progress, START_SECONDS),
            "timeout": self.limits.no_progress,
            "run_id": run_id,
            "roofs": roofs,
            **{name: folders.get(name) for name in FOLDERS},
            "telemetry": self._telemetry,
        }
        with open(os.path.join(self.folder, "plan.json"), "w", encoding="utf-8") as file:
            json.dump(plan, file)

    def environment(self) -> dict[str, str]:
        """The environment of every child: this package importable, precision switches, threads limited to the node's
        cores, and, unless set, the publisher's variables."""
        env = child_environment()
        # The platform's RANK or WORLD_SIZE would conflict with those of the launcher.
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            env.pop(name, None)
        tf32_environment.prepare_environment(env, self.config["precision"])
        if self.stack["device"]["kind"] != "cpu":
            for name, value in load_case(self.config["case"]).get("environment", {}).items():
                env.setdefault(name, value)
            # By default CUDA orders devices by speed and NVML by bus: on a mixed node they would differ.
            env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if self.stack["device"]["kind"] == "cpu" or self.config["gpus"] > 1:
            cores = len(os.sched_getaffinity(0))
            env.setdefault("OMP_NUM_THREADS", str(max(1, cores // self.config["gpus"])))
        interface = interface_towards(self.placement.host)
        if interface is not None:
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
        env.setdefault("TOKENIZERS_PARALLELISM", "false")
        user_home.prepare(env, os.path.join(self.folder, "home"))
        return env

    def _start_sampler(self) -> None:
        env = self.environment()
        devices = ",".join(str(i) for i in range(self.config["gpus"]))
        command = [sys.executable, *python_module.options("flagbench_cases.telemetry"), "--out", self._telemetry]
        command += ["--monitor", self.stack["monitor"], "--pid", str(os.getpid())]
        if self.stack["device"]["kind"] != "cpu":
            command += ["--devices", devices]
        self._sampler_began = time.monotonic()
        command += ["--used-from", str(self._sampler_began + MONITOR_SECONDS)]
        self._sampler = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)

    def _has_seen_devices(self) -> bool:
        """Whether the sampler has taken its first sample, has ended, or is not waited for any more."""
        assert self._sampler is not None
        if self._sampler.poll() is not None:
            return True
        if os.path.exists(self._telemetry) and os.path.getsize(self._telemetry):
            return True
        waited = time.monotonic() - self._sampler_began
        monitor = self.stack["monitor"]
        if waited > MONITOR_SECONDS:
            self._silence = f"the monitor {monitor} gave no answer in {waited:.0f} s"
            return True
        has_driver = self.stack["device"]["kind"] != "cpu"
        if waited > MONITOR_SLOW_SECONDS and has_driver and not self._is_slow:
            self._is_slow = True
            say(f"the monitor {monitor} has not answered yet; a persistence daemon keeps a driver loaded")
        return False

    def _release_ranks(self, states: Sequence[Heartbeat | None]) -> bool:
        """Let the ranks use their devices, once the sampler has seen what used them before. Returns if all may."""
        if not self._devices_seen:
            if not self._has_seen_devices():
                return False
            self._devices_seen = True
            self._health.start_first(self.environment())
        return self.ranks.release(states)

    def _stop_sampler(self) -> None:
        if self._sampler is not None and self._sampler.poll() is None:
            self._sampler.terminate()
            if _wait(self._sampler, SAMPLER_SECONDS) is None:
                self._sampler.kill()
                _wait(self._sampler, SAMPLER_SECONDS)

    # -- watching --------------------------------------------------------------------------------------------

    def _watch(self) -> Outcome | None:
        """Wait until a rank fails or all have ended (None), or for an interruption, a hang or the time limit."""
        began = moved = time.monotonic()
        beats: list[int] = []
        released = False
        done = Lasting()
        while self.ranks.running():
            if self.interruption.received:
                return self._interrupted()
            elsewhere = self._failed_elsewhere()
            if elsewhere is not None:
                return elsewhere
            states = self.ranks.progress()
            removed = self.ranks.find_removed(states)
            if removed is not None:
                return self._removed_outcome(removed)
            self.bar.show(states[0])
            clock = time.monotonic()
            if not released:
                released = self._release_ranks(states)
            current = [-1 if state is None else state.beat for state in states]
            if current != beats:
                beats, moved = current, clock
            if clock - moved > self._silence_limit(states):
                return self._hang_outcome(clock - moved)
            self._ends = self.ranks.find_ends()
            if self._ends:
                break
            done_seconds = done.seconds(all(map(is_done, states)), clock)
            if done_seconds > DONE_SECONDS:
                if self.ranks.all_reported():
                    return OK
                return self._hang_outcome(done_seconds)
            if self.limits.total is not None and clock - began > self.limits.total:
                return self._time_limit_outcome(self.limits.total)
            if released:
                time.sleep(POLL)
            else:
                time.sleep(START_POLL)
        self._ends = self.ranks.find_ends()
        if self._was_interrupted():
            return self._interrupted()
        return None

    def _silence_limit(self, states: Sequence[Heartbeat | None]) -> float:
        """How long no rank may make progress, seconds: longer until all of them have started."""
        if all(map(has_started, states)):
            return self.limits.no_progress
        return max(self.limits.no_progress, START_SECONDS)

    def _time_limit_outcome(self, seconds: float) -> Outcome:
        reason = f"it did not end within its limit of {seconds:.0f} s"
        remedy = "increase --max-minutes (of accept: --minutes), or use fewer --steps"
        return Outcome("failed", self.ranks.phase(), reason, remedy, ExitCode.TIMEOUT)

    def _was_interrupted(self) -> bool:
        """Whether ranks ended because this run was interrupted.

        A signal to every process of a container or job reaches the ranks and this process in any order. If it has
        ended a rank, wait briefly for this process to receive it too.
        """
        signalled = any(-end.code in SIGNALS for end in self._ends)
        deadline = time.monotonic() + SIGNAL_SKEW_SECONDS
        while signalled and not self.interruption.received and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.interruption.received and bool(self._ends)

    def _failed_elsewhere(self) -> Outcome | None:
        """The outcome caused by another node; None while no node has failed."""
        self.peers.poll(self._state)
        outcome = self.peers.find_failure(self.ranks.phase())
        if outcome is None:
            return None
        if self.peers.interrupted() and self.peers.wait_for_interruption(self.interruption):
            return self._interrupted()
        return outcome

    def _state(self) -> dict[str, Any]:
        """The state of this node's ranks that is sent to the other nodes."""
        return {"stopped": self.ranks.stopped(), "steps": self.ranks.steps()}

    def _interrupted(self) -> Outcome:
        if not self.peers.interrupted():
            # A cluster may stop this node because another one died, before this node notices it.
            cause = self.peers.wait_for_failure(self.ranks.phase(), peers.NODE_SKEW_SECONDS)
            if cause is not None and not self.peers.interrupted():
                return cause
        remedy = INTERRUPT_REMEDY
        if self.placement.nodes > 1:
            remedy = "run again"
        return Outcome("interrupted", self.ranks.phase(), self.interruption.reason, remedy, ExitCode.INTERRUPTED)

    def _removed_outcome(self, rank: int) -> Outcome:
        """The outcome if the spool of a rank was removed or emptied, since further measurements would be lost."""
        where = f"{self.layout.name(rank)} on node {rank // self.config['gpus']}"
        reason = f"the spool of {where} was removed or emptied during the run"
        remedy = f"find out what cleans {os.path.dirname(self.folder)}, or set TMPDIR"
        return Outcome("failed", "launch", reason, remedy, ExitCode.RANK_FAILED)

    def _hang_outcome(self, seconds: float) -> Outcome:
        """The outcome of a hang. It names stopped processes, or the steps done by each rank."""
        stopped: list[Any] = [self.ranks.stopped()]
        steps: list[Any] = [self.ranks.steps()]
        for state in self.peers.states().values():
            stopped.append(state.get("stopped"))
            steps.append(state.get("steps"))
        details = []
        for rank, pid in merge_by_rank(stopped):
            details.append(f"{self.layout.name(rank)} (process {pid}) is stopped, frozen or blocked in the kernel")
        if not details:
            details = [f"{self.layout.name(rank)} has done {done} steps" for rank, done in merge_by_rank(steps)]
        if not details:
            details = ["no rank has started"]
        text = "; ".join(details + self.peers.silent_nodes())
        reason = f"no progress for {seconds:.0f} s: {text}"
        remedy = "check the node of that rank; if steps are merely slow, increase --timeout"
        return Outcome("failed", self.ranks.phase(), reason, remedy, ExitCode.TIMEOUT)

    # -- outcome ---------------------------------------------------------------------------------------------

    def _outcome(self, kills_before: int | None) -> Outcome:
        """Why a rank failed, or whether all have finished."""
        kills = processes.oom_kills()
        failures = self.ranks.facts("failure")
        outcome = outcome_of(
            failures,
            self._ends,
            self.layout,
            done=self.ranks.all_reported(),
            memory_killed=kills is not None and kills_before is not None and kills > kills_before,
            phase=self.ranks.phase(),
        )
        if outcome.exit_code == ExitCode.RANK_FAILED:
            exhausted = self._exhausted_resource()
            if exhausted is not None and exhausted.message not in (outcome.reason or ""):
                # A process that lacks a resource often cannot report it.
                outcome = outcome._replace(reason=f"{exhausted.message}; {outcome.reason}", remedy=exhausted.remedy)
        if outcome.state == "ok" or not may_be_secondary(failures, self._ends):
            return outcome
        # This is usually a consequence of the failure of another node, which knows the cause.
        return self.peers.wait_for_failure(outcome.phase) or outcome

    def _exhausted_resource(self) -> CaseError | None:
        """A resource, other than memory, that this node has run out of: processes, or disk space for the spool."""
        folder = os.path.dirname(self.folder)
        if processes.refused_forks() > self._refused_forks:
            return system_error(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), folder)
        room = os.path.join(self.folder, "room")
        try:
            with open(room, "wb") as file:
                file.write(bytes(MIN_FREE_BYTES))
            os.unlink(room)
        except OSError as error:
            return system_error(error, folder)
        return None

    def _training_span(self, evidence: Evidence) -> tuple[float, float] | None:
        """Start and end of training, Unix seconds, from rank 0's phases."""
        phases = [fact for fact in evidence.all("phase") if fact["rank"] == 0]
        times = {fact["name"]: fact["time"] for fact in reversed(phases)}
        if "warmup" not in times:
            return None
        return times["warmup"], times.get("report", time.time())

    def _window_stretches(self, evidence: Evidence) -> dict[int, list[Stretch]]:
        """By device of this node, when its rank took the steps of the record's window."""
        kind = kind_of(self.config)
        stretches: dict[int, list[Stretch]] = {}
        for fact in evidence.all("window"):
            if fact["name"] == kind and fact["rank"] in self.own_ranks:
                times = (fact["time"] - fact["seconds"], fact["time"])
                device = fact["rank"] - self.own_ranks.start
                stretches.setdefault(device, []).append(Stretch(fact["steps"], times))
        return stretches


def merge_by_rank(reports: Sequence[Any]) -> list[tuple[int, int]]:
    """Numbers by rank from several nodes, in rank order. Messages of other nodes are validated."""
    merged: dict[int, int] = {}
    for numbers in reports:
        if not isinstance(numbers, dict):
            continue
        for rank, number in numbers.items():
            if re.fullmatch("[0-9]{1,9}", str(rank)) and isinstance(number, int):
                merged[int(rank)] = number
    return sorted(merged.items())


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """A process's exit code; None on timeout, for example if it is blocked in a driver call."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
