"""Chooses the case that an acceptance runs after the roofs.

It fits the memory of the devices and the time, and if possible its speed can be compared with published rows or with
earlier runs. plan.py takes the first of `case_runs` for which there is time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

from flagbench.accept.planned_run import START_SECONDS, PlannedRun
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import cited_rows, wanted_conditions
from flagbench.machine.catalog import find_device_models
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
from flagbench_core.case_kinds import MEASURE
from flagbench_core.config import preset_of, schedule

CASE_ON_A_PROCESSOR = "distilbert"
"""The case that starts fastest. It is run in its tiny preset."""
STEPS_ON_A_PROCESSOR = 1200
"""The measured steps of that case: 15 s on two cores."""
START_FACTOR = 2
"""A run on a processor takes about as long for its steps as for its start, so twice START_SECONDS in all."""
FEWEST_STEPS = 100
"""The fewest steps of a window: a metric of fewer steps has no interval, and decides nothing. A case with a pipeline
is measured by its micro-batches, so its own window is enough."""
MEMORY_SHARE = 0.95
"""The largest share of a device's memory that a case may take: the driver and fragmentation take some."""
NOT_JUDGED = "for its own checks and as history, its speed is not judged"
"""Why a case is run whose speed cannot be compared with a row of this device."""


@dataclass(frozen=True)
class Candidate:
    """A case that fits the memory of a device."""

    case: Case
    why: str
    """Why this case is run, as the certificate states it."""
    seconds_of_step: float | None
    """How long a step takes according to a published row; None if the row states no speed."""
    memory_gib: float = 0.0
    """The memory of a device that the run takes according to the row; 0 if the row states none."""
    precision: str | None = None
    """The precision of the run; None: the default of the case."""
    settings: tuple[str, ...] = ()
    """Settings of the run, each as `KEY=VALUE`."""


def case_runs(
    catalog: Catalog, stack: Stack, gpus: int, via: Via, name: str | None, store: Store
) -> Iterator[PlannedRun]:
    """Runs of the cases that fit a device and this Python, the most suitable first.

    Args:
        catalog: the cases, devices and published rows.
        stack: the software to run on.
        gpus: the number of devices.
        via: how to run: `native` or `docker`.
        name: the case that `--case` names; None for any.
        store: where earlier runs are looked up.
    """
    if stack.device_kind == "cpu":
        yield from _on_a_processor(catalog, stack, gpus, via, name or CASE_ON_A_PROCESSOR)
        return
    cases = _runnable(catalog, stack, via)
    if name is not None:
        cases = [case for case in cases if case.name == name]
    for candidate in _ranked(catalog, cases, stack, gpus, store):
        yield from _windows(candidate, stack, gpus, via, store)


def _runnable(catalog: Catalog, stack: Stack, via: Via) -> list[Case]:
    """The cases of models that the stack runs; natively only those whose imports are installed in this Python."""
    cases = []
    for case in catalog.cases.values():
        if case.name not in stack.runs or case.kind == MEASURE:
            continue
        if via == "native" and not _is_installed([*NEEDED, *case.imports]):
            continue
        cases.append(case)
    return cases


def _is_installed(packages: Sequence[str]) -> bool:
    """Whether all of these packages can be imported in this Python."""
    return all(find_spec(package) is not None for package in packages)


def _on_a_processor(catalog: Catalog, stack: Stack, gpus: int, via: Via, name: str) -> Iterator[PlannedRun]:
    """The run of the case `name` on a processor; nothing if the stack or this Python cannot run it."""
    for case in _runnable(catalog, stack, via):
        if case.name == name:
            options = LocalOptions(gpus=gpus, preset="tiny", steps=STEPS_ON_A_PROCESSOR)
            request = RunRequest(case, stack, options)
            yield PlannedRun(
                target_of(request, via, DockerOptions()), START_FACTOR * START_SECONDS["cpu"], "a model, tiny"
            )


def _ranked(catalog: Catalog, cases: Sequence[Case], stack: Stack, gpus: int, store: Store) -> list[Candidate]:
    """The cases that fit the memory of a device, the most suitable first.

    Cases with claims of this device come first, then those with cited rows of it, then those with earlier runs in the
    store, then all others. In each group, the cases that take most memory come first.
    """
    as_claimed: list[Candidate] = []
    as_cited: list[Candidate] = []
    as_before: list[Candidate] = []
    without_reference: list[Candidate] = []
    for case in cases:
        claim = _nearest_claim(catalog, case, _device_models(catalog), gpus)
        if claim is not None and not _fits(claim, gpus):
            continue
        if claim is not None and _is_of_these_devices(claim, catalog, gpus):
            as_claimed.append(_as_claimed(case, claim))
        as_cited += _as_cited(catalog, case, gpus)
        if claim is None:
            continue
        candidate = Candidate(case, NOT_JUDGED, _seconds_of_step(case, claim, {}), _memory_gib(claim))
        if _has_run(case, stack, store):
            as_before.append(candidate)
        else:
            without_reference.append(candidate)
    ranked = []
    for group in (as_claimed, as_cited, as_before, without_reference):
        ranked += sorted(group, key=lambda candidate: (-candidate.memory_gib, candidate.case.name))
    return ranked


