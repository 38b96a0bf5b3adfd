"""Plans the runs of an acceptance within its minutes: the roofs, the largest case that fits, and a soak if asked for.

The roofs are the rates that a device reaches without a model: matmuls, memory, links. A stack is a vendor's software
for a family of devices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flagbench.accept.case_choice import case_runs
from flagbench.accept.checks.speed import HEAT_SECONDS, LEAST_MINUTES_WITH_HEAT, mamf_rows
from flagbench.accept.planned_run import START_SECONDS, PlannedRun
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
from flagbench_core.case_kinds import MEASURE
from flagbench_core.evidence.roofs import MAMF
from flagbench_core.process_limits import usable_processors

ROOFS = "roofs"
RESERVE_SECONDS = 10.0
"""Seconds that are reserved for stopping a run whose ranks hang, and for writing the certificate."""
ROOFS_SHARE = 0.25
"""The share of the time after heating in which the roofs are measured; the case takes most of the other time."""
LEAST_ROOFS_SECONDS = 4
"""The fewest seconds in which the roofs are measured."""
MOST_ROOFS_SECONDS = 120
"""The most seconds in which the roofs are measured: `measure.seconds` of their manifest."""
RANKS_ON_A_PROCESSOR = 2
"""The ranks of a run on a processor without `--gpus`: the fewest that are compared with each other."""
SERVING = "serve-llama3.1-8b"
"""The case of `--serving`."""
SERVING_GPUS = 1
"""The devices of that case."""
SERVING_SECONDS = 90.0
"""The time of that case, most of which is the start of its engine: an assumption, since no device has run it."""
SERVING_SETTINGS = ("tp=1", "max_model_len=2048", "compile=false", "cuda_graphs=full_decode_only")
"""The settings of that case: compiling would take longer than all the rest, and the cache of a short text fits any
device with room for the weights."""
MOST_LAPS = 20
"""The most laps of a soak; each takes a minute or more."""
LEAST_LAPS = 3
"""The fewest laps of a soak that show a drift."""


@dataclass
class AcceptanceClock:
    """The time of an acceptance."""

    minutes: float
    """The time limit of the acceptance, its soak included."""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The seconds since the acceptance began."""
        return time.monotonic() - self.began

    @property
    def seconds_left(self) -> float:
        """The seconds that a run may still take."""
        return 60 * self.minutes - RESERVE_SECONDS - self.seconds


@dataclass(frozen=True)
class AcceptancePlan:
    """The runs of an acceptance."""

    stack: Stack
    gpus: int
    runs: tuple[PlannedRun, ...]
    """The runs, in order. Empty if the vendor's tool does not list the devices: nothing is measured on these."""
    without_case: str | None = None
    """Why no case is run; None if one is."""


@dataclass(frozen=True)
class CaseChoice:
    """The case that is run after the roofs."""

    run: PlannedRun | None
    """None if no case is run."""
    reason: str | None = None
    """Why no case is run; None if one is."""


def plan_of(
    catalog: Catalog,
    minutes: float,
    gpus: int | None,
    case: str | None,
    via: Via | None,
    store: Store,
    soak_minutes: int | None = None,
    *,
    serving: bool = False,
) -> AcceptancePlan:
    """Plan the runs on this machine.

    Args:
        catalog: the cases, stacks, devices and claims.
        minutes: the time for all runs except the soak.
        gpus: the number of devices, or of ranks on a processor; None: all.
        case: the case that `--case` names, `CASE` or `CASE:STACK`; None: the largest that fits.
        via: how to run, such as `docker`; None: as usual on this machine.
        store: where earlier runs are looked up.
        soak_minutes: the time of the soak; None: no soak.
        serving: whether the first device also generates tokens.

    Raises FlagbenchError (USAGE) for a case that cannot be run, and if no stack fits this machine.
    """
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
        _check_case(name, stack, catalog)
    if machine.problem and not processor:
        return AcceptancePlan(stack, count, ())
    _check_processors(count, processor=processor)
    chosen_via = choose_via(via, stack, ())
    runs = [_roofs_run(catalog, stack, count, chosen_via, minutes)]
    seconds_left = 60 * minutes - RESERVE_SECONDS - runs[0].seconds
    serving_runs = []
    if serving:
        serving_runs.append(_serving_run(machine, catalog, via))
        seconds_left -= SERVING_SECONDS
    choice = _choose_case(catalog, stack, count, chosen_via, name, store, seconds_left, minutes)
    if choice.run is not None:
        runs.append(choice.run)
    runs += serving_runs
    if soak_minutes is not None:
        runs.append(_soak_run(catalog, stack, count, chosen_via, soak_minutes))
    return AcceptancePlan(stack, count, tuple(runs), choice.reason)


def _check_case(name: str, stack: Stack, catalog: Catalog) -> None:
    """Raise FlagbenchError (USAGE) unless the case that `--case` names has a model, and the stack runs it."""
    case = catalog_get(catalog.cases, name, kind="case")
    if case.kind == MEASURE:
        raise FlagbenchError(f"--case {name}: {name} has no model", remedy="leave --case out: it is always measured")
    if name not in stack.runs:
        reason = f"--case {name}: the stack {stack.name} does not run it"
        raise FlagbenchError(reason, remedy="`flagbench list stacks` shows what each stack runs")


def _devices_to_use(machine: Machine, *, processor: bool) -> int:
    """The number of all devices, including those that are hidden or do not answer; on a processor, of ranks."""
    if processor:
        return RANKS_ON_A_PROCESSOR
    return max(1, len(machine.devices) + len(machine.lost))


