"""What the catalog has for this machine's accelerators: their devices, stacks and published rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flagbench.console.output import print_note
from flagbench.console.terminal import brief
from flagbench.image_reference import case_and_stack
from flagbench.machine.devices import Machine, architecture_here, this_machine
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.lookup import UnknownNameError, catalog_get
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim
from flagbench.manifests.stack import Stack

_NAMED_ROWS = 4
"""Most published rows that a note names."""


def cards_here(machine: Machine, catalog: Catalog, *, partitions: bool = False) -> tuple[DeviceModel, ...]:
    """The devices of the manifests that this machine has, each once; `partitions`: whether parts of devices count."""
    models: list[DeviceModel] = []
    for device in machine.devices:
        if device.partition and not partitions:
            continue
        for model in catalog.devices.values():
            if model.has_name(device.name) and model not in models:
                models.append(model)
    return tuple(models)


def claims_here(machine: Machine, catalog: Catalog) -> tuple[Claim, ...]:
    """The rows published for this machine's devices, those for the visible number of devices first."""
    ids = {card.id for card in cards_here(machine, catalog)}
    rows = [claim for claim in catalog.claims.values() if claim.device_id in ids]
    return tuple(sorted(rows, key=lambda claim: claim.conditions.get("devices") != machine.visible))


def stacks_here(machine: Machine, catalog: Catalog, case: Case) -> tuple[Stack, ...]:
    """The stacks that run a case on this machine's device: those of its published rows first.

    A device that no manifest has is looked up by its architecture. On a machine without an accelerator, those of the
    processor; on one with several models, none.
    """
    stacks = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    if not machine.devices:
        return tuple(stack for stack in stacks if stack.device_kind == "cpu")
    names = {device.name for device in machine.devices}
    if len(names) > 1:
        return ()
    fitting = _stacks_for_devices(machine, catalog, stacks)
    published = [claim.stack for claim in claims_here(machine, catalog) if claim.case == case.name]

    def place_among_rows(stack: Stack) -> int:
        if stack.name in published:
            return published.index(stack.name)
        return len(published)

    return tuple(sorted(fitting, key=place_among_rows))


def _stacks_for_devices(machine: Machine, catalog: Catalog, stacks: Sequence[Stack]) -> list[Stack]:
    """Those for this machine's device; for one that no manifest has, those for its architecture."""
    models = cards_here(machine, catalog, partitions=True)
    if not models:
        architecture = architecture_here()
        return [stack for stack in stacks if is_built_for(stack.device.architectures, architecture)]
    fitting = []
    for stack in stacks:
        if any(model in stack.accelerators for model in models):
            fitting.append(stack)
    return fitting


def is_built_for(built: Collection[str], architecture: str | None) -> bool:
    """Whether code that was built for some architectures runs on another one, such as sm_121.

    NVIDIA's code runs on architectures of the same major number and no older minor one (CUDA C++ Programming Guide,
    binary compatibility). The last digit is the minor one.
    """
    if architecture is None:
        return False
    if architecture in built:
        return True
    major, minor = architecture[:-1], architecture[-1]
    if not architecture.startswith("sm_"):
        return False
    return any(target[:-1] == major and target[-1] <= minor for target in built)


def stack_of_vendor(vendor: str, catalog: Catalog, case: Case) -> Stack | None:
    """The stack of a case that supports most devices of a vendor, for a device whose model is not known."""
    fitting = []
    for stack in catalog.stacks.values():
        if case.name in stack.runs and any(device.vendor == vendor for device in stack.accelerators):
            fitting.append(stack)
    return max(fitting, key=lambda stack: len(stack.accelerators), default=None)


def summary(machine: Machine, catalog: Catalog) -> str:
    """One line: the devices of this machine, and the number of published rows for them."""
    if machine.problem:
        return f"this machine: unknown, because {machine.problem}"
    if not machine.devices:
        return "this machine: no accelerator was found, and no published row is for a processor"
    description = f"this machine: {brief(machine.described)}"
    if machine.visible != len(machine.devices):
        description += f", {machine.visible} visible"
    rows = claims_here(machine, catalog)
    if rows:
        return f"{description}; {len(rows)} of {len(catalog.claims)} rows are for this device"
    return f"{description}; no published row is for this device: `flagbench expect CASE` shows what comes closest"


def with_stack(image_name: str, catalog: Catalog) -> str:
    """`case:stack` for a case alone: the stack that fits this machine's device. Says on stderr what it chose, which
    rows are for this device, and how to verify against one.

    Raises UnknownNameError (usage) for an unknown case, or where no stack fits.
    """
    case_name, stack_name = case_and_stack(image_name)
    if stack_name or ":" in image_name:
        return image_name
    case, machine = catalog_get(catalog.cases, case_name, kind="case"), this_machine()
    fitting: tuple[Stack, ...] = ()
    if not machine.problem:
        fitting = stacks_here(machine, catalog, case)
    if not fitting:
        raise _no_stack(image_name, machine, catalog, case)
    chosen = f"{case.name}:{fitting[0].name}"
    devices = brief(machine.described) or "no accelerator"
    print_note(f"flagbench: this machine has {devices}, so {image_name} is {chosen}")
    for sentence in machine.lost:
        print_note(f"flagbench: {brief(sentence)}")
    if machine.devices and not cards_here(machine, catalog, partitions=True):
        print_note("flagbench: no manifest has this device: without its peak, the record has no mfu")
    for sentence in _notes_on_rows(machine, catalog, case):
        print_note(f"flagbench: {sentence}")
    return chosen


def _no_stack(image_name: str, machine: Machine, catalog: Catalog, case: Case) -> UnknownNameError:
    """Why no stack could be chosen, with every image that may be named."""
    reason = machine.problem
    if reason is None:
        reason = f"no stack of {case.name} is for {brief(machine.described) or 'a processor'}"
    images = [f"{case.name}:{stack.name}" for stack in catalog.stacks.values() if case.name in stack.runs]
    remedy = f"write one: {', '.join(images)}"
    if machine.remedy:
        remedy = f"{machine.remedy}; or {remedy}"
    return UnknownNameError(f"'{image_name}' names no stack, and {reason}", remedy=remedy)


def _notes_on_rows(machine: Machine, catalog: Catalog, case: Case) -> list[str]:
    """Which rows of a case are for this machine's device, and how to compare a run with them, or with a run."""
    rows = [claim for claim in claims_here(machine, catalog) if claim.case == case.name]
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
