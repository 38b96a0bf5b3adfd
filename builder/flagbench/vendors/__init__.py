"""Accelerators as their vendors' tools show them: a module here for each vendor, with `find` and `usage`."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

PATIENCE_S = 5.0
"""How long a vendor's tool may take; it hangs where a driver does."""
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str
    """As the driver reports it."""
    memory_gib: float | None
    uuid: str
    partition: bool = False
    """Whether only a part of it can be used (MIG): no published row is for that."""


@dataclass(frozen=True)
class DeviceState:
    """What an accelerator is set to. What its tool does not say is None."""

    uuid: str
    driver: str | None = None
    partitioned: bool = False
    """Whether it is divided into parts (MIG)."""
    power_limit_w: float | None = None
    power_default_w: float | None = None


@dataclass(frozen=True)
class Usage:
    """The state of accelerators, and what else runs on them."""

    devices: tuple[DeviceState, ...] = ()
    processes: tuple[tuple[str, str], ...] = ()
    """Of each program the UUID of its device, and its name: `python (pid 4711)`."""


class Vendor(Protocol):
    """A vendor's tool. Nothing raises where it is missing, hangs or prints something else."""

    def find(self, path: str) -> tuple[tuple[Device, ...], str | None]:
        """Its devices, or why there are none; None if the tool is not installed. `path`: as the variable PATH."""

    def usage(self, path: str) -> Usage:
        """What is known of its devices."""


def vendors() -> Iterator[Vendor]:
    """Every module here."""
    for module in pkgutil.iter_modules(__path__):
        yield cast(Vendor, importlib.import_module(f"{__name__}.{module.name}"))


def tool_output(command: list[str]) -> tuple[str | None, str | None]:
    """What a command prints on stdout, or None and why. A process that hangs in the kernel is not waited for."""
    import select
    import subprocess  # machines without such a tool do without

    deadline = time.monotonic() + PATIENCE_S
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        return None, f"cannot be started: {error.strerror or error}"
    output = bytearray()
    assert process.stdout is not None
    with process.stdout as stream:
        while (left := deadline - time.monotonic()) > 0 and len(output) <= _MOST_BYTES:
            if select.select([stream], [], [], left)[0]:
                block = os.read(stream.fileno(), 1 << 16)
                if not block:
                    break
                output += block
    too_much = len(output) > _MOST_BYTES
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0 if too_much else max(0.0, deadline - time.monotonic()))
    if code is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if too_much:
        return None, "printed more than a list"
    if code is None:
        return None, f"did not answer within {PATIENCE_S:g} s"
    if code:
        return None, f"failed with exit code {code}"
    return output.decode("utf-8", "replace"), None
