"""The limits of an acceptance as typed data: `manifests/limits.yaml`, and what a device's file overrides of them.

An acceptance (`flagbench accept`) measures a machine, divides each number by a reference, and compares the ratio with
a limit. The JSON Schema of limits.yaml is generated from these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from flagbench.manifests.fields import Manifest, Name, PositiveCount, PositiveNumber, SourceText

Share = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
Kind = Literal["product", "memory", "host-link", "collective", "case"]
"""What the number measures: a matrix product, a copy within the device's memory, a copy to or from pinned memory of
the host, an all-reduce, or the speed of a case."""
Reference = Literal["sound", "datasheet", "row", "history", "peers", "link"]
"""What a number is divided by: the median of sound devices of this model that were measured with this stack, a
datasheet, a published row, earlier runs of this machine, the other devices of this run, or the rate of a link."""


@dataclass(frozen=True)
class SoundDevices:
    """Devices without a known fault, and the lowest and the highest ratio that they reached."""

    devices: PositiveCount
    lowest: PositiveNumber
    highest: PositiveNumber


@dataclass(frozen=True)
class AcceptanceLimit:
    """What a number of an acceptance passes within. Ratios are of the number to its reference; above 1 is better."""

    id: Name
    kind: Kind
    against: Reference
    source: SourceText
    """Where the limit is from, or that it is an assumption."""
    inconclusive_below: Share
    """The number passes from here on."""
    fail_below: Share | None = None
    """Below, the machine is to be drained; None: never by this number alone."""
    min_sessions: PositiveCount = 1
    """Of earlier runs; with fewer, the limit does not hold."""
    devices: PositiveCount | None = None
    """On one node, of which it holds; None: of any number."""
    value: PositiveNumber | None = None
    """The reference, FLOP/s or B/s, where it is one number for a device model."""
    seen: SoundDevices | None = None
    """None: no sound device was seen."""
    processor: bool = False
    """Whether it is of a processor, and not of an accelerator."""


@dataclass(frozen=True)
class LimitOverride:
    """What the file of a device model changes of a limit."""

    source: SourceText
    inconclusive_below: Share | None = None
    fail_below: Share | None = None
    value: PositiveNumber | None = None
    seen: SoundDevices | None = None


@dataclass(frozen=True, kw_only=True)
class LimitsManifest(Manifest):
    """Every limit of an acceptance, for devices whose file does not override it."""

    VERSION: ClassVar[str] = "limits/v1"

    limits: tuple[AcceptanceLimit, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def override_limits(
    limits: Mapping[str, AcceptanceLimit], overrides: Mapping[str, LimitOverride]
) -> tuple[AcceptanceLimit, ...]:
    """Apply what a device model overrides, by the limit's id, to the limits; they stay in the order of
    limits.yaml."""
    return tuple(_override_limit(limit, overrides.get(limit.id)) for limit in limits.values())


def _override_limit(limit: AcceptanceLimit, override: LimitOverride | None) -> AcceptanceLimit:
    """Replace the fields of a limit that an override states."""
    if override is None:
        return limit
    changes: dict[str, Any] = {}
    for field_of_override in fields(override):
        change = getattr(override, field_of_override.name)
        if change is not None:
            changes[field_of_override.name] = change
    return replace(limit, **changes)
