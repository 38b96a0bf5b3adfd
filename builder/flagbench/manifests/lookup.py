"""Looks up names in the catalog; the error for an unknown one names the nearest that exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Base, Stack

T = TypeVar("T")


class UnknownNameError(FlagbenchError):
    """A case, stack, claim or image that does not exist."""


def catalog_get(entries: Mapping[str, T], name: str, *, kind: str) -> T:
    """`entries[name]`; `kind` is `case`, `stack` or `claim`. Raises UnknownNameError (usage)."""
    if name in entries:
        return entries[name]
    close = near_names(name, entries)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UnknownNameError(
        f"there is no {kind} '{name}'", remedy=f"{hint}`flagbench list {kind}s` shows every {kind}"
    )


def near_names(name: str, known: Collection[str]) -> list[str]:
    """The known names that begin with it, else that contain it, else that are spelled like it; a few at most."""
    longer = [each for each in known if each.startswith(name.lower())]
    longer = longer or [each for each in known if len(name) > 2 and name.lower() in each]
    return longer[:5] or difflib.get_close_matches(name, [*known], n=3, cutoff=0.5)


def get_stack(name: str, catalog: Catalog) -> Stack:
    """The stack of that name or alias, or with devices of that name. If it names devices, only these are left in it.

    Of several stacks with such devices, the one with an alias that the name begins with: `a100-pcie` is of the stack
    `a100`. Raises UnknownNameError (usage).
    """
    stacks = catalog.stacks.values()
    known = {each: stack for stack in stacks for each in stack.names}
    if name not in known:
        having = [stack for stack in stacks if devices_named(name, stack.accelerators)]
        of_alias = [stack for stack in having if any(name.startswith(f"{alias}-") for alias in stack.aliases)]
        known |= {device.id: stack for stack in stacks for device in stack.accelerators}
        known |= dict(zip([name], of_alias or having, strict=False))
    stack = catalog_get(known, name, kind="stack")
    devices = devices_named(name, stack.accelerators)
    return stack if devices in ((), stack.accelerators) else replace(stack, accelerators=devices, chosen=name)


def devices_named(name: str, devices: Iterable[DeviceModel]) -> tuple[DeviceModel, ...]:
    """The devices whose id is `name`, or begins with it up to a dash: `h100` names h100-sxm and h100-pcie."""
    return tuple(device for device in devices if f"{device.id}-".startswith(f"{name}-"))


def device_reported_as(name: str, catalog: Catalog) -> DeviceModel | None:
    """The device whose driver reports that name; None where no manifest has it."""
    for device in catalog.devices.values():
        if device.has_name(name):
            return device
    return None


def require_base(stack: Stack) -> Base:
    """The base of a stack's images. Raises UnknownNameError (usage) for a stack without images."""
    if stack.base is None:
        remedy = "run it in a Python with a torch for its devices: `flagbench run CASE --via native`"
        raise UnknownNameError(f"the stack '{stack.name}' has no image", remedy=remedy)
    return stack.base


def resolve_image(image: str, catalog: Catalog) -> tuple[Case, Stack]:
    """The case and the stack that `case:stack` names, like `distilbert:cpu`; see `get_stack`.

    A leading `flagbench/`, as in the image's name in a registry, is accepted.
    Raises UnknownNameError (usage) for a missing colon, an unknown name, or a stack without that case.
    """
    case_name, stack_name = case_and_stack(image)
    if not (case_name and stack_name):
        close = difflib.get_close_matches(case_name, [*catalog.cases], n=1, cutoff=0.5) or [*catalog.cases]
        example = next((name for name in image_names(catalog) if name.startswith(f"{close[0]}:")), "distilbert:cpu")
        raise UnknownNameError(f"'{image}' does not name an image", remedy=f"write case:stack, for example {example}")
    case = catalog_get(catalog.cases, case_name, kind="case")
    stack = get_stack(stack_name, catalog)
    if case.name not in stack.runs:
        able = [other.name for other in catalog.stacks.values() if case.name in other.runs]
        why = stack.does_not_run.get(case.name) or case.does_not_run.get(stack.name)
        raise UnknownNameError(
            f"the stack '{stack.name}' does not run the case '{case.name}': {why}",
            remedy=f"stacks that run it: {', '.join(able) or 'none yet'}",
        )
    return case, stack


def image_names(catalog: Catalog) -> list[str]:
    """Every `case:stack` there is, by the stacks' names and aliases, sorted."""
    names = {
        f"{case}:{name}"
        for stack in catalog.stacks.values()
        for case in stack.runs
        for name in (stack.name, *stack.aliases)
    }
    return sorted(names)
