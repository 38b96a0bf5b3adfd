"""`python -m flagbench_core.health MONITOR SECONDS [UUID ...]`: the child process that reads health.

Prints lines of JSON as soon as they are known. The first has `source` and `devices`, all devices with what identifies
them, or else only `problem`, the reason why there are none. Then there is a line for each device: its `place` in the
first line, and `device`, everything that was read of it.

Each device is read in a thread of its own, so that a device that stalls does not hide the others. The process ends
after SECONDS, even if a driver hangs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from typing import Any, Dict, List, Optional, Protocol, Sequence

from flagbench_core.health.amd_smi import AmdSmiReader
from flagbench_core.health.nvidia_smi import NvidiaSmiReader
from flagbench_core.health.nvml import NvmlError, NvmlReader
from flagbench_core.health.reading import DeviceHealth, choose_devices
from flagbench_core.health.tools import ToolError


class _Reader(Protocol):
    """Reads the devices of one vendor."""

    source: str

    def open(self) -> List[DeviceHealth]:
        """List the devices, each at least with what identifies it. Raises NvmlError or ToolError."""

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """Read everything of one device that `open` returned."""


_READERS: Dict[str, Sequence[Any]] = {
    "nvml": (NvmlReader, NvidiaSmiReader),
    "amd-smi": (AmdSmiReader,),
}
"""The readers by the name of a stack's monitor; the first one that opens is used. There is none for mx-smi: how it
prints health is not known."""


def main(argv: Sequence[str]) -> None:
    """Read and print until everything is known or the time is over."""
    monitor = argv[0]
    seconds = float(argv[1])
    uuids = list(argv[2:]) or None
    deadline = time.monotonic() + seconds
    reading = threading.Thread(target=_read_all, args=(monitor, uuids), daemon=True)
    reading.start()
    reading.join(max(0.0, deadline - time.monotonic()))


def _read_all(monitor: str, uuids: Optional[List[str]]) -> None:
    """Read and print the devices with the first reader that opens, or print why none does."""
    problems = []
    for create in _READERS.get(monitor, ()):
        reader: _Reader = create()
        try:
            listed = reader.open()
        except (NvmlError, ToolError) as error:
            problems.append(str(error))
            continue
        _read_with(reader, listed, uuids)
        return
    _print({"problem": "; ".join(problems) or "the monitor %s reads no health" % monitor})


def _read_with(reader: _Reader, listed: List[DeviceHealth], uuids: Optional[List[str]]) -> None:
    """Print the requested ones of the listed devices, then read and print each of them in a thread."""
    chosen = choose_devices(listed, uuids)
    _print({"source": reader.source, "devices": [device.to_dict() for device in chosen]})
    threads = []
    for place, device in enumerate(chosen):
        thread = threading.Thread(target=_read_one, args=(reader, device, place), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _read_one(reader: _Reader, device: DeviceHealth, place: int) -> None:
    """Read one device and print it."""
    if device.answered and device.index is not None:  # a part of a device has no number, and cannot be read
        try:
            device = reader.read(device)
        except Exception as error:  # an unknown binding or driver may answer in an unknown way
            device = replace(device, unanswered="it cannot be read: %s: %s" % (type(error).__name__, error))
    _print({"place": place, "device": device.to_dict()})


def _print(line: Dict[str, Any]) -> None:
    """Print a line with one write, so that lines of threads do not mix: a pipe takes up to 4096 bytes at once."""
    os.write(1, json.dumps(line, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # a thread may still wait for a driver
