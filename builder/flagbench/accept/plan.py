"""What an acceptance runs within its minutes: the roofs, and the largest case that fits the machine and the time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flagbench.accept.case_choice import case_parts
from flagbench.accept.checks.speed import HEAT_SECONDS, LEAST_MINUTES_WITH_HEAT, mamf_rows
from flagbench.accept.part import START_SECONDS, Part
from flagbench.console.output import print_note
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.machine.catalog import find_device_models, find_stacks, guess_stack
from flagbench.machine.devices import Machine, this_machine
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.manifests.model import Catalog
from flagbench.manifests.stack import Stack
from flagbench.records.store import Store
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench.runs.target import Target, Via, choose_via, target_of
from flagbench_core.evidence.roofs import MAMF
from flagbench_core.evidence.section import MEASURE
from flagbench_core.process_limits import usable_processors

ROOFS = "roofs"
RESERVE_SECONDS = 10.0
"""Seconds that are reserved for ending a run whose ranks hang, and for the certificate."""
ROOFS_SHARE = 0.25
"""The share of the time after the heat in which the roofs are measured."""
ROOFS_SECONDS = 120
"""The most seconds in which the roofs are measured, as their manifest has it."""
MOST_LAPS = 20
"""The most laps of a soak; each takes a minute or more."""
LEAST_LAPS = 3
"""The fewest laps of a soak that show a drift."""


@dataclass
class AcceptanceClock:
    """The time of an acceptance."""

    minutes: float
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds that a run may still take."""
        return 60 * self.minutes - RESERVE_SECONDS - self.seconds


@dataclass(frozen=True)
class AcceptancePlan:
    """The runs of an acceptance."""

    stack: Stack
    gpus: int
    parts: tuple[Part, ...]
    """Empty if the vendor's tool does not list the devices: nothing is measured on these."""
    without_case: str | None = None
    """Why no case is run; None if one is."""


def plan_of(
    catalog: Catalog,
    minutes: float,
    gpus: int | None,
    case: str | None,
    via: Via | None,
    store: Store,
    soak_minutes: int | None = None,
) -> AcceptancePlan:
    """The plan. Raises FlagbenchError (usage) for an unknown case, and if no stack fits this machine."""
    name: str | None = None
    stack_name: str | None = None
    if case:
        name, stack_name = case_and_stack(case)
    machine = this_machine()
    if stack_name:
        _, stack = resolve_image(f"{ROOFS}:{stack_name}", catalog)
    else:
        stack = _stack_here(machine, catalog)
    processor = stack.device_kind == "cpu"
    count = gpus or _devices_to_use(machine, processor=processor)
    if name is not None:
        catalog_get(catalog.cases, name, kind="case")
        if catalog.cases[name].kind == MEASURE:
            raise FlagbenchError(
                f"--case {name}: {name} has no model", remedy="leave --case out: it is always measured"
            )
        if name not in stack.runs:
            reason = f"--case {name}: the stack {stack.name} does not run it"
            raise FlagbenchError(reason, remedy="`flagbench list stacks` shows what each stack runs")
    if machine.problem and not processor:
        return AcceptancePlan(stack, count, ())
    _check_processors(count, processor=processor)
    chosen = choose_via(via, stack, ())
    parts = [_roofs_part(catalog, stack, count, chosen, minutes)]
    left = 60 * minutes - RESERVE_SECONDS - parts[0].seconds
    case_part, without_case = _case_part(catalog, stack, count, chosen, name, store, left, minutes)
    if case_part is not None:
        parts.append(case_part)
    if soak_minutes is not None:
        parts.append(_soak_part(catalog, stack, count, chosen, soak_minutes))
    return AcceptancePlan(stack, count, tuple(parts), without_case)


def _devices_to_use(machine: Machine, *, processor: bool) -> int:
    """The number of all devices, including those that are hidden or do not answer; two ranks on a processor."""
    if processor:
        return 2
    return max(1, len(machine.devices) + len(machine.lost))


def _check_processors(count: int, *, processor: bool) -> None:
    """Refuse more ranks than processors, which other runs may have: a rank that waits for a processor looks slow.

    Raises FlagbenchError (usage).
    """
    processors = usable_processors()
    if processor and count > processors:
        reason = f"--gpus {count}: the stack is cpu, and there are {processors} processors for as many ranks"
        raise FlagbenchError(
            reason, remedy="ask for fewer, or name the accelerator's stack: --case distilbert:cuda13"
        )


