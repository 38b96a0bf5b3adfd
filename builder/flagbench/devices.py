"""This machine's accelerators, as their vendor's tool names them, and the published rows that are of them."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from flagbench.claims.cards import Card, cards
from flagbench.manifests.model import Case, Catalog, Claim, Stack

PATIENCE_S = 5.0
"""How long a vendor's tool may take; it hangs where a driver does."""
_MOST_BYTES = 1 << 20
_METAX_PLACES = ("/opt/mxdriver/bin", "/opt/maca/bin")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str
    """As the driver reports it."""
    memory_gib: float | None
    uuid: str | None
    partition: bool = False
    """Whether only a part of it can be used (MIG): no published row is of that."""


@dataclass(frozen=True)
class Machine:
    """What was found on this machine."""

    devices: tuple[Device, ...]
    visible: int
    """How many of them a run would see, by CUDA_VISIBLE_DEVICES."""
    problem: str | None = None
    """Why an installed tool gave no answer; None if it answered or is not installed."""

    @property
    def described(self) -> str:
        """`8 x NVIDIA A100-SXM4-40GB`; several models are joined by `and`."""
        counts: dict[str, int] = {}
        for device in self.devices:
            name = f"{device.name}{' (partitioned)' if device.partition else ''}"
            counts[name] = counts.get(name, 0) + 1
        return " and ".join(f"{count} x {name}" for name, count in counts.items())


def this_machine() -> Machine:
    """The accelerators here. Asks each vendor's tool once in a process, for at most PATIENCE_S; never raises."""
    devices, problem = _found(os.environ.get("PATH", os.defpath))
    visible = os.environ.get(_VISIBLE)
    return Machine(devices, len(devices) if visible is None else _visible(visible, devices), problem)


def cards_here(machine: Machine, catalog: Catalog, *, partitions: bool = False) -> tuple[Card, ...]:
    """The accelerators of the manifests that this machine has, each once; with `partitions` also as parts of them."""
    known = cards(catalog)
    found: dict[str, Card] = {}
    for device in machine.devices:
        if partitions or not device.partition:
            found.update((card.name, card) for card in known if device.name in (*card.names, card.name))
    return tuple(found.values())


def claims_here(machine: Machine, catalog: Catalog) -> tuple[Claim, ...]:
    """The rows that were published for this machine's devices, those for as many devices as are visible first."""
    names = {card.name for card in cards_here(machine, catalog)}
    rows = [claim for claim in catalog.claims.values() if claim.conditions.get("device_model") in names]
    return tuple(sorted(rows, key=lambda claim: claim.conditions.get("devices") != machine.visible))


def closest_claims(machine: Machine, catalog: Catalog) -> tuple[str, tuple[Claim, ...]]:
    """The published device whose name is most like this machine's, and its rows; no match: an empty name."""
    rows: dict[str, list[Claim]] = {}
    for claim in catalog.claims.values():
        rows.setdefault(str(claim.conditions.get("device_model")), []).append(claim)
    if not machine.devices or not rows:
        return "", ()
    name = machine.devices[0].name
    best = max(rows, key=lambda other: _likeness(name, other))
    return best, tuple(rows[best])


def stacks_here(machine: Machine, catalog: Catalog, case: Case) -> tuple[Stack, ...]:
    """The stacks that run a case on this machine's device: those of its published rows first.

    On a machine without an accelerator, those of the processor; on one with several models, none.
    """
    able = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    if not machine.devices:
        return tuple(stack for stack in able if stack.device_kind == "cpu")
    if len({device.name for device in machine.devices}) > 1:
        return ()
    names = {card.name for card in cards_here(machine, catalog, partitions=True)}
    fitting = [stack for stack in able if any(entry.name in names for entry in stack.accelerators)]
    published = [claim.stack for claim in claims_here(machine, catalog) if claim.case == case.name]
    order = {name: place for place, name in reversed(list(enumerate(published)))}
    return tuple(sorted(fitting, key=lambda stack: order.get(stack.name, len(published))))


