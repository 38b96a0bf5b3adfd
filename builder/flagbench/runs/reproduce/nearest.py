"""Which rows come closest to a machine, and what would differ from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from flagbench.errors import FlagbenchError
from flagbench.machine.catalog import cards_here
from flagbench.machine.devices import Machine, this_machine
from flagbench.manifests.fields import Scalar
from flagbench.manifests.lookup import catalog_get
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim
from flagbench.verdict.conditions import DEVICE_MODEL, ConditionResult, compare_conditions, describe

SHOWN = 3
"""How many rows are named."""


def find_claim(name: str, catalog: Catalog) -> Claim:
    """The row of that name. For the name of a case, FlagbenchError (usage) with the rows nearest to this machine."""
    if name not in catalog.cases:
        return catalog_get(catalog.claims, name, kind="claim")
    lines = nearest_lines(name, this_machine(), catalog, 2 * SHOWN)
    raise FlagbenchError(
        f"'{name}' is a case, not a row of it",
        remedy="\n  ".join(["name one of its rows, the nearest first:", *lines]),
    )


def nearest_lines(case: str, machine: Machine, catalog: Catalog, most: int = SHOWN) -> list[str]:
    """The claims of a case, those first of which the least differs on a machine; one line each."""
    conditions = machine_conditions(machine, catalog)
    claims = [claim for claim in catalog.claims.values() if claim.case == case]
    lines = []
    for claim in nearest_claims(claims, conditions)[:most]:
        differing = "; ".join(describe(condition) for condition in _differing(claim, conditions))
        lines.append(f"{claim.id}: {differing or 'nothing known to differ'}")
    return lines


def machine_conditions(machine: Machine, catalog: Catalog) -> dict[str, Scalar | None]:
    """The conditions that a machine decides: which device, and how many on one node."""
    names = {device.name for device in machine.devices}
    return {DEVICE_MODEL: _device_model(names, machine, catalog), "devices": machine.visible or None, "nodes": 1}


def _device_model(names: Collection[str], machine: Machine, catalog: Catalog) -> str | None:
    """The name by which published rows have the devices of a machine; None where they are of several models."""
    fitting = []
    for card in cards_here(machine, catalog):
        if all(card.has_name(name) for name in names):
            fitting.append(card.name)
    # Several cards may report one name; that with published rows is meant.
    published = {claim.conditions.get(DEVICE_MODEL) for claim in catalog.claims.values()}
    for name in fitting:
        if name in published:
            return name
    if fitting:
        return fitting[0]
    if len(names) == 1:
        return next(iter(names))
    return None


def nearest_claims(claims: Iterable[Claim], conditions: Mapping[str, Scalar | None]) -> list[Claim]:
    """The claims of a case by how many of a machine's `conditions` differ, the device first; the nearest first."""

    def distance(claim: Claim) -> tuple[bool, int, float]:
        names = [condition.name for condition in _differing(claim, conditions)]
        difference = 0.0
        published, devices = claim.count("devices"), conditions.get("devices")
        if published is not None and isinstance(devices, int):
            difference = abs(published - devices)
        return DEVICE_MODEL in names, len(names), difference

    return sorted(claims, key=distance)


def _differing(claim: Claim, conditions: Mapping[str, Scalar | None]) -> list[ConditionResult]:
    """The conditions of a machine that differ from a claim's."""
    compared = compare_conditions(conditions, conditions, claim.conditions)
    return [condition for condition in compared if condition.forbids]
