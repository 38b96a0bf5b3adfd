"""The types of acceptance limits: manifests/limits.yaml, and the overrides of them in the manifest of a device.

An acceptance (`flagbench accept`) measures a machine, divides each number by a reference, and compares the ratio with
a limit. `flagbench fleet`, which compares many machines, has limits of its own, `FleetLimits`. The JSON Schema of
limits.yaml is generated from this file: types become its rules, and the docstrings of classes and fields its
descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from flagbench.manifests.fields import Manifest, Name, PositiveCount, PositiveNumber, SourceText

Share = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
"""A ratio from 0 to 1."""
Kind = Literal["product", "memory", "host-link", "collective", "case", "serving"]
"""The kind of measurement: a matmul (`product`), a copy within the device's memory, a copy between the device and
pinned memory of the host, an all-reduce (`collective`), the speed of a case, or the bandwidth at which a device reads
weights and cache while it generates tokens (`serving`)."""
Reference = Literal["sound", "datasheet", "row", "history", "peers", "link", "roof"]
"""The reference that a measured number is divided by: the median of sound devices of this model that were measured
with this stack, the datasheet, a published row, earlier runs of this machine (`history`), the other devices of this
run (`peers`), the rate of a link, or a roof of the same run, of which sound devices reach a share."""


@dataclass(frozen=True)
class SoundDevices:
    """The ratios that sound devices, which have no known fault, reached."""

    devices: PositiveCount
    """The number of sound devices."""
    lowest: PositiveNumber
    """The lowest ratio that one of them reached."""
    highest: PositiveNumber
    """The highest ratio that one of them reached."""


@dataclass(frozen=True)
class AcceptanceLimit:
    """A limit for one kind of measurement in an acceptance, as a ratio of the measured number to a reference.

    A ratio above 1 is better than the reference.
    """

    id: Name
    """The id of the limit, by which the manifest of a device overrides it."""
    kind: Kind
    """The kind of measurement: `product` is a matmul, `memory` a copy within the device's memory, `host-link` a copy
    between the device and pinned memory of the host, `collective` an all-reduce, `case` the speed of a case,
    `serving` the bandwidth at which a device reads weights and cache while it generates tokens."""
    against: Reference
    """The reference that the number is divided by: `sound` is the median of sound devices of the same model, measured
    with the same stack; `datasheet` the peak or the bandwidth in the datasheet; `row` a published row; `history`
    earlier runs of this machine; `peers` the other devices of this run; `link` the rate of a link; `roof` the copy
    before the steps of the same run, times the lowest share of it in `seen`, if that is of at least two devices."""
    source: SourceText
    """Where the limit comes from, or that it is an assumption."""
    inconclusive_below: Share
    """Below this ratio the check is inconclusive; from it on the check passes."""
    fail_below: Share | None = None
    """Below this ratio the check fails, and the machine should be taken out of service. Null if this number alone
    never fails an acceptance."""
    min_sessions: PositiveCount = 1
    """The number of earlier sessions of this machine that the limit requires. With fewer, it does not apply."""
    devices: PositiveCount | None = None
    """The number of devices on one node for which the limit applies; null if it applies for any number."""
    value: PositiveNumber | None = None
    """The reference itself, in FLOP/s or B/s, if `against` is `sound` or `link` and a device model has one such
    number. Null if the number is found elsewhere, such as in the datasheet or in an earlier run."""
    seen: SoundDevices | None = None
    """The ratios that sound devices reached; null if no sound device was measured."""
    processor: bool = False
    """Whether the limit applies to processors. If not, it applies to accelerators."""


@dataclass(frozen=True)
class LimitOverride:
    """The fields of an acceptance limit that are different for one device model. Absent fields are not overridden."""

    source: SourceText
    """Where the limit for this model comes from."""
    inconclusive_below: Share | None = None
    """Below this ratio the check is inconclusive; from it on the check passes."""
    fail_below: Share | None = None
    """Below this ratio the check fails."""
    value: PositiveNumber | None = None
    """The reference itself for this model, in FLOP/s or B/s."""
    seen: SoundDevices | None = None
    """The ratios that sound devices of this model reached."""


@dataclass(frozen=True)
class PeerLimit:
    """The limits for one kind of measurement in a comparison of nodes.

    Limits are ratios: the number of one node, divided by the middle of the numbers of all nodes.
    """

    kind: Kind
    """The kind of measurement, as in a limit of an acceptance."""
    look_below: Share
    """The ratio below which a node is named, if the spread of the nodes does not explain it."""
    drain_below: Share
    """The ratio below which a node is to be drained, if neither the spread nor a disturbance explains it."""
    least_spread: Share
    """The spread between nodes, relative to their middle, that is assumed if the measured spread is smaller."""
    source: SourceText
    """Where the limits come from, or that they are an assumption."""
    processor: bool = False
    """Whether the limits are for processors instead of accelerators."""


@dataclass(frozen=True)
class FleetLimits:
    """How `flagbench fleet` compares the nodes of a fleet with each other."""

    min_nodes: PositiveCount
    """The fewest nodes whose numbers are compared with each other."""
    false_alarms: Share
    """The share of fleets of sound nodes in which a node may be named by chance."""
    slowest_of_several: PositiveNumber
    """The factor by which the slowest of a node's devices may be further below the middle, in spreads, than a number
    of the whole node. The slowest of several devices varies more from node to node."""
    drain_fewer_devices: Share
    """The share of the fleet that must have the same number of devices before a node with fewer is to be drained. If
    fewer nodes agree, the node is only named."""
    source: SourceText
    """Where these numbers come from, or that they are assumptions."""
    limits: tuple[PeerLimit, ...]
    """The limits for each kind of measurement, on accelerators and on processors."""

    def limit(self, kind: Kind, *, processor: bool) -> PeerLimit | None:
        """Return the limits of a kind of measurement; None if such numbers are not compared between nodes."""
        for limit in self.limits:
            if limit.kind == kind and limit.processor is processor:
                return limit
        return None


@dataclass(frozen=True, kw_only=True)
class LimitsManifest(Manifest):
    """The limits of acceptances, which the manifest of a device can override, and those between nodes."""

    VERSION: ClassVar[str] = "limits/v1"

    limits: tuple[AcceptanceLimit, ...]
    """The limits, in the order in which tables show them."""
    nodes: FleetLimits
    """The limits of nodes that are compared with each other."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole manifest as JSON types."""


def override_limits(
    limits: Mapping[str, AcceptanceLimit], overrides: Mapping[str, LimitOverride]
) -> tuple[AcceptanceLimit, ...]:
    """Apply the overrides of a device model to the limits, which stay in the order of limits.yaml.

    Args:
        limits: all limits, by id.
        overrides: the overrides of the device model, by the id of the limit.
    """
    return tuple(_override_limit(limit, overrides.get(limit.id)) for limit in limits.values())


def _override_limit(limit: AcceptanceLimit, override: LimitOverride | None) -> AcceptanceLimit:
    """Replace the fields of a limit that its override states; without an override, return the limit unchanged."""
    if override is None:
        return limit
    changes: dict[str, Any] = {}
    for field_of_override in fields(override):
        change = getattr(override, field_of_override.name)
        if change is not None:
            changes[field_of_override.name] = change
    return replace(limit, **changes)