def _roofs_part(catalog: Catalog, stack: Stack, count: int, via: Via, minutes: float) -> Part:
    """The run of the roofs; an accelerator is heated first, and measured in the shapes of MAMF's rows as well."""
    settings: list[str] = []
    heat = 0
    if stack.device_kind != "cpu":
        settings += _mamf_shapes(catalog)
        if minutes >= LEAST_MINUTES_WITH_HEAT:
            heat = HEAT_SECONDS
            settings.append(f"heat_seconds={heat}")
    seconds = max(4, min(ROOFS_SECONDS, int((60 * minutes - heat) * ROOFS_SHARE)))
    settings.append(f"measure_seconds={seconds}")
    target = _roofs_target(catalog, stack, count, via, settings)
    seconds_of_part = seconds + heat + START_SECONDS[stack.device_kind]
    return Part(target, seconds_of_part, "what the devices reach without a model")


def _soak_part(catalog: Catalog, stack: Stack, count: int, via: Via, minutes: int) -> Part:
    """The run of the roofs in laps, on all devices at once."""
    laps = min(MOST_LAPS, minutes)
    settings = [f"measure_seconds={60 * minutes // laps}", f"laps={laps}"]
    target = _roofs_target(catalog, stack, count, via, settings)
    return Part(target, 60 * minutes + START_SECONDS[stack.device_kind], f"a soak of {laps} laps", soak=True)


def _roofs_target(catalog: Catalog, stack: Stack, count: int, via: Via, settings: Sequence[str]) -> Target:
    preset: Any = "reference"
    if stack.device_kind == "cpu":
        preset = "tiny"
    options = LocalOptions(gpus=count, preset=preset, set_=tuple(settings))
    return target_of(RunRequest(catalog.cases[ROOFS], stack, options), via, DockerOptions())


def _mamf_shapes(catalog: Catalog) -> list[str]:
    """The settings for the shapes of MAMF's rows of this machine's devices; none if they are of several models."""
    models = find_device_models(this_machine(), catalog)
    if len(models) != 1:
        return []
    settings = []
    for row in mamf_rows(catalog, models[0]):
        precision = row.metrics[0].name.removeprefix(f"{MAMF}_")
        shape = "x".join(str(row.run.set[size]) for size in "mnk")
        settings.append(f"mamf_shape_{precision}={shape}")
    return settings


def _case_part(
    catalog: Catalog,
    stack: Stack,
    count: int,
    via: Via,
    name: str | None,
    store: Store,
    left: float,
    minutes: float,
) -> tuple[Part | None, str | None]:
    """The run of a case that fits into `left` seconds, or why there is none. A case that `--case` names always runs.

    Args:
        name: the case that `--case` names.
        left: the seconds that are left after the roofs.
        minutes: `--minutes`, for the reason.
    """
    tried: list[Part] = []
    for part in case_parts(catalog, stack, count, via, name, store):
        if part.seconds <= left:
            return part, None
        tried.append(part)
    shortest = min(tried, key=lambda part: part.seconds, default=None)
    if name is not None and shortest is not None:
        return shortest, None
    if name is not None:
        target = target_of(RunRequest(catalog.cases[name], stack, LocalOptions(gpus=count)), via, DockerOptions())
        return Part(target, max(0.0, left), "asked for; how long it takes is not known"), None
    if shortest is not None:
        takes = f"the shortest takes about {shortest.seconds:.0f} s after the roofs"
        return None, f"no case fits into --minutes {minutes:g}; {takes}"
    return None, "no case fits the memory of a device and this Python"


def _stack_here(machine: Machine, catalog: Catalog) -> Stack:
    """The stack for this machine's devices, or for those of their vendor where its tool fails; for a processor where
    there are none, whether or not a vendor's tool is installed.

    Raises FlagbenchError (usage) where no stack is for the devices.
    """
    roofs = catalog.cases[ROOFS]
    stack: Stack | None
    if machine.problem and machine.vendor:
        stack = guess_stack(machine.vendor, catalog, roofs)
    else:
        stack = next(iter(find_stacks(machine, catalog, roofs)), None)
    if stack is None:
        reason = machine.problem or f"no stack is for {machine.described}"
        raise FlagbenchError(reason, remedy="name a stack: --case distilbert:cpu or --case distilbert:cuda13")
    if machine.problem and not machine.vendor:
        print_note(f"flagbench: {brief(machine.problem)}; no device is in sysfs, so this is a processor")
    return stack
