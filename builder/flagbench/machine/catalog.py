"""Finds what the catalog of manifests has for this machine's accelerators: device models, stacks, published rows.

A stack is a vendor's software on a family of devices, such as a100-cuda11.8. A claim is a published row (a benchmark
result with its source) that a case of the catalog can reproduce.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flagbench.console.output import print_note
from flagbench.console.terminal import brief
from flagbench.image_reference import case_and_stack
from flagbench.machine.devices import Machine, read_architecture, this_machine
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.lookup import UnknownNameError, catalog_get
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim
from flagbench.manifests.stack import Stack

_NAMED_ROWS = 4
"""Most published rows that a note names; `flagbench expect` shows all."""


def find_device_models(machine: Machine, catalog: Catalog, *, partitions: bool = False) -> tuple[DeviceModel, ...]:
    """Find the device models of the manifests that this machine has, each once.

    Args:
        partitions: whether a device of which only a part can be used (MIG) counts.
    """
    models: list[DeviceModel] = []
    for device in machine.devices:
        if device.partition and not partitions:
            continue
        for model in catalog.devices.values():
            if model.has_name(device.name) and model not in models:
                models.append(model)
    return tuple(models)


def find_claims(machine: Machine, catalog: Catalog) -> tuple[Claim, ...]:
    """Find the claims for this machine's devices. Those for its number of visible devices are first."""
    ids = {model.id for model in find_device_models(machine, catalog)}
    for_number: list[Claim] = []
    for_other_numbers: list[Claim] = []
    for claim in catalog.claims.values():
        if claim.device_id not in ids:
            continue
        if claim.conditions.get("devices") == machine.visible:
            for_number.append(claim)
        else:
            for_other_numbers.append(claim)
    return (*for_number, *for_other_numbers)


def find_stacks(machine: Machine, catalog: Catalog, case: Case) -> tuple[Stack, ...]:
    """Find the stacks that run a case on this machine's device. Those of its published rows are first.

    For a device that no manifest has, stacks for its architecture are taken. On a machine without an accelerator, the
    result is the stacks for processors; on a machine with several models of device it is empty.
    """
    stacks = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    if not machine.devices:
        return tuple(stack for stack in stacks if stack.device_kind == "cpu")
    names = {device.name for device in machine.devices}
    if len(names) > 1:
        return ()
    fitting = _stacks_for_devices(machine, catalog, stacks)
    published = [claim.stack for claim in find_claims(machine, catalog) if claim.case == case.name]

    def place_among_rows(stack: Stack) -> int:
        if stack.name in published:
            return published.index(stack.name)
        return len(published)

    return tuple(sorted(fitting, key=place_among_rows))


def _stacks_for_devices(machine: Machine, catalog: Catalog, stacks: Sequence[Stack]) -> list[Stack]:
    """Select the stacks for this machine's device, or for its architecture if no manifest has the device."""
    models = find_device_models(machine, catalog, partitions=True)
    if not models:
        architecture = read_architecture()
        return [stack for stack in stacks if is_built_for(stack.device.architectures, architecture)]
    fitting = []
    for stack in stacks:
        if any(model in stack.accelerators for model in models):
            fitting.append(stack)
    return fitting


def is_built_for(built: Collection[str], architecture: str | None) -> bool:
    """Whether code that was built for some architectures runs on another one.

    Code for an architecture of NVIDIA also runs on one with the same major version and a later minor version (CUDA
    C++ Programming Guide, binary compatibility). The last digit is the minor version: 12.1 is sm_121.

    Args:
        built: the architectures that the code was built for.
        architecture: such as sm_90 or gfx942; None if it is not known.
    """
    if architecture is None:
        return False
    if architecture in built:
        return True
    if not architecture.startswith("sm_"):
        return False
    major = architecture[:-1]
    minor = architecture[-1]
    return any(target[:-1] == major and target[-1] <= minor for target in built)