def _check_processors(count: int, *, processor: bool) -> None:
    """Raise FlagbenchError (USAGE) for more ranks than processors: a rank that waits for a processor looks slow."""
    processors = usable_processors()
    if processor and count > processors:
        reason = f"--gpus {count}: the stack is cpu, and there are {processors} processors for as many ranks"
        raise FlagbenchError(
            reason, remedy="ask for fewer, or name the accelerator's stack: --case distilbert:cuda13"
        )


def _roofs_run(catalog: Catalog, stack: Stack, count: int, via: Via, minutes: float) -> PlannedRun:
    """The run of the roofs. An accelerator is heated first, and measured in the published shapes of MAMF, too."""
    settings: list[str] = []
    heat = 0
    if stack.device_kind != "cpu":
        settings += _mamf_shapes(catalog)
        if minutes >= LEAST_MINUTES_WITH_HEAT:
            heat = HEAT_SECONDS
            settings.append(f"heat_seconds={heat}")
    share_seconds = int((60 * minutes - heat) * ROOFS_SHARE)
    seconds = max(LEAST_ROOFS_SECONDS, min(MOST_ROOFS_SECONDS, share_seconds))
    settings.append(f"measure_seconds={seconds}")
    target = _roofs_target(catalog, stack, count, via, settings)
    seconds_of_run = seconds + heat + START_SECONDS[stack.device_kind]
    return PlannedRun(target, seconds_of_run, "what the devices reach without a model")


def _serving_run(machine: Machine, catalog: Catalog, via: Via | None) -> PlannedRun:
    """The run in which the first device generates tokens, on a stack of its own.

    Raises FlagbenchError (USAGE) if no stack serves on the devices of this machine.
    """
    case = catalog.cases[SERVING]
    stack = next(iter(find_stacks(machine, catalog, case)), None)
    if stack is None or stack.device_kind == "cpu":
        stacks = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
        names = ", ".join(stack.name for stack in stacks if stack.device_kind != "cpu")
        raise FlagbenchError(
            f"--serving runs {case.name} on {names}, and this machine has no devices of that",
            remedy="leave --serving out",
        )
    options = LocalOptions(gpus=SERVING_GPUS, roofs=True, set_=SERVING_SETTINGS)
    target = target_of(RunRequest(case, stack, options), choose_via(via, stack, ()), DockerOptions())
    return PlannedRun(target, SERVING_SECONDS, "what a device reads for each token that it generates")


def _soak_run(catalog: Catalog, stack: Stack, count: int, via: Via, minutes: int) -> PlannedRun:
    """The soak: the roofs measured again and again, in laps, on all devices at once."""
    laps = min(MOST_LAPS, minutes)
    settings = [f"measure_seconds={60 * minutes // laps}", f"laps={laps}"]
    target = _roofs_target(catalog, stack, count, via, settings)
    return PlannedRun(target, 60 * minutes + START_SECONDS[stack.device_kind], f"a soak of {laps} laps", soak=True)


def _roofs_target(catalog: Catalog, stack: Stack, count: int, via: Via, settings: Sequence[str]) -> Target:
    preset: Any = "reference"
    if stack.device_kind == "cpu":
        preset = "tiny"
    options = LocalOptions(gpus=count, preset=preset, set_=tuple(settings))
    return target_of(RunRequest(catalog.cases[ROOFS], stack, options), via, DockerOptions())


def _mamf_shapes(catalog: Catalog) -> list[str]:
    """The settings that add the matmul shapes of MAMF's published rows for this machine's devices.

    Empty if the devices are of several models.
    """
    models = find_device_models(this_machine(), catalog)
    if len(models) != 1:
        return []
    settings = []
    for row in mamf_rows(catalog, models[0]):
        precision = row.metrics[0].name.removeprefix(f"{MAMF}_")
        shape = "x".join(str(row.run.set[size]) for size in "mnk")
        settings.append(f"mamf_shape_{precision}={shape}")
    return settings


def _choose_case(
    catalog: Catalog,
    stack: Stack,
    count: int,
    via: Via,
    name: str | None,
    store: Store,
    seconds_left: float,
    minutes: float,
) -> CaseChoice:
    """Choose the first case that fits into the time that is left. A case that `--case` names always runs.

    Args:
        name: the case that `--case` names; None: any.
        seconds_left: the seconds that are left after the roofs.
        minutes: `--minutes`, for the reason.
    """
    too_long: list[PlannedRun] = []
    for run in case_runs(catalog, stack, count, via, name, store):
        if run.seconds <= seconds_left:
            return CaseChoice(run)
        too_long.append(run)
    shortest = min(too_long, key=lambda run: run.seconds, default=None)
    if name is not None and shortest is not None:
        return CaseChoice(shortest)
    if name is not None:
        request = RunRequest(catalog.cases[name], stack, LocalOptions(gpus=count))
        target = target_of(request, via, DockerOptions())
        return CaseChoice(PlannedRun(target, max(0.0, seconds_left), "asked for; how long it takes is not known"))
    if shortest is not None:
        shortest_text = f"the shortest takes about {shortest.seconds:.0f} s after the roofs"
        return CaseChoice(None, f"no case fits into --minutes {minutes:g}; {shortest_text}")
    return CaseChoice(None, "no case fits the memory of a device and this Python")


def _stack_here(machine: Machine, catalog: Catalog) -> Stack:
    """The stack for this machine's devices, or for a processor if the machine has no devices.

    If the vendor's tool cannot list the devices, it is a stack of that vendor. If a tool fails, but the kernel shows
    no device, a note says that the machine is taken for a processor. Raises FlagbenchError (USAGE) if there is no
    stack for the devices.
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
