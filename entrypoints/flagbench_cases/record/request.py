"""The request, as reported in the record."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from flagbench_cases.record.time_of_day import ClockReading
from flagbench_cases.shared.parallel_layout import Layout, layout_of
from flagbench_core.config import digest
from flagbench_core.evidence.section import kind_of

RECORD_ID = re.compile("[0-9A-Za-z][0-9A-Za-z._-]{7,159}")
"""A valid id of a record, as in manifests/schema/record-v1.json."""


class Request(NamedTuple):
    """A request. Fields that could not be resolved have their defaults."""

    argv: list[str]
    case: str
    stack: dict[str, Any]
    run_id: str
    preset: str
    nodes: int
    gpus: int
    config: dict[str, Any] | None = None
    config_digest: str | None = None
    formula: str | None = None  # of FLOPs, as the case's manifest names it; None if it counts none
    unit: str = "samples"
    gate: str | None = None  # the first metric to compare with a claim
    checks: tuple[str, ...] = ()  # required by the case's manifest: must be made if applicable, and pass
    published_flops: dict[str, Any] | None = None  # the publisher's formula for utilisation
    record_id: str | None = None  # made by node 0 and given to all nodes; None: made with the record
    begun: ClockReading | None = None  # the clocks of this node when record_id was made
    roofs: dict[str, Any] | None = None  # the configuration of roofs, if they are measured before the steps

    def resolved(self, case: dict[str, Any], stack: dict[str, Any], resolved: dict[str, Any]) -> Request:
        """The request with its manifests and its resolved configuration."""
        flops: dict[str, Any] = {}
        if case["flops"] != "none":
            flops = case["flops"]
        return self._replace(
            case=case["name"],
            stack=stack,
            config=resolved,
            config_digest=digest(resolved),
            formula=flops.get("formula"),
            unit=case["unit"],
            gate=case["gate"],
            checks=tuple(case["checks"]),
            published_flops=_published_flops(flops, resolved, case["presets"]["reference"]),
        )

    @property
    def layout(self) -> Layout:
        """The layout of the ranks; for an unresolved request one replica per rank."""
        if self.config is None:
            return Layout(self.nodes * self.gpus)
        return layout_of(self.config)

    @property
    def kind(self) -> str:
        """The kind of case: `train`, `infer` or `measure`."""
        return kind_of(self.config or {})


def _published_flops(
    flops: dict[str, Any], config: dict[str, Any], reference: dict[str, Any]
) -> dict[str, Any] | None:
    """The publisher's formula for utilisation; None for a slice of the model, for which it is not valid."""
    if config.get("model", {}).get("layers") != reference.get("model", {}).get("layers"):
        return None
    return flops.get("published")