def _likeness(name: str, other: str) -> tuple[bool, int, float]:
    """By the model's own word (A100), then by what else is shared."""
    left, right = (set(re.findall(r"[a-z0-9]+", text.lower())) for text in (name, other))
    models = {word for word in left & right if re.fullmatch(r"[a-z]{1,3}\d+[a-z]?", word) and word[:3] != "hbm"}
    return bool(models), len(left & right), difflib.SequenceMatcher(None, name, other).ratio()


def _visible(value: str, devices: Sequence[Device]) -> int:
    """How many devices CUDA_VISIBLE_DEVICES leaves: its entries up to the first invalid one (CUDA C++ Programming
    Guide, environment variables)."""
    count = 0
    for entry in value.split(",") if value.strip() else ():
        token = entry.strip()
        index = token.isascii() and token.isdigit() and int(token) < len(devices)
        named = token.startswith("GPU-") and any((device.uuid or "").startswith(token) for device in devices)
        if not (index or named or token.startswith("MIG-")):
            break
        count += 1
    return count


@cache
def _found(path: str) -> tuple[tuple[Device, ...], str | None]:
    problem = None
    for ask in (_nvidia, _metax):
        devices, why = ask(path)
        if devices:
            return devices, None
        problem = problem or why
    return (), problem


Answer = tuple[tuple[Device, ...], str | None]


def _nvidia(path: str) -> Answer:
    tool = shutil.which("nvidia-smi", path=path)
    if tool is None:
        return (), None
    query = [tool, "--query-gpu=name,memory.total,uuid", "--format=csv"]
    answer, problem = _devices("nvidia-smi", query, parse_nvidia)
    if any(device.memory_gib is None for device in answer):
        # In a container with a part of a device, its memory is not shown; the list then has its parts.
        listed, _ = tool_output([tool, "-L"])
        if listed is not None and re.search(r"^\s+MIG\s", listed, re.MULTILINE):
            answer = tuple(Device(one.name, one.memory_gib, one.uuid, partition=True) for one in answer)
    if any(token.strip().startswith("MIG-") for token in os.environ.get(_VISIBLE, "").split(",")):
        answer = tuple(Device(one.name, one.memory_gib, one.uuid, partition=True) for one in answer)
    return answer, problem


def _metax(path: str) -> Answer:
    tool = shutil.which("mx-smi", path=os.pathsep.join((path, *_METAX_PLACES)))
    return ((), None) if tool is None else _devices("mx-smi", [tool, "-L"], parse_metax)


def _devices(name: str, command: list[str], parse: Callable[[str], Iterable[Device]]) -> Answer:
    text, problem = tool_output(command)
    if text is None:
        return (), f"{name} {problem}"
    found = tuple(parse(text))
    return found, None if found or not text.strip() else f"{name} printed no device in a known form"


def parse_nvidia(text: str) -> tuple[Device, ...]:
    """The devices in the CSV of `nvidia-smi --query-gpu=name,memory.total,uuid`; other lines are skipped."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"\s*([^,\x00-\x1f]{1,100}?)\s*,\s*([^,]*?)\s*,\s*((?:GPU|MIG)-[0-9A-Za-z/-]+)\s*", line)
        if match:
            amount = re.fullmatch(r"(\d{1,9})(?:\s*MiB)?", match[2])
            memory = int(amount[1]) / 1024 if amount else None
            whole, part, _ = match[1].partition(" MIG ")
            found.append(Device(whole, memory, match[3], bool(part) or match[3].startswith("MIG-")))
    return tuple(found)


def parse_metax(text: str) -> tuple[Device, ...]:
    """The devices that `mx-smi -L` lists, in the forms of its versions 2.1.12 and 2.2.9."""
    pattern = (
        r"^\s*GPU\s*#?\d+\s*:?\s+(?P<name>\S[^(\n]*?)"
        r"(?:\s+[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])?(?:\s+(?:Available|Unavailable))?"
        r"\s*\(UUID:\s*(?P<uuid>[^)\s]+)\s*\)\s*$"
    )
    return tuple(Device(match["name"], None, match["uuid"]) for match in re.finditer(pattern, text, re.MULTILINE))


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
