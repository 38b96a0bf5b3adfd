"""`python -m flagbench_core.health MONITOR SECONDS [UUID ...]`: the child process that reads health.

Prints lines of JSON as soon as they are known: first one with all devices, then one for each that answered. A thread
for each device reads it, so that one that stalls does not hide the others. Ends after SECONDS, whoever hangs.
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
        """Each device, with what identifies it at least. Raises NvmlError or ToolError."""

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """Everything of one device that `open` gave."""


_READERS: Dict[str, Sequence[Any]] = {
    "nvml": (NvmlReader, NvidiaSmiReader),
    "amd-smi": (AmdSmiReader,),
}
"""By the name of a stack's monitor; the first that opens counts. How mx-smi prints health is not known."""


def main(argv: Sequence[str]) -> None:
    """Read and print until everything is known."""
    monitor, seconds, uuids = argv[0], float(argv[1]), list(argv[2:]) or None
    deadline = time.monotonic() + seconds
    reading = threading.Thread(target=_read_all, args=(monitor, uuids), daemon=True)
    reading.start()
    reading.join(max(0.0, deadline - time.monotonic()))


def _read_all(monitor: str, uuids: Optional[List[str]]) -> None:
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
    if device.answered and device.index is not None:  # a part of a device has no number
        try:
            device = reader.read(device)
        except Exception as error:  # of a binding or driver that answers otherwise than any that is known
            device = replace(device, unanswered="it cannot be read: %s: %s" % (type(error).__name__, error))
    _print({"place": place, "device": device.to_dict()})


def _print(line: Dict[str, Any]) -> None:
    """One write for each line: lines of threads do not mix, up to the size of a pipe's atomic write."""
    os.write(1, json.dumps(line, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # a thread may still wait for a driver
