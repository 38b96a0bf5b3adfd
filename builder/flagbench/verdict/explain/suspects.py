"""Causes that are known to cost time, but not how much: at most what measured causes leave of the gap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flagbench.terminal import brief
from flagbench.verdict.conditions import Agreement, ConditionResult, gate_conditions, shown
from flagbench.verdict.disturbances import MUCH_MEMORY
from flagbench.verdict.explain.losses import ACTIONS, longest_throttling, power_limits, slower_precision
from flagbench.verdict.explain.run import Run

_SLOW_KERNELS = {
    "attention": ("unfused",),
    "adamw": ("torch",),
    "layer_norm": ("torch",),
    "optimizer": ("torch.optim.adamw.AdamW",),
}
"""By the name that `quality.training` has for a kernel: those that an accelerator's stack has a fused one for."""


class Suspect(NamedTuple):
    """A cause, and what of it is seen in a run, as a clause; None if nothing is.

    `relative`: it says something of a gap only, and nothing of a run by itself.
    """

    name: str
    title: str
    action: str
    see: Callable[[Run, Sequence[Run], Sequence[ConditionResult]], str | None]
    relative: bool = False


def kernels(run: Run, base: Sequence[Run], conditions: Sequence[ConditionResult]) -> str | None:
    """A kernel of the framework where a faster one exists, or another one than the baseline's."""
    found = _kernels(run)
    if base:
        there = _kernels(base[0])
        differing = [name for name in found if name in there and found[name] != there[name]]
        if differing:
            return "; ".join(f"{name} ran as {found[name]}, the baseline's as {there[name]}" for name in differing)
        return None
    if run.subject.accelerator is None:
        return None
    slow = [name for name, kernel in found.items() if kernel in _SLOW_KERNELS[name]]
    return "; ".join(f"{name} ran as {found[name]}, not as a fused kernel" for name in slow) or None


def _kernels(run: Run) -> dict[str, str]:
    training: Any = run.record.quality.training if run.record.quality else None
    known = training or {}
    return {name: brief(known[name]) for name in _SLOW_KERNELS if isinstance(known.get(name), str)}


def foreign(run: Run, base: Sequence[Run], conditions: Sequence[ConditionResult]) -> str | None:
    """Processes of others on a device, or memory that was in use there before the run."""
    busy = [device for device in run.devices if device.foreign_processes]
    full = [device for device in run.devices if device.mem_used_before_bytes > MUCH_MEMORY]
    if not busy and not full:
        return None
    seen = [f"other processes on {len(busy)} of {len(run.devices)} devices{run.where}"] if busy else []
    most = max((device.mem_used_before_bytes for device in full), default=0)
    return "; ".join(seen + ([f"{most / 2**30:.1f} GiB in use there before the run"] if full else []))


def other_conditions(run: Run, base: Sequence[Run], conditions: Sequence[ConditionResult]) -> str | None:
    """Conditions of the work or the machine that are not those of the other side."""
    case = run.subject.case
    gate = {*gate_conditions(case)} - {*case.software_conditions}
    if slower_precision(run, conditions):
        gate -= {"precision"}  # which is measured
    differing = [each for each in conditions if each.name in gate and each.agreement is Agreement.DIFFERS]
    return ", ".join(f"{c.name} {shown(c.here)} instead of {shown(c.expected)}" for c in differing) or None


def throttled(run: Run, base: Sequence[Run], conditions: Sequence[ConditionResult]) -> str | None:
    """Throttling whose cost no clock tells."""
    reason, seconds = longest_throttling(run)
    return None if reason is None or run.slowed else f"{reason} for {seconds:.0f} s{run.where}, at clocks not known"


def capped(run: Run, base: Sequence[Run], conditions: Sequence[ConditionResult]) -> str | None:
    """A limit of power below the device's own, whose cost no clock tells."""
    limits = "" if run.slowed or longest_throttling(run)[0] else power_limits(run)
    return f"{limits}, at clocks not known" if limits else None


def software(run: Run, base: Sequence[Run], conditions: Sequence[ConditionResult]) -> str | None:
    """Other versions of the software."""
    names = run.subject.case.software_conditions
    differing = [each for each in conditions if each.name in names and each.agreement is Agreement.DIFFERS]
    return ", ".join(f"{c.name} {shown(c.here)} instead of {shown(c.expected)}" for c in differing) or None


SUSPECTS = (
    Suspect(
        "conditions",
        "other conditions",
        "compare it with a row of these conditions (`flagbench list claims`), or run with those of the row",
        other_conditions,
        relative=True,
    ),
    Suspect("throttling", *ACTIONS["throttling"], throttled),
    Suspect("power_cap", *ACTIONS["power_cap"], capped),
    Suspect(
        "kernel_fallback",
        "slower kernels",
        "use the image that flagbench builds for this stack, or install the fused kernels (apex, flash-attn)",
        kernels,
    ),
    Suspect(
        "device_tenants",
        "other tenants on a device",
        "stop the other processes on the device (`nvidia-smi` lists them), and run again",
        foreign,
    ),
    Suspect(
        "software",
        "other software",
        "run the image of the stack that the row names, if there is one",
        software,
        relative=True,
    ),
)
