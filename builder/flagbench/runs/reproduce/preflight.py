"""Checks a machine before a row is run on it: whether it is the row's hardware, and whether anything disturbs a run.

A row is a published result, which is to be reproduced; code calls it a claim (`plan.claim`). Each check yields
findings; one with the level FAIL forbids the run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flagbench.errors import FlagbenchError
from flagbench.images.bucket import is_in_bucket
from flagbench.machine.catalog import find_device_models
from flagbench.machine.devices import Machine
from flagbench.machine.diagnosis import Diagnosis, Level, check_disturbances, check_load, check_memory
from flagbench.machine.disturbance_limits import WHOLE_MEMORY
from flagbench.machine.look import MachineFacts
from flagbench.machine.vendors import older_drivers
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Catalog
from flagbench.runs.doctor import check_disks
from flagbench.runs.launchers.describe import Described, describe
from flagbench.runs.reproduce.nearest import machine_conditions, nearest_lines
from flagbench.runs.reproduce.plan import ReproductionPlan
from flagbench.runs.target import Target
from flagbench.verdict import conditions
from flagbench_core.exit_codes import ExitCode

# Names of findings. They are in the output of --json, so they do not change.
DEVICE = "device"
"""The finding on the model of the devices. Other modules look it up by this name."""
_DEVICE_COUNT = "devices"
"""The finding on the number of devices, or that they are unknown."""
_DEVICE_MEMORY = "memory of the device"
"""The finding that a device has less memory than its model: only a part of it can be used."""
_PARTITIONS = "MIG"
"""The finding that devices are partitioned (NVIDIA's multi-instance GPU)."""
_DRIVER = "driver"
"""The finding on the version of the devices' driver."""
_NODES = "nodes"
"""The finding that the row has several nodes."""
_LAYOUT = "layout"
"""The finding that the model cannot be divided over the devices."""
_IMAGE = "image"
"""The finding on the image of the run."""
_ENGINE = "engine"
"""The finding that the container engine does not answer."""
_LOCK = "lock"
"""The finding that the stack's lockfile is missing or does not fit, so that no image can be built."""

_REPEATS = 5
"""The runs that the command shown for several nodes makes: enough for the verdict to use the spread between them.

With fewer, the verdict takes the spread from other runs (RUNS_FOR_STUDENT in flagbench.verdict.stats.between).
"""


def check_machine(
    plan: ReproductionPlan, catalog: Catalog, facts: MachineFacts, store: str | None, *, container: bool
) -> list[Diagnosis]:
    """Run every check and return the findings.

    Hardware other than the row's forbids the run (FAIL), unless --on chose the stack: then it is a warning.

    Args:
        plan: the run of the row.
        catalog: all cases, stacks and rows.
        facts: what was found out about this machine.
        store: the address of the store, whose disk is checked; None: the default one.
        container: whether the run is in a container.
    """
    findings = [*_check_nodes(plan)]
    if plan.request.stack.device_kind == "cpu":
        findings.append(Diagnosis(DEVICE, Level.OK, f"a processor, {plan.request.options.gpus} rank(s)"))
        findings += check_load(facts)
    elif container and _engine_is_remote():
        detail = "unknown: the engine is on another machine"
        findings.append(Diagnosis(_DEVICE_COUNT, Level.WARN, detail, "run this command there"))
    else:
        findings += _check_devices(plan, catalog, facts)
        findings += check_disturbances(facts)
        findings += _check_driver(plan, facts, container=container)
    return [*findings, check_memory(), *check_disks(store)]


def wrong_machine_error(
    plan: ReproductionPlan, catalog: Catalog, facts: MachineFacts, forbidding: Sequence[Diagnosis]
) -> FlagbenchError:
    """The error (WRONG_HARDWARE) for findings that forbid a run, with the rows that come closest to this machine."""
    machine = facts.accelerators
    model = machine_conditions(machine, catalog)[conditions.DEVICE_MODEL]
    closest = ""
    # A machine with the row's model needs no other row: the number or the state of its devices forbids the run.
    if machine.devices and model != plan.claim.conditions.get(conditions.DEVICE_MODEL):
        rows = nearest_lines(plan.claim.case, machine, catalog)
        closest = "\n  ".join(["\nrows that come closest to this machine:", *rows])
    reasons = "; ".join(f"{finding.name}: {finding.detail}" for finding in forbidding)
    remedies: list[str] = []
    for finding in forbidding:
        if finding.remedy and finding.remedy not in remedies:
            remedies.append(finding.remedy)
    return FlagbenchError(
        f"this machine cannot reproduce {plan.claim.id}: {reasons}{closest}",
        remedy="; ".join(remedies),
        code=ExitCode.WRONG_HARDWARE,
    )


def check_image(target: Target, catalog: Catalog) -> list[Diagnosis]:
    """Check that the container engine answers and has the image of a run; if not, that the image can be built.

    Returns no finding for a run without an image, or with one in a bucket.
    """
    # Imported late: only --dry-run needs them.
    from flagbench.images.build import require_locked
    from flagbench.images.build_options import BuildOptions
    from flagbench.images.lockfile import read_lock
    from flagbench.images.render.templates import images_root

    image = target.image
    if image is None or is_in_bucket(image):
        return []
    image_error = _image_error(target)
    if image_error is None:
        return [Diagnosis(_IMAGE, Level.OK, image)]
    name = _IMAGE
    if image_error.code is ExitCode.ENGINE:
        name = _ENGINE
    findings = [Diagnosis(name, Level.WARN, image_error.message, image_error.remedy)]
    stack = target.request.stack
    try:
        require_locked(stack, read_lock(stack, images_root(catalog)), BuildOptions())
    except FlagbenchError as error:
        detail = f"an image cannot be built yet: {error.message}"
        findings.append(Diagnosis(_LOCK, Level.WARN, detail, error.remedy))
    return findings


class LayoutCheck(NamedTuple):
    """The configuration of the runs, or the reason why there can be none: one of the two fields is None."""

    described: Described | None
    finding: Diagnosis | None
    """A finding with the level FAIL."""


def check_layout(plan: ReproductionPlan, *, container: bool) -> LayoutCheck:
    """Resolve the configuration of the runs, and check that the model can be divided over the devices.

    Raises FlagbenchError (DATA) if a folder is missing.
    """
    try:
        return LayoutCheck(describe(plan.request, container=container), None)
    except FlagbenchError as error:
        if error.code is not ExitCode.USAGE:
            raise
        command = f"`flagbench plan {plan.request.case.name} --gpus N --mem GIB`"
        remedy = f"ask for other --gpus with --on; {command} has layouts"
        return LayoutCheck(None, Diagnosis(_LAYOUT, Level.FAIL, error.message, remedy))


def _engine_is_remote() -> bool:
    """Return whether DOCKER_HOST names a container engine that is reached over a network, not by a local socket."""
    return os.environ.get("DOCKER_HOST", "").startswith(("tcp:", "ssh:", "http"))


def _image_error(target: Target) -> FlagbenchError | None:
    """Return why a run cannot use its image: the engine does not answer, or lacks it. None if it can."""
    try:
        target.launcher.check(target.request)
    except FlagbenchError as error:
        return error
    return None


def _check_nodes(plan: ReproductionPlan) -> Iterator[Diagnosis]:
    """Refuse a row of several nodes, because this command runs on one; the remedy names the commands to use."""
    options = plan.request.options
    if options.nodes > 1:
        name = plan.name or "NAME"
        words = ["flagbench", "run", plan.request.name, *options.command_line()]
        words += [f"--repeat={_REPEATS}", f"--name={name}"]
        yield Diagnosis(
            _NODES,
            Level.FAIL,
            f"the row has {options.nodes} nodes, and this command runs on one",
            f"start `{shlex.join(words)} --node-rank=K --master=HOST:PORT` on each node, then `flagbench "
            f"verify {name} --claim {plan.claim.id}` on node 0; or name a stack for one node with --on",
        )


def _check_devices(plan: ReproductionPlan, catalog: Catalog, facts: MachineFacts) -> Iterator[Diagnosis]:
    """Check the model, number and memory of the devices, and that they are not partitioned.

    Too few devices always forbid the run (FAIL). Other devices than the row's, or parts of devices, forbid it unless
    --on chose the stack: then it is a warning.
    """
    machine = facts.accelerators
    if not machine.devices:
        detail = "no accelerator was found"
        remedy = "install its driver, or use --on cpu --preset tiny"
        if machine.problem:
            detail = f"the accelerators are not known: {machine.problem}"
            remedy = machine.remedy or remedy
        yield Diagnosis(DEVICE, Level.FAIL, detail, remedy)
        return
    level = Level.FAIL
    if plan.stack_was_chosen:
        level = Level.WARN
    cards = find_device_models(machine, catalog, partitions=True)
    yield _check_device_model(plan, machine, cards, level)
    needed = plan.request.options.gpus
    if machine.visible < needed:
        yield Diagnosis(
            _DEVICE_COUNT,
            Level.FAIL,
            f"{machine.visible} can be used, the run needs {needed}",
            "use a larger machine or unset CUDA_VISIBLE_DEVICES; or ask for fewer with --on and --gpus",
        )
    for card in cards:
        smallest_gib = _smallest_memory(machine, card)
        if smallest_gib is not None and smallest_gib < WHOLE_MEMORY * card.memory_gib:
            detail = f"{smallest_gib:.1f} GiB, a whole {card.name} has {card.memory_gib:g}"
            yield Diagnosis(_DEVICE_MEMORY, level, detail, "use a whole device")
    if facts.partitions:
        remedy = "use whole devices, or ask the machine's administrator to disable MIG"
        yield Diagnosis(_PARTITIONS, level, "; ".join(facts.partitions), remedy)


def _smallest_memory(machine: Machine, card: DeviceModel) -> float | None:
    """The memory of the smallest device of a model, GiB; None if no device of it reports its memory."""
    sizes = []
    for device in machine.devices:
        if device.memory_gib and card.has_name(device.name):
            sizes.append(device.memory_gib)
    return min(sizes, default=None)


def _check_device_model(
    plan: ReproductionPlan, machine: Machine, cards: Sequence[DeviceModel], level: Level
) -> Diagnosis:
    """Check that the machine has the row's device.

    `cards`: the models of the machine's devices. `level`: the level of the finding if the row's is not among them.
    """
    wanted = str(plan.claim.conditions.get(conditions.DEVICE_MODEL))
    # A machine that also has devices of other models passes: on which of them a run was, its record says, and the
    # verdict compares that.
    has_name = any(device.name == wanted for device in machine.devices)
    has_model = any(card.has_name(wanted) for card in cards)
    if has_name or has_model:
        return Diagnosis(DEVICE, Level.OK, machine.described)
    remedy = (
        f"the verdict is NOT_COMPARABLE, `flagbench expect {plan.claim.case}` shows what is published for "
        "this device, and `flagbench verify --baseline` compares with runs of your own"
    )
    if not plan.stack_was_chosen:
        remedy = f"use the row's device, or name the stack to run on with --on: then {remedy}"
    return Diagnosis(DEVICE, level, f"{machine.described} here, the row has {wanted}", remedy)


def _check_driver(plan: ReproductionPlan, facts: MachineFacts, *, container: bool) -> Iterator[Diagnosis]:
    """Name the driver; in a container, check that it is not older than the stack's image needs."""
    floor = plan.request.stack.device.driver_floor
    if not facts.drivers:
        return
    drivers = ", ".join(facts.drivers)
    if container and floor is not None and older_drivers(facts.drivers, floor):
        yield Diagnosis(
            _DRIVER,
            Level.WARN,
            f"{drivers} is older than {floor}, which the image of {plan.request.stack.name} needs",
            f"install driver {floor} or newer, or choose a stack for this driver with --on",
        )
    else:
        yield Diagnosis(_DRIVER, Level.OK, drivers)
