"""Looks up names in the catalog; the error for an unknown one names the nearest that exist."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Base, Stack

T = TypeVar("T")
_MOST_NAMES = 5
"""Most names that an error suggests, to fit one line of a terminal."""
_MOST_SIMILAR_NAMES = 3
"""Most names that are suggested because of a similar spelling, which is a weaker hint than a common part."""
_SIMILARITY = 0.5
"""How similar a spelling has to be, as difflib's ratio from 0 to 1. Its default of 0.6 misses short names."""


class UnknownNameError(FlagbenchError):
    """A case, stack, claim or image that does not exist."""


def catalog_get(by_name: Mapping[str, T], name: str, *, kind: str) -> T:
    """Look up a name of the catalog; `kind` is `case`, `stack` or `claim`.

    Raises UnknownNameError (USAGE), which suggests near names, if there is none of that name.
    """
    if name in by_name:
        return by_name[name]
    remedy = f"`flagbench list {kind}s` shows every {kind}"
    close = near_names(name, by_name)
    if close:
        remedy = f"did you mean {' or '.join(close)}? {remedy}"
    raise UnknownNameError(f"there is no {kind} '{name}'", remedy=remedy)


def near_names(name: str, candidates: Collection[str]) -> list[str]:
    """Find a few candidates that begin with a name, or else contain it, or else have a similar spelling."""
    beginning = [candidate for candidate in candidates if candidate.startswith(name.lower())]
    if beginning:
        return beginning[:_MOST_NAMES]
    if len(name) > 2:  # One or two letters are contained in almost every name.
        containing = [candidate for candidate in candidates if name.lower() in candidate]
        if containing:
            return containing[:_MOST_NAMES]
    return difflib.get_close_matches(name, [*candidates], n=_MOST_SIMILAR_NAMES, cutoff=_SIMILARITY)


def get_stack(name: str, catalog: Catalog) -> Stack:
    """Find the stack of that name or alias, or with devices of that name.

    If the name is that of some of its devices, the result has only these as accelerators. If several stacks have such
    devices, the one with an alias that the name begins with is taken: `a100-pcie` selects the stack `a100`.

    Raises UnknownNameError (USAGE) if there is none.
    """
    return _select_devices(name, _find_stack(name, catalog))


def _select_devices(name: str, stack: Stack) -> Stack:
    """Keep only the accelerators of that name, if it is the name of some of the stack's devices."""
    devices = devices_named(name, stack.accelerators)
    if devices in ((), stack.accelerators):
        return stack
    return replace(stack, accelerators=devices, chosen=name)


def _find_stack(name: str, catalog: Catalog) -> Stack:
    """Find the stack with all of its devices; see `get_stack`."""
    by_name: dict[str, Stack] = {}
    for stack in catalog.stacks.values():
        by_name.update(dict.fromkeys(stack.names, stack))
    if name in by_name:
        return by_name[name]
    candidates = [stack for stack in catalog.stacks.values() if devices_named(name, stack.accelerators)]
    for stack in candidates:
        if any(name.startswith(f"{alias}-") for alias in stack.aliases):
            return stack
    if candidates:
        return candidates[0]
    # The error that follows suggests names of devices, too.
    for stack in catalog.stacks.values():
        by_name.update(dict.fromkeys([device.id for device in stack.accelerators], stack))
    return catalog_get(by_name, name, kind="stack")


def devices_named(name: str, devices: Iterable[DeviceModel]) -> tuple[DeviceModel, ...]:
    """Select the devices whose id is `name`, or begins with it up to a dash: `h100` names h100-sxm and h100-pcie."""
    return tuple(device for device in devices if f"{device.id}-".startswith(f"{name}-"))


def device_reported_as(name: str, catalog: Catalog) -> DeviceModel | None:
    """Find the device whose driver reports that name; None if no manifest has it."""
    for device in catalog.devices.values():
        if device.has_name(name):
            return device
    return None


