"""What an acceptance runs within its minutes: the roofs, and the largest case that fits the machine and the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec

from flagbench.devices import cards_here, stacks_here, this_machine
from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.manifests.model import Case, Catalog, Claim
from flagbench.manifests.settings import preset_of, schedule
from flagbench.manifests.stack import Stack
from flagbench.records.store import Store
from flagbench.runs.launchers.describe import describe
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.launchers.native import NEEDED
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench.runs.target import Target, Via, choose_via, target_of
from flagbench_core.evidence.section import MEASURE

ROOFS = "roofs"
RESERVE_SECONDS = 8.0
"""Kept of the time for ending a run whose ranks hang, and for the certificate."""
ROOFS_SHARE, ROOFS_SECONDS = 0.3, 120
"""The share of the time in which the roofs measure, and the most seconds: those of the case's manifest."""
START_SECONDS = {"cpu": 10.0, "cuda": 30.0}
"""Of a run, from its command to its first step, and from its last one to its record; an assumption."""
ON_A_PROCESSOR, STEPS_ON_A_PROCESSOR = "distilbert", 100
"""The case that starts fastest, in its tiny preset, and the steps of it that are measured."""
FEWEST_STEPS = 50
"""Of a window that is made shorter to fit into the time."""
MEMORY_SHARE = 0.95
"""The part of a device's memory that a case may take: its driver and its fragments take some."""


@dataclass
class Clock:
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
class Part:
    """One run of an acceptance."""

    target: Target
    seconds: float
    """That it should take, start-up included."""
    why: str

    @property
    def case(self) -> Case:
        """The case that it runs."""
        return self.target.request.case


@dataclass(frozen=True)
class Plan:
    """What is run, and why no case is where none fits."""

    stack: Stack
    gpus: int
    parts: tuple[Part, ...]
    without_case: str | None = None


def plan_of(
    catalog: Catalog, minutes: float, gpus: int | None, case: str | None, via: Via | None, store: Store
) -> Plan:
    """The plan. Raises FlagbenchError (usage) for an unknown case, and where no stack is for this machine."""
    name, stack_name = case_and_stack(case) if case else (None, None)
    machine = this_machine()
    if stack_name:
        _, stack = resolve_image(f"{ROOFS}:{stack_name}", catalog)
    else:
        stacks = stacks_here(machine, catalog, catalog.cases[ROOFS])
        if not stacks or machine.problem:
            why = machine.problem or f"no stack is for {machine.described}"
            raise FlagbenchError(why, remedy="name a stack: --case distilbert:cpu or --case distilbert:cuda13")
        stack = stacks[0]
    processor = stack.device_kind == "cpu"
    count = gpus or (2 if processor else max(1, machine.visible))
    chosen = choose_via(via, stack, ())
    seconds = max(4, min(ROOFS_SECONDS, int(60 * minutes * ROOFS_SHARE)))
    start = START_SECONDS[stack.device_kind]
    options = LocalOptions(
        gpus=count, preset="tiny" if processor else "reference", set_=(f"measure_seconds={seconds}",)
    )
    roofs = target_of(RunRequest(catalog.cases[ROOFS], stack, options), chosen, DockerOptions())
    parts = [Part(roofs, seconds + start, "what the devices reach without a model")]
    left = 60 * minutes - RESERVE_SECONDS - parts[0].seconds
    if name is not None:
        catalog_get(catalog.cases, name, kind="case")
        if name not in stack.runs or catalog.cases[name].kind == MEASURE:
            raise FlagbenchError(f"{name} is no case of a model that {stack.name} runs", remedy="name another --case")
    tried: list[Part] = []
    for part in _candidates(catalog, stack, count, chosen, name, store):
        tried.append(part)
        if part.seconds <= left:
            return Plan(stack, count, (*parts, part))
    if name is not None and tried:
        return Plan(stack, count, (*parts, tried[-1]))
    shortest = min((part.seconds for part in tried), default=None)
    why = "no case fits the memory of a device and this Python"
    if shortest is not None:
        why = f"no case fits into {minutes:g} minutes; the shortest takes about {shortest:.0f} s after the roofs"
    return Plan(stack, count, tuple(parts), why)


