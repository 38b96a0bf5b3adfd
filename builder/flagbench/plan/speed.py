"""What tensor parallelism costs, from published rows that differ in nothing else but the number of stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.model import Case, Claim
from flagbench.plan.model import bubble

_LAYOUT = re.compile(r"dp(\d+) tp(\d+) pp(\d+)")
_MAY_DIFFER = ("layout",)
"""Conditions of compared rows."""


@dataclass(frozen=True)
class TensorSpeed:
    """Speed by the number of tensor-parallel ranks, 1 for the fastest one measured."""

    measured: Mapping[int, float] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    """Ids of the rows it follows from."""

    def of(self, tp: int) -> float:
        """The relative speed: that of the largest measured number up to `tp`; below all of them, that of the
        smallest."""
        if not self.measured:
            return 1.0
        known = sorted(self.measured)
        return self.measured[max((size for size in known if size <= tp), default=known[0])]


def tensor_speed(case: Case, claims: Iterable[Claim]) -> TensorSpeed:
    """What the published rows of a case say: the speed of each without its predicted bubble, among the rows that
    agree in every condition but the layout."""
    groups: dict[tuple[object, ...], dict[int, tuple[float, str]]] = {}
    for claim in claims:
        found = claim.metric(case.gate)
        layout = _LAYOUT.fullmatch(str(claim.conditions.get("layout")))
        accumulated = claim.conditions.get("gradient_accumulation_steps", NOT_PUBLISHED)
        if claim.case != case.name or found is None or layout is None or not isinstance(accumulated, int):
            continue
        same = tuple(value for name, value in claim.conditions.items() if name not in _MAY_DIFFER)
        tp, pp = int(layout[2]), int(layout[3])
        groups.setdefault(same, {})[tp] = (float(found.value) / (1 - bubble(pp, accumulated)), claim.id)
    compared = max(groups.values(), key=len, default={})
    if len(compared) < 2:
        return TensorSpeed()
    fastest = max(speed for speed, _ in compared.values())
    return TensorSpeed(
        {tp: speed / fastest for tp, (speed, _) in sorted(compared.items())},
        tuple(claim for _, (_, claim) in sorted(compared.items())),
    )