def require_base(stack: Stack) -> Base:
    """Return the base of a stack's images. Raises UnknownNameError (USAGE) for a stack without images."""
    if stack.base is None:
        remedy = "run it in a Python with a torch for its devices: `flagbench run CASE --via native`"
        raise UnknownNameError(f"the stack '{stack.name}' has no image", remedy=remedy)
    return stack.base


def require_image(case: Case, stack: Stack) -> Base:
    """Return the base of a case's image on a stack.

    Raises UnknownNameError (USAGE) if there is no such image, so that the case only runs natively there.
    """
    base = require_base(stack)
    module = missing_module(case, stack)
    if module is not None:
        name = f"{case.name}:{stack.name}"
        raise UnknownNameError(
            f"there is no image {name}, because the case imports {module}: {stack.build.left_out[module]}",
            remedy=native_remedy(name, module, stack) or f"run it natively: `flagbench run {name} --via native`",
        )
    return base


def missing_module(case: Case, stack: Stack) -> str | None:
    """Find a module that a case imports and the images of a stack leave out; None if the case has an image there."""
    for module in case.imports:
        if module in stack.build.left_out:
            return module
    return None


def native_remedy(image: str, module: str, stack: Stack) -> str | None:
    """Write the commands that install a module for a native run.

    It is installed into a folder if images/locks has a lock of it for the stack, or else into this Python at the
    version that the stack expects. Returns None if the stack expects none.

    Args:
        image: `case:stack`, as a command line names it.
    """
    lock = stack.path.parents[2] / "images" / "locks" / f"{module}-{stack.name}.txt"
    if not lock.is_file():
        version = stack.expects.get(module)
        if version is None:
            return None
        return f"run `pip install {module}=={version}` in this Python, or use --via docker"
    install = f"python -m pip install --no-deps --target {lock.stem} -r {shlex.quote(str(lock))}"
    return f"run `{install}`, then `PYTHONPATH=$PWD/{lock.stem} flagbench run {image} --preset tiny`"


def resolve_image(image: str, catalog: Catalog) -> tuple[Case, Stack]:
    """Find the case and the stack that `case:stack` names, such as `distilbert:cpu`; see `get_stack`.

    If the stack does not run the case, and its name is that of devices, another stack with such devices is taken:
    `h100` selects cuda13, but for a case that serves vllm-cuda13.

    A leading `flagbench/`, as in the image's name in a registry, is accepted.

    Raises UnknownNameError (USAGE) for a missing colon, an unknown name, or a stack without that case.
    """
    case_name, stack_name = case_and_stack(image)
    if not (case_name and stack_name):
        example = _example_image(case_name, catalog)
        raise UnknownNameError(f"'{image}' does not name an image", remedy=f"write case:stack, for example {example}")
    case = catalog_get(catalog.cases, case_name, kind="case")
    stack = get_stack(stack_name, catalog)
    if case.name not in stack.runs:
        for candidate in catalog.stacks.values():
            if case.name in candidate.runs and devices_named(stack_name, candidate.accelerators):
                return case, _select_devices(stack_name, candidate)
        stacks = [candidate.name for candidate in catalog.stacks.values() if case.name in candidate.runs]
        reason = stack.does_not_run.get(case.name) or case.does_not_run.get(stack.name)
        raise UnknownNameError(
            f"the stack '{stack.name}' does not run the case '{case.name}': {reason}",
            remedy=f"stacks that run it: {', '.join(stacks) or 'none yet'}",
        )
    return case, stack


def _example_image(case_name: str, catalog: Catalog) -> str:
    """Choose an image as an example: one of the case whose name is nearest, or else of the first case."""
    names = [*catalog.cases]
    close = difflib.get_close_matches(case_name, names, n=1, cutoff=_SIMILARITY) or names
    for name in image_names(catalog):
        if name.startswith(f"{close[0]}:"):
            return name
    return "distilbert:cpu"


def image_names(catalog: Catalog) -> list[str]:
    """List every `case:stack` that exists, with the names and the aliases of stacks, sorted."""
    names = []
    for stack in catalog.stacks.values():
        for case in stack.runs:
            names += [f"{case}:{name}" for name in stack.names]
    return sorted({*names})
