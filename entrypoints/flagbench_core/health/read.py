"""Reads the health of devices in a child process, so that a driver that hangs does not stall the caller.

The child is `python -m flagbench_core.health` (see __main__.py); this module starts it, waits for it and ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence

from flagbench_core import python_module
from flagbench_core.health.reading import NO_ANSWER, DeviceHealth, HealthReading, device_health

READ_SECONDS = 60.0
"""The most seconds that a reading may take. A faulty device has delayed one for 45 s (DCGM issue 313)."""
_END_SECONDS = 0.5
"""How long a killed child is waited for. A child that is blocked in a driver call cannot end."""
_BLOCK_BYTES = 2**16
"""The capacity of a pipe: the most that one read returns."""


class PendingReading:
    """A reading in progress. `collect` waits for its result and ends it."""

    def __init__(
        self, monitor: str, uuids: Optional[Sequence[str]], child_seconds: float, env: Optional[Mapping[str, str]]
    ):
        """Start the child; see `start_reading`. If it cannot be started, `collect` says why."""
        self._uuids = uuids
        self._problem: Optional[str] = None
        self._began = time.monotonic()
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        command = [sys.executable, *python_module.options("flagbench_core.health"), monitor]
        command.append("%g" % child_seconds)
        if uuids is not None:
            command += uuids
        environment = None
        if env is not None:
            environment = dict(env)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # so that the child and what it starts can be ended together
            )
        except OSError as error:
            self._problem = "a process to read health cannot be started (%s)" % (error.strerror or error)

    def collect(self, wait_seconds: float) -> HealthReading:
        """Wait for the result for at most `wait_seconds`. Devices without an answer by then are `unanswered`."""
        if self._process is None:
            return _combine([], self._uuids, self._problem or "")
        assert self._process.stdout is not None
        with self._process.stdout:
            text = _read_until_end(self._process.stdout.fileno(), time.monotonic() + wait_seconds)
        self._end()
        lines = []
        for line in text.split(b"\n"):
            # A line that is not JSON is skipped: the child may have been killed while it wrote its last one.
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line.decode("utf-8")))
        waited = time.monotonic() - self._began
        return _combine(lines, self._uuids, "%s in %.0f s" % (NO_ANSWER, waited))

    def _end(self) -> None:
        """End the child and what it started. One that is blocked in the kernel is left behind."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)


def start_reading(
    monitor: str,
    uuids: Optional[Sequence[str]] = None,
    child_seconds: float = READ_SECONDS,
    env: Optional[Mapping[str, str]] = None,
) -> PendingReading:
    """Start a reading in the background.

    Args:
        monitor: the name of the stack's monitor: `nvml` (NVML, else nvidia-smi), `amd-smi`, or `mx-smi`, of which no
            health is read: the reading then has that as its problem.
        uuids: the UUIDs of the devices to read, in the order of the result. With None, all devices that the monitor
            lists are read; if it lists none, the reading has no devices, only a problem.
        child_seconds: the time after which the child ends itself, even if nobody collects its result.
        env: the environment of the child; by default that of this process.
    """
    return PendingReading(monitor, uuids, child_seconds, env)


def read_health(monitor: str, uuids: Optional[Sequence[str]] = None, seconds: float = READ_SECONDS) -> HealthReading:
    """Read the health of the devices once, for at most `seconds`. Never raises; see `start_reading`."""
    return start_reading(monitor, uuids, child_seconds=seconds).collect(wait_seconds=seconds)


def _read_until_end(descriptor: int, deadline: float) -> bytes:
    """Everything that can be read before the writer closes the pipe, or before `deadline` (monotonic seconds)."""
    text = b""
    while True:
        remaining = deadline - time.monotonic()
        ready, _, _ = select.select([descriptor], [], [], max(0.0, remaining))
        if not ready:
            return text
        block = os.read(descriptor, _BLOCK_BYTES)
        if not block:
            return text
        text += block


def _combine(lines: List[Dict[str, Any]], uuids: Optional[Sequence[str]], silence: str) -> HealthReading:
    """The reading from the lines of the child.

    The child prints its first line before all others: a `problem`, or the `source` and the `devices`, each at least
    with what identifies it. Each further line replaces the device at a `place` of that list. See __main__.py.

    Args:
        lines: the lines that arrived, in this order.
        uuids: the UUIDs that were requested, each of which gets a device in the reading; None for all devices.
        silence: why a device has no line of its own, or why there is no line at all.
    """
    problem: Optional[str] = silence
    source = None
    devices: List[DeviceHealth] = []
    for line in lines:
        if "problem" in line:
            problem = line["problem"]
        elif "devices" in line:
            problem = None
            source = line["source"]
            for values in line["devices"]:
                device = device_health(values)
                devices.append(replace(device, unanswered=device.unanswered or silence))
        else:
            devices[line["place"]] = device_health(line["device"])
    if uuids is None:
        return HealthReading(tuple(devices), source, problem)
    if problem is not None:  # the child printed no list of devices
        devices = [DeviceHealth(uuid=uuid, unanswered=problem) for uuid in uuids]
    numbered = [replace(device, index=place) for place, device in enumerate(devices)]
    return HealthReading(tuple(numbered), source, problem)
