"""What an acceptance runs within its minutes: the roofs, and the largest case that fits the machine and the time."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

from flagbench.errors import FlagbenchError
from flagbench.expect.rows import cited_rows, wanted_conditions
from flagbench.image_reference import case_and_stack
from flagbench.machine.catalog import cards_here, stack_of_vendor, stacks_here
from flagbench.machine.devices import Machine, this_machine
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim, PublishedRow
from flagbench.manifests.stack import Stack
from flagbench.records.store import Store
from flagbench.runs.launchers.describe import describe
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.launchers.native import NEEDED
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench.runs.target import Target, Via, choose_via, target_of
from flagbench_core.config import preset_of, schedule
from flagbench_core.evidence.section import MEASURE
from flagbench_core.process_limits import usable_processors

ROOFS = "roofs"
RESERVE_SECONDS = 10.0
"""Kept of the time for ending a run whose ranks hang, and for the certificate."""
ROOFS_SHARE, ROOFS_SECONDS = 0.3, 120
"""The share of the time in which the roofs measure, and the most seconds: those of the case's manifest."""
START_SECONDS = {"cpu": 10.0, "cuda": 20.0}
"""Of a run, from its command to its first step, and from its last one to its record: 14 to 17 s on an H100."""
ON_A_PROCESSOR, STEPS_ON_A_PROCESSOR = "distilbert", 1200
"""The case that starts fastest, in its tiny preset, and the steps of it that are measured: 15 s on two cores."""
FEWEST_STEPS = 100
"""Of a window: fewer have no interval, so nothing would be decided by them. Of a pipeline, the micro-batches decide,
and so does a case's own window."""
MEMORY_SHARE = 0.95
"""The part of a device's memory that a case may take: its driver and its fragments take some."""


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
class AcceptancePlan:
    """What is run, and why no case is where none fits."""

    stack: Stack
    gpus: int
    parts: tuple[Part, ...]
    """Empty where the vendor's tool does not list the devices: nothing is measured on these."""
    without_case: str | None = None


def plan_of(
    catalog: Catalog, minutes: float, gpus: int | None, case: str | None, via: Via | None, store: Store
) -> AcceptancePlan:
    """The plan. Raises FlagbenchError (usage) for an unknown case, and where no stack is for this machine."""
    name, stack_name = case_and_stack(case) if case else (None, None)
    machine = this_machine()
    if stack_name:
        _, stack = resolve_image(f"{ROOFS}:{stack_name}", catalog)
    else:
        stack = _stack_here(machine, catalog)
    processor = stack.device_kind == "cpu"
    count = gpus or (2 if processor else max(1, machine.visible + len(machine.lost)))
    if name is not None:
        catalog_get(catalog.cases, name, kind="case")
        if name not in stack.runs or catalog.cases[name].kind == MEASURE:
            raise FlagbenchError(f"{name} is no case of a model that {stack.name} runs", remedy="name another --case")
    if machine.problem and not processor:
        return AcceptancePlan(stack, count, ())
    # Not more ranks than processors, as another run may have: a rank that waits for its processor looks slow.
    if processor and count > (here := usable_processors()):
        why = f"--gpus {count}: the stack is cpu, and there are {here} processors for as many ranks"
        raise FlagbenchError(why, remedy="ask for fewer, or name the accelerator's stack: --case distilbert:cuda13")
    chosen = choose_via(via, stack, ())
    seconds = max(4, min(ROOFS_SECONDS, int(60 * minutes * ROOFS_SHARE)))
    start = START_SECONDS[stack.device_kind]
    options = LocalOptions(
        gpus=count, preset="tiny" if processor else "reference", set_=(f"measure_seconds={seconds}",)
    )
    roofs = target_of(RunRequest(catalog.cases[ROOFS], stack, options), chosen, DockerOptions())
    parts = [Part(roofs, seconds + start, "what the devices reach without a model")]
    left = 60 * minutes - RESERVE_SECONDS - parts[0].seconds
    tried: list[Part] = []
    for part in _candidates(catalog, stack, count, chosen, name, store):
        tried.append(part)
        if part.seconds <= left:
            return AcceptancePlan(stack, count, (*parts, part))
    shortest = min(tried, key=lambda part: part.seconds, default=None)
    if name is not None:
        target = target_of(RunRequest(catalog.cases[name], stack, LocalOptions(gpus=count)), chosen, DockerOptions())
        last = shortest or Part(target, left, "asked for; how long it takes is not known")
        return AcceptancePlan(stack, count, (*parts, last))
    why = "no case fits the memory of a device and this Python"
    if shortest is not None:
        takes = f"the shortest takes about {shortest.seconds:.0f} s after the roofs"
        why = f"no case fits into {minutes:g} minutes; {takes}"
    return AcceptancePlan(stack, count, tuple(parts), why)


def _stack_here(machine: Machine, catalog: Catalog) -> Stack:
    """The stack for this machine's devices, or for those of their vendor where its tool fails.

    Raises FlagbenchError (usage) where none is, and where a tool fails on a machine without its vendor's devices.
    """
    roofs = catalog.cases[ROOFS]
    if machine.problem:
        why = machine.problem
        stack = stack_of_vendor(machine.vendor, catalog, roofs) if machine.vendor else None
    else:
        why = f"no stack is for {machine.described}"
        stack = next(iter(stacks_here(machine, catalog, roofs)), None)
    if stack is None:
        remedy = "name a stack: --case distilbert:cpu or --case distilbert:cuda13"
        if machine.remedy:
            remedy = f"{machine.remedy}; or {remedy}"
        raise FlagbenchError(why, remedy=remedy)
    return stack


