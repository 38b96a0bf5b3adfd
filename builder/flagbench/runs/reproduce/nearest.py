"""Finds the published rows (claims) whose conditions come closest to a machine, and says what differs from them.

`flagbench reproduce` names them if a case is given in place of a row, or if the machine is not the row's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from flagbench.errors import FlagbenchError
from flagbench.machine.catalog import find_device_models
from flagbench.machine.devices import Machine, this_machine
from flagbench.manifests.fields import Scalar
from flagbench.manifests.lookup import catalog_get
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim
from flagbench.verdict.conditions import DEVICE_MODEL, ConditionResult, compare_conditions, describe_all

SHOWN = 3
"""The number of rows that are named."""


def find_claim(name: str, catalog: Catalog) -> Claim:
    """The row of that name.

    Raises FlagbenchError (USAGE) for an unknown name. If it is the name of a case, the remedy lists the rows of the
    case that are nearest to this machine.
    """
    if name not in catalog.cases:
        return catalog_get(catalog.claims, name, kind="claim")
    lines = nearest_lines(name, this_machine(), catalog, 2 * SHOWN)
    raise FlagbenchError(
        f"'{name}' is a case, not a row of it",
        remedy="\n  ".join(["name one of its rows, the nearest first:", *lines]),
    )


def nearest_lines(case: str, machine: Machine, catalog: Catalog, most: int = SHOWN) -> list[str]:
    """A line for each of the claims of a case that are nearest to a machine, the nearest first, with what differs."""
    conditions = machine_conditions(machine, catalog)
    claims = [claim for claim in catalog.claims.values() if claim.case == case]
    lines = []
    for claim in nearest_claims(claims, conditions)[:most]:
        differing = describe_all(_find_differing(claim, conditions))
        lines.append(f"{claim.id}: {differing or 'nothing known to differ'}")
    return lines


def machine_conditions(machine: Machine, catalog: Catalog) -> dict[str, Scalar | None]:
    """The conditions of a claim that a machine decides: the model and number of its devices, on one node."""
    names = {device.name for device in machine.devices}
    return {
        DEVICE_MODEL: _published_model(names, machine, catalog),
        "devices": machine.visible or None,
        "nodes": 1,
    }


def _published_model(names: Collection[str], machine: Machine, catalog: Catalog) -> str | None:
    """The name that published rows use for a machine's devices; None if they are of several models.

    `names`: the names that the devices report.
    """
    models = []
    for card in find_device_models(machine, catalog):
        if all(card.has_name(name) for name in names):
            models.append(card.name)
    # Several models may report one name; the first with published rows is taken.
    published = {claim.conditions.get(DEVICE_MODEL) for claim in catalog.claims.values()}
    for model in models:
        if model in published:
            return model
    if models:
        return models[0]
    if len(names) == 1:
        return next(iter(names))
    return None


def nearest_claims(claims: Iterable[Claim], conditions: Mapping[str, Scalar | None]) -> list[Claim]:
    """Sort claims by their distance from a machine's `conditions`, the nearest first."""
    return sorted(claims, key=lambda claim: _distance(claim, conditions))


class _Distance(NamedTuple):
    """The distance of a claim from a machine. Distances are compared field by field."""

    has_other_device: bool
    differing_conditions: int
    """The number of conditions that differ."""
    device_difference: float
    """The difference in the number of devices."""


def _distance(claim: Claim, conditions: Mapping[str, Scalar | None]) -> _Distance:
    """Measure how far a claim is from a machine's conditions."""
    names = [condition.name for condition in _find_differing(claim, conditions)]
    device_difference = 0.0
    published = claim.count("devices")
    devices = conditions.get("devices")
    if published is not None and isinstance(devices, int):
        device_difference = abs(published - devices)
    return _Distance(DEVICE_MODEL in names, len(names), device_difference)


def _find_differing(claim: Claim, conditions: Mapping[str, Scalar | None]) -> list[ConditionResult]:
    """The conditions of a claim that differ on a machine with these `conditions`."""
    compared = compare_conditions(conditions, conditions, claim.conditions)
    return [condition for condition in compared if condition.forbids]
