"""The request for a run, as its record reports it: what was asked for, and the configuration that it resolves to."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from flagbench_cases.record.time_of_day import ClockReading
from flagbench_cases.shared.parallel_layout import Layout, layout_of
from flagbench_core.case_kinds import kind_of
from flagbench_core.config import digest

RECORD_ID = re.compile("[0-9A-Za-z][0-9A-Za-z._-]{7,159}")
"""A valid id of a record, as in manifests/schema/record-v1.json."""


class Request(NamedTuple):
    """A request. Fields that could not be resolved have their defaults."""

    argv: list[str]
    """The arguments of the command line."""
    case: str
    stack: dict[str, Any]
    """The manifest of the stack, the image's device software."""
    run_id: str
    """The id that all nodes of a run share."""
    preset: str
    """The size of the case: `reference`, as published, or `tiny`."""
    nodes: int
    gpus: int
    """Ranks per node, also on a CPU."""
    config: dict[str, Any] | None = None
    """The resolved configuration; None if the arguments were wrong."""
    config_digest: str | None = None
    formula: str | None = None
    """The id of the formula for FLOPs in the case's manifest; None if the case counts none."""
    unit: str = "samples"
    """What the case counts."""
    gate: str | None = None
    """The first metric to compare with a published row."""
    checks: tuple[str, ...] = ()
    """Checks required by the case's manifest: each must be made if it applies, and pass."""
    published_flops: dict[str, Any] | None = None
    """The publisher's formula for utilisation."""
    record_id: str | None = None
    """The id made by node 0 and given to all nodes; None if it is to be made with the record."""
    begun: ClockReading | None = None
    """The clocks of this node when `record_id` was made."""
    roofs: dict[str, Any] | None = None
    """The configuration of roofs, rates of a device without a model, if they are measured before the steps."""

    def resolved(self, case: dict[str, Any], stack: dict[str, Any], resolved: dict[str, Any]) -> Request:
        """Return the request with its resolved configuration. `case` and `stack` are their manifests."""
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
    """Return the publisher's formula for utilisation.

    None if the manifest has none, or for a model with fewer layers than the published one, where it is not valid.
    """
    if config.get("model", {}).get("layers") != reference.get("model", {}).get("layers"):
        return None
    return flops.get("published")