def _device_models(catalog: Catalog) -> set[str]:
    """The ids of the device models of this machine."""
    return {device.id for device in find_device_models(this_machine(), catalog)}


def _fits(claim: Claim, gpus: int) -> bool:
    """Whether the memory that a row states fits a device of this machine; True if that memory is not known.

    If the row splits a model over its devices, and there are fewer here, each takes more memory.
    """
    memory_gib = this_machine().memory_gib
    if not memory_gib:
        return True
    growth = 1.0
    if "layout" in claim.conditions:
        growth = max(1.0, claim.run.gpus / gpus)
    return growth * _memory_gib(claim) <= MEMORY_SHARE * memory_gib


def _is_of_these_devices(claim: Claim, catalog: Catalog, gpus: int) -> bool:
    """Whether a row was measured on as many devices of a model of this machine."""
    return claim.device_id in _device_models(catalog) and claim.run.gpus == gpus


def _as_claimed(case: Case, claim: Claim) -> Candidate:
    """The run that a claim describes, with its settings."""
    settings = tuple(f"{key}={value}" for key, value in claim.run.set.items())
    seconds = _seconds_of_step(case, claim, claim.run.set)
    return Candidate(case, f"as {claim.id}", seconds, _memory_gib(claim), claim.run.precision, settings)


def _as_cited(catalog: Catalog, case: Case, gpus: int) -> list[Candidate]:
    """A run for each cited row of this machine's devices that it can be compared with."""
    candidates = []
    for device in find_device_models(this_machine(), catalog):
        for row in cited_rows(case, wanted_conditions(case, device, gpus), catalog):
            candidates.append(Candidate(case, f"as {row.id}", _seconds_of_step(case, row, {})))
    return candidates


def _has_run(case: Case, stack: Stack, store: Store) -> bool:
    """Whether the store has a run of the case on this stack; it may be of another machine."""
    return next(iter(store.list_records(case.name, *stack.names)), None) is not None


def _nearest_claim(catalog: Catalog, case: Case, devices: Collection[str], gpus: int) -> Claim | None:
    """The single-node claim whose conditions are nearest to runs of a case on these devices; None without one."""

    def distance(claim: Claim) -> tuple[bool, bool, bool, int]:
        """The deviations of a claim, the most important first; tuples compare in this order."""
        other_device = claim.device_id not in devices
        no_memory = _memory_gib(claim) == 0
        other_batch = other_device and "batch_size" in claim.run.set  # the run has the batch size of the preset
        difference_in_devices = abs(claim.run.gpus - gpus)
        return other_device, no_memory, other_batch, difference_in_devices

    claims = [claim for claim in catalog.claims.values() if claim.case == case.name and claim.run.nodes == 1]
    return min(claims, key=distance, default=None)


def _windows(candidate: Candidate, stack: Stack, gpus: int, via: Via, store: Store) -> Iterator[PlannedRun]:
    """The runs of a case with windows of several lengths, the longest first.

    The longest shows the device at its steady temperature, then comes the window of the case, then the shortest that
    decides. Nothing if these devices cannot run the case, or if it is not known how long a run takes.
    """
    case = candidate.case
    train = schedule(preset_of(case.presets, "reference"))
    case_window = train["window_steps"] or 0
    fewest = FEWEST_STEPS
    if any("pp" in engine.layout for engine in case.engines.values()):
        fewest = case_window
    windows = {fewest, max(case_window, fewest)}
    if candidate.seconds_of_step:
        steps_until_heated = math.ceil(HEATED / candidate.seconds_of_step)
        windows.add(max(case_window, fewest, steps_until_heated))
    for window in sorted(windows, reverse=True):
        steps = None  # the window of the case
        if window != case_window:
            steps = window
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
        yield PlannedRun(target, seconds + START_SECONDS[stack.device_kind], candidate.why)


def _memory_gib(claim: Claim) -> float:
    """The memory of a device that a run takes according to a row, GiB; 0 if the row states none."""
    memory = claim.metric("mem_peak")
    if memory is None:
        return 0.0
    return memory.value


def _seconds_of_step(case: Case, row: PublishedRow, settings: Mapping[str, Any]) -> float | None:
    """Seconds of a step at the speed of a row, which may be of another device; None if the row states no speed.

    `settings`: the settings of the row that the run has, too.
    """
    speed = row.metric(case.gate)
    if speed is None or not speed.value:
        return None
    preset = preset_of(case.presets, "reference")
    settings_of_run = {"batch_size": schedule(preset)["batch_size"], **preset.get("layout", {}), **settings}
    devices_of_replica = (settings_of_run.get("tp") or 1) * (settings_of_run.get("pp") or 1)
    # The work of a device in a step, in the unit of the speed: samples or tokens.
    work = float(settings_of_run["batch_size"]) / devices_of_replica
    if speed.unit.startswith("tokens"):
        work *= row.count("sequence_length") or 0
    if speed.scope == "job":
        work *= row.count("devices") or 1
    if not work:  # the row does not state the length of its sequences
        return None
    return work / speed.value