def guess_stack(vendor: str, catalog: Catalog, case: Case) -> Stack | None:
    """Find the stack of a case that supports most device models, among those that support a vendor's.

    It is a guess for a device whose model is not known. Returns None if no stack supports the vendor.
    """
    fitting = []
    for stack in catalog.stacks.values():
        if case.name in stack.runs and any(device.vendor == vendor for device in stack.accelerators):
            fitting.append(stack)
    return max(fitting, key=lambda stack: len(stack.accelerators), default=None)


def describe_machine(machine: Machine, catalog: Catalog) -> str:
    """Describe this machine's devices, and the number of published rows for them, in one line."""
    if machine.problem:
        return f"this machine: unknown, because {machine.problem}"
    if not machine.devices:
        return "this machine: no accelerator was found, and no published row is for a processor"
    description = f"this machine: {brief(machine.described)}"
    if machine.visible != len(machine.devices):
        description += f", {machine.visible} visible"
    rows = find_claims(machine, catalog)
    if rows:
        return f"{description}; {len(rows)} of {len(catalog.claims)} rows are for this device"
    return f"{description}; no published row is for this device: `flagbench expect CASE` shows what comes closest"


def choose_stack(image_name: str, catalog: Catalog) -> str:
    """Choose the stack for this machine's device if the name of an image is only that of a case.

    Prints on stderr which stack was chosen, which published rows are for this device, and how to compare a run with
    one. Returns `case:stack`; a name that has a stack is returned as it is.

    Raises UnknownNameError (USAGE) for an unknown case, or if no stack fits.
    """
    case_name, stack_name = case_and_stack(image_name)
    if stack_name or ":" in image_name:
        return image_name
    case = catalog_get(catalog.cases, case_name, kind="case")
    machine = this_machine()
    fitting: tuple[Stack, ...] = ()
    if not machine.problem:
        fitting = find_stacks(machine, catalog, case)
    if not fitting:
        raise _no_stack_error(image_name, machine, catalog, case)
    chosen = f"{case.name}:{fitting[0].name}"
    devices = brief(machine.described) or "no accelerator"
    print_note(f"flagbench: this machine has {devices}, so {image_name} is {chosen}")
    for sentence in machine.lost:
        print_note(f"flagbench: {brief(sentence)}")
    if machine.devices and not find_device_models(machine, catalog, partitions=True):
        print_note("flagbench: no manifest has this device: without its peak, the record has no mfu")
    for sentence in _notes_on_rows(machine, catalog, case):
        print_note(f"flagbench: {sentence}")
    return chosen


def _no_stack_error(image_name: str, machine: Machine, catalog: Catalog, case: Case) -> UnknownNameError:
    """Build the error if no stack could be chosen: the reason, and every image that a user can name instead."""
    reason = machine.problem
    if reason is None:
        reason = f"no stack of {case.name} is for {brief(machine.described) or 'a processor'}"
    images = [f"{case.name}:{stack.name}" for stack in catalog.stacks.values() if case.name in stack.runs]
    remedy = f"write one: {', '.join(images)}"
    if machine.remedy:
        remedy = f"{machine.remedy}; or {remedy}"
    return UnknownNameError(f"'{image_name}' names no stack, and {reason}", remedy=remedy)


def _notes_on_rows(machine: Machine, catalog: Catalog, case: Case) -> list[str]:
    """Write the notes on which rows of a case are for this machine's device, and how to compare a run with them.

    Without such rows, the notes say how to compare a run with another run.
    """
    rows = [claim for claim in find_claims(machine, catalog) if claim.case == case.name]
    if rows:
        names = ", ".join(claim.id for claim in rows[:_NAMED_ROWS])
        if len(rows) > _NAMED_ROWS:
            names += f" and {len(rows) - _NAMED_ROWS} more"
        after = f"after the run: flagbench verify last --claim {rows[0].id}"
        return [f"published rows for this device: {names}; {after}"]
    if not machine.devices:
        return []
    commands = f"flagbench expect {case.name}, and after the run flagbench verify last --baseline RECORD"
    return [
        f"no published row of {case.name} is for this device",
        f"what is published for it, and runs of your own to compare with: {commands}",
    ]
