"""Stacks as arguments of a command: chosen by name, completed by the shell."""

from __future__ import annotations

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import get_stack
from flagbench.catalog.model import Catalog, Stack
from flagbench.errors import FlagbenchError


def complete_stacks(incomplete: str) -> list[str]:
    """Every stack and alias that starts with what was typed; none where the manifests are broken."""
    try:
        stacks = load_catalog(claims=False).stacks.values()
    except FlagbenchError:
        return []
    names = {name for stack in stacks for name in (stack.name, *stack.aliases)}
    return sorted(name for name in names if name.startswith(incomplete))


def chosen_stacks(catalog: Catalog, names: list[str], *, every: bool) -> list[Stack]:
    """The named stacks, or all of them, each once. Raises FlagbenchError (usage) for none or an unknown one."""
    if every and names:
        raise FlagbenchError("stacks are named, and --all is given too", remedy="name stacks or give --all, not both")
    if not every and not names:
        raise FlagbenchError(
            "no stack is named", remedy="name stacks (`flagbench list stacks` shows them) or give --all"
        )
    if every:
        return list(catalog.stacks.values())
    return list({stack.name: stack for stack in (get_stack(name, catalog) for name in names)}.values())