def _candidates(
    catalog: Catalog, stack: Stack, gpus: int, via: Via, name: str | None, store: Store
) -> Iterator[Part]:
    """Runs of the cases that fit a device and this Python, the best first."""
    cpu = stack.device_kind == "cpu"
    cases = [case for case in catalog.cases.values() if case.name in stack.runs and case.kind != MEASURE]
    if only := name or (ON_A_PROCESSOR if cpu else None):
        cases = [case for case in cases if case.name == only]
    if via == "native":
        missing = [each for each in NEEDED if find_spec(each) is None]
        cases = [case for case in cases if not missing and all(map(find_spec, case.imports))]
    if cpu:
        for case in cases:
            request = RunRequest(case, stack, LocalOptions(gpus=gpus, preset="tiny", steps=STEPS_ON_A_PROCESSOR))
            yield Part(target_of(request, via, DockerOptions()), 2 * START_SECONDS["cpu"], "a model, tiny")
        return
    for candidate in _ranked(catalog, cases, gpus):
        yield from _windows(candidate, stack, gpus, via, store)


class Candidate(NamedTuple):
    """A case that fits the memory of a device, and how long a step of it takes by a published row."""

    case: Case
    why: str
    seconds_of_step: float | None
    """None where no row says it."""
    memory_gib: float = 0.0
    """What the row publishes of a device's memory; 0 without."""
    precision: str | None = None
    settings: tuple[str, ...] = ()


def _ranked(catalog: Catalog, cases: Sequence[Case], gpus: int) -> list[Candidate]:
    """The cases that fit the memory of a device: those with claims of it, with rows of the catalogue, then others.

    Of each, those that take most memory come first.
    """
    machine = this_machine()
    here = cards_here(machine, catalog)
    ids = {device.id for device in here}
    as_claimed, as_cited, others = [], [], []
    for case in cases:
        claim = _nearest_claim(catalog, case, ids, gpus)
        if claim is not None:
            # A model that is split over the devices of a row takes more of each of fewer ones.
            split = max(1.0, claim.run.gpus / gpus) if "layout" in claim.conditions else 1.0
            takes = _takes(claim)
            if machine.memory_gib and split * takes > MEMORY_SHARE * machine.memory_gib:
                continue
            why = f"without the settings of a row; the nearest is {claim.id}"
            others.append(Candidate(case, why, _seconds_of_step(case, claim, {}), takes))
            if claim.device_id in ids and claim.run.gpus == gpus:
                settings = tuple(f"{key}={value}" for key, value in claim.run.set.items())
                seconds = _seconds_of_step(case, claim, claim.run.set)
                as_claimed.append(Candidate(case, f"as {claim.id}", seconds, takes, claim.run.precision, settings))
        for device in here:
            wanted = wanted_conditions(case, device, gpus)
            for row in cited_rows(case, wanted, catalog):
                as_cited.append(Candidate(case, f"as {row.id}", _seconds_of_step(case, row, {})))
    ranked = []
    for group in (as_claimed, as_cited, others):
        ranked += sorted(group, key=lambda candidate: (-candidate.memory_gib, candidate.case.name))
    return ranked


def _nearest_claim(catalog: Catalog, case: Case, devices: Collection[str], gpus: int) -> Claim | None:
    """The claim of one node that comes closest to runs of a case on these devices; None without one."""

    def distance(claim: Claim) -> tuple[bool, bool, bool, int]:
        away = claim.device_id not in devices
        other_batch = away and "batch_size" in claim.run.set  # the run has that of the preset
        return away, _takes(claim) == 0, other_batch, abs(claim.run.gpus - gpus)

    claims = [claim for claim in catalog.claims.values() if claim.case == case.name and claim.run.nodes == 1]
    return min(claims, key=distance, default=None)


def _windows(candidate: Candidate, stack: Stack, gpus: int, via: Via, store: Store) -> Iterator[Part]:
    """The runs of a case: of its own window, then of the shortest that decides."""
    case = candidate.case
    train = schedule(preset_of(case.presets, "reference"))
    own = train["window_steps"] or 0
    fewest = own if any("pp" in engine.layout for engine in case.engines.values()) else FEWEST_STEPS
    for window in sorted({max(own, fewest), fewest}, reverse=True):
        steps = None if window == own else window
        options = LocalOptions(
            gpus=gpus,
            steps=steps,
            set_=candidate.settings,
            data="synthetic",
            precision=cast("Any", candidate.precision),
        )
        try:
            request = RunRequest(case, stack, options)
            described = describe(request, container=via == "docker")
        except FlagbenchError:  # such as a layout that these devices cannot have
            return
        before = estimate(described, stack, store, ())
        seconds = before.seconds if before else (train["warmup_steps"] + window) * (candidate.seconds_of_step or 0.0)
        if not seconds:
            return
        yield Part(
            target_of(request, via, DockerOptions()), seconds + START_SECONDS[stack.device_kind], candidate.why
        )


def _takes(claim: Claim) -> float:
    """GiB of a device's memory that a row publishes; 0 without."""
    found = claim.metric("mem_peak")
    return found.value if found is not None else 0.0


def _seconds_of_step(case: Case, row: PublishedRow, settings: Mapping[str, Any]) -> float | None:
    """Seconds of a step at the speed of a row, of whatever device; None where the row has no speed.

    `settings`: those of the row that a run has.
    """
    speed = row.metric(case.gate)
    if speed is None or not speed.value:
        return None
    preset = preset_of(case.presets, "reference")
    known = {"batch_size": schedule(preset)["batch_size"], **preset.get("layout", {}), **settings}
    work = float(known["batch_size"]) / ((known.get("tp") or 1) * (known.get("pp") or 1))
    if speed.unit.startswith("tokens"):
        work *= row.count("sequence_length") or 0
    if speed.scope == "job":
        work *= row.count("devices") or 1
    return work / speed.value or None
