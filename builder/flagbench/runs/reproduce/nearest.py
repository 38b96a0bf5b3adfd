"""Which rows come closest to a machine, and what would differ from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    here = machine_conditions(machine, catalog)
    claims = [claim for claim in catalog.claims.values() if claim.case == case]
    lines = []
    for claim in nearest_claims(claims, here)[:most]:
        differing = "; ".join(map(describe, _differing(claim, here)))
        lines.append(f"{claim.id}: {differing or 'nothing known to differ'}")
    return lines


def machine_conditions(machine: Machine, catalog: Catalog) -> dict[str, Scalar | None]:
    """The conditions that a machine decides: which device, and how many on one node."""
    names = {device.name for device in machine.devices}
    model = next(iter(names)) if len(names) == 1 else None
    published = {claim.conditions.get(DEVICE_MODEL) for claim in catalog.claims.values()}
    fitting = [card.name for card in cards_here(machine, catalog) if all(map(card.has_name, names))]
    # Several cards may report one name; that with published rows is meant.
    model = next((name for name in fitting if name in published), fitting[0] if fitting else model)
    return {DEVICE_MODEL: model, "devices": machine.visible or None, "nodes": 1}


def nearest_claims(claims: Iterable[Claim], here: Mapping[str, Scalar | None]) -> list[Claim]:
    """The claims of a case by how much of `here` differs, the device first; the nearest first."""

    def distance(claim: Claim) -> tuple[bool, int, float]:
        names = [result.name for result in _differing(claim, here)]
        published, mine = claim.count("devices"), here.get("devices")
        apart = abs(published - mine) if published is not None and isinstance(mine, int) else 0
        return DEVICE_MODEL in names, len(names), apart

    return sorted(claims, key=distance)


def _differing(claim: Claim, here: Mapping[str, Scalar | None]) -> list[ConditionResult]:
    """What of a machine differs from a claim."""
    return [result for result in compare_conditions(here, here, claim.conditions) if result.forbids]
