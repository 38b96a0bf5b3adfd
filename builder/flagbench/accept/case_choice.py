"""Which case an acceptance runs after the roofs: one that fits the machine and the time, and whose speed can be held
against something."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

from flagbench.accept.part import START_SECONDS, Part
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import cited_rows, wanted_conditions
from flagbench.machine.catalog import cards_here
from flagbench.machine.devices import this_machine
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim, PublishedRow
from flagbench.manifests.stack import Stack
from flagbench.records.store import Store
from flagbench.runs.launchers.describe import describe
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.launchers.native import NEEDED
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench.runs.target import Via, target_of
from flagbench.verdict.rules.comparison import HEATED
from flagbench_core.config import preset_of, schedule
from flagbench_core.evidence.section import MEASURE

ON_A_PROCESSOR, STEPS_ON_A_PROCESSOR = "distilbert", 1200
"""The case that starts fastest, in its tiny preset, and the steps of it that are measured: 15 s on two cores."""
FEWEST_STEPS = 100
"""Of a window: fewer have no interval, so nothing would be decided by them. Of a pipeline, the micro-batches decide,
and so does a case's own window."""
MEMORY_SHARE = 0.95
"""The part of a device's memory that a case may take: its driver and its fragments take some."""
NOT_JUDGED = "for its own checks and as history, its speed is not judged"


@dataclass(frozen=True)
class Candidate:
    """A case that fits the memory of a device, and how long a step of it takes by a published row."""

    case: Case
    why: str
    seconds_of_step: float | None
    """None where no row says it."""
    memory_gib: float = 0.0
    """What the row publishes of a device's memory; 0 without."""
    precision: str | None = None
    settings: tuple[str, ...] = ()


def case_parts(catalog: Catalog, stack: Stack, gpus: int, via: Via, name: str | None, store: Store) -> Iterator[Part]:
    """Runs of the cases that fit a device and this Python, the best first.

    Args:
        name: the case that was asked for; None for any.
    """
    if stack.device_kind == "cpu":
        yield from _on_a_processor(catalog, stack, gpus, via, name or ON_A_PROCESSOR)
        return
    cases = _runnable(catalog, stack, via)
    if name is not None:
        cases = [case for case in cases if case.name == name]
    for candidate in _ranked(catalog, cases, stack, gpus, store):
        yield from _windows(candidate, stack, gpus, via, store)


def _runnable(catalog: Catalog, stack: Stack, via: Via) -> list[Case]:
    """The cases of models that the stack runs, natively only where this Python has what they import."""
    cases = [case for case in catalog.cases.values() if case.name in stack.runs and case.kind != MEASURE]
    if via != "native":
        return cases
    if any(find_spec(package) is None for package in NEEDED):
        return []
    return [case for case in cases if all(find_spec(package) for package in case.imports)]


def _on_a_processor(catalog: Catalog, stack: Stack, gpus: int, via: Via, name: str) -> Iterator[Part]:
    for case in _runnable(catalog, stack, via):
        if case.name == name:
            request = RunRequest(case, stack, LocalOptions(gpus=gpus, preset="tiny", steps=STEPS_ON_A_PROCESSOR))
            yield Part(target_of(request, via, DockerOptions()), 2 * START_SECONDS["cpu"], "a model, tiny")


def _ranked(catalog: Catalog, cases: Sequence[Case], stack: Stack, gpus: int, store: Store) -> list[Candidate]:
    """The cases that fit the memory of a device: those with claims of it, with rows of the catalogue, with earlier
    runs in the store, then others. Of each, those that take most memory come first."""
    as_claimed, as_cited, as_before, others = [], [], [], []
    for case in cases:
        claim = _nearest_claim(catalog, case, _models_here(catalog), gpus)
        if claim is not None and not _fits(claim, gpus):
            continue
        if claim is not None and _is_of_here(claim, catalog, gpus):
            as_claimed.append(_as_claimed(case, claim))
        as_cited += _as_cited(catalog, case, gpus)
        if claim is None:
            continue
        candidate = Candidate(case, NOT_JUDGED, _seconds_of_step(case, claim, {}), _takes(claim))
        if _has_run(case, stack, store):
            as_before.append(candidate)
        else:
            others.append(candidate)
    ranked = []
    for group in (as_claimed, as_cited, as_before, others):
        ranked += sorted(group, key=lambda candidate: (-candidate.memory_gib, candidate.case.name))
    return ranked


def _models_here(catalog: Catalog) -> set[str]:
    """The ids of the device models of this machine."""
    return {device.id for device in cards_here(this_machine(), catalog)}


