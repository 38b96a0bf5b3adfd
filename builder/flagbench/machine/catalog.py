"""What the catalog has for this machine's accelerators: their devices, stacks and published rows."""

from __future__ import annotations

from collections.abc import Collection

from flagbench.console.output import print_note
from flagbench.console.terminal import brief
from flagbench.image_reference import case_and_stack
from flagbench.machine.devices import Machine, architecture_here, this_machine
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.lookup import UnknownNameError, catalog_get
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim
from flagbench.manifests.stack import Stack

_SHOWN = 4


def cards_here(machine: Machine, catalog: Catalog, *, partitions: bool = False) -> tuple[DeviceModel, ...]:
    """The devices of the manifests that this machine has, each once; with `partitions` also as parts of them."""
    found: dict[str, DeviceModel] = {}
    for device in machine.devices:
        if partitions or not device.partition:
            found.update((id, model) for id, model in catalog.devices.items() if model.has_name(device.name))
    return tuple(found.values())


def claims_here(machine: Machine, catalog: Catalog) -> tuple[Claim, ...]:
    """The rows that were published for this machine's devices, those for as many devices as are visible first."""
    ids = {card.id for card in cards_here(machine, catalog)}
    rows = [claim for claim in catalog.claims.values() if claim.device_id in ids]
    return tuple(sorted(rows, key=lambda claim: claim.conditions.get("devices") != machine.visible))


def stacks_here(machine: Machine, catalog: Catalog, case: Case) -> tuple[Stack, ...]:
    """The stacks that run a case on this machine's device: those of its published rows first.

    A device that no manifest has is looked up by its architecture. On a machine without an accelerator, those of the
    processor; on one with several models, none.
    """
    able = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    if not machine.devices:
        return tuple(stack for stack in able if stack.device_kind == "cpu")
    if len({device.name for device in machine.devices}) > 1:
        return ()
    if known := cards_here(machine, catalog, partitions=True):
        fitting = [stack for stack in able if any(model in stack.accelerators for model in known)]
    else:
        architecture = architecture_here()
        fitting = [stack for stack in able if is_built_for(stack.device.architectures, architecture)]
    published = [claim.stack for claim in claims_here(machine, catalog) if claim.case == case.name]
    order = {name: place for place, name in reversed(list(enumerate(published)))}
    return tuple(sorted(fitting, key=lambda stack: order.get(stack.name, len(published))))


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
    return any(other[:-1] == major and other[-1] <= minor for other in built)


def stack_of_vendor(vendor: str, catalog: Catalog, case: Case) -> Stack | None:
    """The stack for most devices of a vendor that runs a case: for a device whose model is not known."""
    fitting = []
    for stack in catalog.stacks.values():
        if case.name in stack.runs and any(device.vendor == vendor for device in stack.accelerators):
            fitting.append(stack)
    return max(fitting, key=lambda stack: len(stack.accelerators), default=None)


def summary(machine: Machine, catalog: Catalog) -> str:
    """One line: what was found here, and how many published rows are for this device."""
    if machine.problem:
        return f"this machine: unknown, because {machine.problem}"
    if not machine.devices:
        return "this machine: no accelerator was found, and no published row is for a processor"
    here = f"this machine: {brief(machine.described)}"
    if machine.visible != len(machine.devices):
        here += f", {machine.visible} visible"
    rows = claims_here(machine, catalog)
    if rows:
        return f"{here}; {len(rows)} of {len(catalog.claims)} rows are for this device"
    return f"{here}; no published row is for this device: `flagbench expect CASE` shows what comes closest"


def with_stack(image_name: str, catalog: Catalog) -> str:
    """`case:stack` for a case alone: the stack that fits this machine's device. Says on stderr what it chose, which
    rows are for this device, and how to verify against one.

    Raises UnknownNameError (usage) for an unknown case, or where no stack fits.
    """
    case_name, stack_name = case_and_stack(image_name)
    if stack_name or ":" in image_name:
        return image_name
    case, machine = catalog_get(catalog.cases, case_name, kind="case"), this_machine()
    able = [f"{case.name}:{stack.name}" for stack in catalog.stacks.values() if case.name in stack.runs]
    fitting = () if machine.problem else stacks_here(machine, catalog, case)
    if not fitting:
        why = machine.problem or f"no stack of {case.name} is for {brief(machine.described) or 'a processor'}"
        remedy = f"write one: {', '.join(able)}"
        if machine.remedy:
            remedy = f"{machine.remedy}; or {remedy}"
        raise UnknownNameError(f"'{image_name}' names no stack, and {why}", remedy=remedy)
    chosen = f"{case.name}:{fitting[0].name}"
    here = brief(machine.described) or "no accelerator"
    print_note(f"flagbench: this machine has {here}, so {image_name} is {chosen}")
    for words in machine.lost:
        print_note(f"flagbench: {brief(words)}")
    if machine.devices and not cards_here(machine, catalog, partitions=True):
        print_note("flagbench: no manifest has this device: without its peak, the record has no mfu")
    rows = [claim for claim in claims_here(machine, catalog) if claim.case == case.name]
    if rows:
        names = ", ".join(claim.id for claim in rows[:_SHOWN])
        if len(rows) > _SHOWN:
            names += f" and {len(rows) - _SHOWN} more"
        after = f"after the run: flagbench verify last --claim {rows[0].id}"
        print_note(f"flagbench: published rows for this device: {names}; {after}")
    elif machine.devices:
        print_note(f"flagbench: no published row of {case.name} is for this device")
        more = f"flagbench expect {case.name}, and after the run flagbench verify last --baseline RECORD"
        print_note(f"flagbench: what is published for it, and runs of your own to compare with: {more}")
    return chosen
