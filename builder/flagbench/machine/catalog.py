"""What commands say of this machine's accelerators and of the rows that were published for them."""

from __future__ import annotations

from flagbench.console.output import print_note
from flagbench.console.terminal import brief
from flagbench.image_reference import case_and_stack
from flagbench.machine.devices import Machine, cards_here, claims_here, closest_claims, stacks_here, this_machine
from flagbench.manifests.lookup import UnknownNameError, catalog_get
from flagbench.manifests.model import Catalog, Claim

_SHOWN = 4


def summary(machine: Machine, catalog: Catalog) -> str:
    """One line: what was found here, and how many published rows are for this device, else which come closest."""
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
    device, close = closest_claims(machine, catalog)
    return f"{here}; no published row is for this device, the nearest are for {device}: {_named(close)}"


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
        raise UnknownNameError(f"'{image_name}' names no stack, and {why}", remedy=f"write one: {', '.join(able)}")
    chosen = f"{case.name}:{fitting[0].name}"
    here = brief(machine.described) or "no accelerator"
    print_note(f"flagbench: this machine has {here}, so {image_name} is {chosen}")
    if machine.devices and not cards_here(machine, catalog, partitions=True):
        print_note("flagbench: no manifest has this device: without its peak, the record has no mfu")
    if rows := [claim for claim in claims_here(machine, catalog) if claim.case == case.name]:
        after = f"after the run: flagbench verify last --claim {rows[0].id}"
        print_note(f"flagbench: published rows for this device: {_named(rows)}; {after}")
    elif machine.devices:
        device, close = closest_claims(machine, catalog)
        close = tuple(claim for claim in close if claim.case == case.name)
        near = f"; the nearest are for {device}: {_named(close)}" if close else ""
        print_note(f"flagbench: no published row of {case.name} is for this device{near}")
        more = f"flagbench expect {case.name}, and after the run flagbench verify last --baseline RECORD"
        print_note(f"flagbench: what is published for it, and runs of your own to compare with: {more}")
    return chosen


def _named(rows: tuple[Claim, ...] | list[Claim]) -> str:
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return ", ".join(claim.id for claim in rows[:_SHOWN]) + more