def _fits(claim: Claim, gpus: int) -> bool:
    """Whether the memory that a row publishes fits a device of this machine.

    A model that is split over the devices of a row takes more of each of fewer ones.
    """
    memory_gib = this_machine().memory_gib
    if not memory_gib:
        return True
    split = 1.0
    if "layout" in claim.conditions:
        split = max(1.0, claim.run.gpus / gpus)
    return split * _takes(claim) <= MEMORY_SHARE * memory_gib


def _is_of_here(claim: Claim, catalog: Catalog, gpus: int) -> bool:
    return claim.device_id in _models_here(catalog) and claim.run.gpus == gpus


def _as_claimed(case: Case, claim: Claim) -> Candidate:
    """The run of a row, with its settings."""
    settings = tuple(f"{key}={value}" for key, value in claim.run.set.items())
    seconds = _seconds_of_step(case, claim, claim.run.set)
    return Candidate(case, f"as {claim.id}", seconds, _takes(claim), claim.run.precision, settings)


def _as_cited(catalog: Catalog, case: Case, gpus: int) -> list[Candidate]:
    """The run of each row of the catalogue that it can be held beside."""
    candidates = []
    for device in cards_here(this_machine(), catalog):
        for row in cited_rows(case, wanted_conditions(case, device, gpus), catalog):
            candidates.append(Candidate(case, f"as {row.id}", _seconds_of_step(case, row, {})))
    return candidates


def _has_run(case: Case, stack: Stack, store: Store) -> bool:
    """Whether the store has a run of the case on this stack, which may be an earlier one of this machine."""
    return next(iter(store.list(case.name, *stack.names)), None) is not None


def _nearest_claim(catalog: Catalog, case: Case, devices: Collection[str], gpus: int) -> Claim | None:
    """The claim of one node that comes closest to runs of a case on these devices; None without one."""

    def distance(claim: Claim) -> tuple[bool, bool, bool, int]:
        away = claim.device_id not in devices
        other_batch = away and "batch_size" in claim.run.set  # the run has that of the preset
        return away, _takes(claim) == 0, other_batch, abs(claim.run.gpus - gpus)

    claims = [claim for claim in catalog.claims.values() if claim.case == case.name and claim.run.nodes == 1]
    return min(claims, key=distance, default=None)


def _windows(candidate: Candidate, stack: Stack, gpus: int, via: Via, store: Store) -> Iterator[Part]:
    """The runs of a case: of a window that shows heat, of its own window, then of the shortest that decides."""
    case = candidate.case
    train = schedule(preset_of(case.presets, "reference"))
    own = train["window_steps"] or 0
    fewest = FEWEST_STEPS
    if any("pp" in engine.layout for engine in case.engines.values()):
        fewest = own
    windows = {fewest, max(own, fewest)}
    if candidate.seconds_of_step:
        windows.add(max(own, fewest, math.ceil(HEATED / candidate.seconds_of_step)))
    for window in sorted(windows, reverse=True):
        steps = None if window == own else window
        options = LocalOptions(
            gpus=gpus,
            steps=steps,
            set_=candidate.settings,
            data="synthetic",
            precision=cast("Any", candidate.precision),
        )
        request = RunRequest(case, stack, options)
        try:
            described = describe(request, container=via == "docker")
        except FlagbenchError:  # such as a layout that these devices cannot have
            return
        before = estimate(described, stack, store, ())
        seconds = (train["warmup_steps"] + window) * (candidate.seconds_of_step or 0.0)
        if before is not None:
            seconds = before.seconds
        if not seconds:
            return
        target = target_of(request, via, DockerOptions())
        yield Part(target, seconds + START_SECONDS[stack.device_kind], candidate.why)


def _takes(claim: Claim) -> float:
    """GiB of a device's memory that a row publishes; 0 without."""
    memory = claim.metric("mem_peak")
    return 0.0 if memory is None else memory.value


def _seconds_of_step(case: Case, row: PublishedRow, settings: Mapping[str, Any]) -> float | None:
    """Seconds of a step at the speed of a row, of whatever device; None where the row has no speed.

    `settings`: those of the row that a run has.
    """
    speed = row.metric(case.gate)
    if speed is None or not speed.value:
        return None
    preset = preset_of(case.presets, "reference")
    stated = {"batch_size": schedule(preset)["batch_size"], **preset.get("layout", {}), **settings}
    work = float(stated["batch_size"]) / ((stated.get("tp") or 1) * (stated.get("pp") or 1))
    if speed.unit.startswith("tokens"):
        work *= row.count("sequence_length") or 0
    if speed.scope == "job":
        work *= row.count("devices") or 1
    return work / speed.value or None