def _candidates(
    catalog: Catalog, stack: Stack, gpus: int, via: Via, name: str | None, store: Store
) -> Iterator[Part]:
    """Runs of the cases that fit the memory of a device, the best first.

    Those with published rows of this device and as many devices come first, then the one that takes most memory.
    """
    cases = [case for case in catalog.cases.values() if case.name in stack.runs and case.kind != MEASURE]
    cases = [case for case in cases if name in (None, case.name)]
    if via == "native":
        missing = [each for each in NEEDED if find_spec(each) is None]
        cases = [case for case in cases if not missing and all(map(find_spec, case.imports))]
    if stack.device_kind == "cpu":
        names = [name or ON_A_PROCESSOR]
        for case in (case for case in cases if case.name in names):
            options = LocalOptions(gpus=gpus, preset="tiny", steps=STEPS_ON_A_PROCESSOR)
            request = RunRequest(case, stack, options)
            yield Part(target_of(request, via, DockerOptions()), 2 * START_SECONDS["cpu"], "a model, tiny")
        return
    machine = this_machine()
    memory = min((device.memory_gib for device in machine.devices if device.memory_gib), default=None)
    here = {device.name for device in cards_here(machine, catalog)}
    ranked = []
    for case in cases:
        rows = [row for row in catalog.claims.values() if row.case == case.name and row.run.nodes == 1]
        if not rows:
            continue
        row = min(rows, key=lambda row: (_device(row) not in here, _takes(row) is None, abs(row.run.gpus - gpus)))
        own = _device(row) in here and row.run.gpus == gpus
        needs = _takes(row)
        if needs is not None and memory is not None and needs > MEMORY_SHARE * memory:
            continue
        ranked.append((not own, -(needs or 0.0), case.name, case, row))
    for other, _, _, case, row in sorted(ranked, key=lambda each: each[:3]):
        settings = () if other else tuple(f"{key}={value}" for key, value in row.run.set.items())
        why = f"as {row.id}" if not other else f"no row is of {gpus} of these devices; the nearest is {row.id}"
        for steps in (None, FEWEST_STEPS):
            options = LocalOptions(
                gpus=gpus,
                steps=steps,
                set_=settings,
                data="synthetic",
                precision=None if other else row.run.precision,
            )
            try:
                request = RunRequest(case, stack, options)
                described = describe(request, container=via == "docker")
            except FlagbenchError:  # such as a layout that these devices cannot have
                break
            before = estimate(described, stack, store, ())
            seconds = before.seconds if before else _seconds(case, row, steps, same=not other)
            if seconds is None:
                break
            yield Part(target_of(request, via, DockerOptions()), seconds + START_SECONDS[stack.device_kind], why)


def _device(row: Claim) -> str:
    return str(row.conditions.get("device_model"))


def _takes(row: Claim) -> float | None:
    """GiB of a device's memory that a row publishes."""
    found = row.metric("mem_peak")
    return found.value if found is not None else None


def _seconds(case: Case, row: Claim, steps: int | None, *, same: bool) -> float | None:
    """Seconds of a window at the speed of a row, of whatever device; None where the row has no speed.

    `same`: whether it has the row's settings.
    """
    speed = row.metric(case.gate)
    train = schedule(preset_of(case, "reference", "faithful"))
    if speed is None or not speed.value or train["window_steps"] is None:
        return None
    of_step = float(row.run.set.get("batch_size", 0) if same else 0) or float(train["batch_size"])  # of a replica
    if speed.unit.startswith("tokens"):
        length = row.conditions.get("sequence_length", NOT_PUBLISHED)
        of_step *= length if isinstance(length, int) else 0
    of_device = speed.value / (row.run.gpus if speed.scope == "job" else 1)
    return (train["warmup_steps"] + (steps or train["window_steps"])) * of_step / of_device if of_step else None
