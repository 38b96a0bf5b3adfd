"""A device model as typed data: its peaks (FLOP/s by precision) and its limits (power, bandwidth, clock).

The JSON Schema of manifests/devices is generated from these types. FLOP utilisation and the plausibility of a record
are computed from the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from flagbench.manifests.fields import (
    Architecture,
    DeviceNumber,
    HttpsUrl,
    Manifest,
    Name,
    PeakPrecision,
    PositiveNumber,
    SourceText,
    Word,
    keys,
)
from flagbench.manifests.limits import LimitOverride

_PRECISION_OF_FORMAT = {"mxfp8": "fp8", "nvfp4": "fp4"}
"""The precision whose peak holds for a number format with scaled blocks."""


@dataclass(frozen=True)
class Peak:
    """A device's peak throughput at one precision, with its source."""

    flops: Annotated[int, Meta(ge=10**9)] | Annotated[float, Meta(ge=10**9)]
    """FLOP/s, as in 312.0e+12; who writes TFLOP/s writes less than the limit."""
    source: SourceText


@dataclass(frozen=True)
class Limit:
    """What a device cannot exceed, with its source."""

    value: PositiveNumber
    source: SourceText


@dataclass(frozen=True)
class Limits:
    """What a device cannot exceed; None where no source gives it."""

    power_watts: Limit | None = None
    """Power limit of the board, W."""
    memory_bandwidth: Limit | None = None
    """Bytes per second."""
    sm_clock_mhz: Limit | None = None
    """Highest clock of the processors, MHz."""


@dataclass(frozen=True, kw_only=True)
class DeviceModel(Manifest):
    """A model of device in one form factor: what it is capable of, as its datasheet says."""

    VERSION: ClassVar[str] = "device/v1"
    HOST_ALONE: ClassVar[frozenset[str]] = frozenset(
        (
            "schema",
            "vendor",
            "form_factor",
            "datasheet",
            "runs_above_boost",
            "not_published",
            "not_found",
            "acceptance",
        )
    )

    id: Name
    """The name of its file, by which stacks list it."""
    name: str
    """The name that records and claims have for it."""
    match: tuple[SourceText, ...]
    """Whole names of the device as its driver reports them, in every spelling; any other name is another device."""
    vendor: Name
    form_factor: Word
    """Such as SXM, PCIe, NVL or OAM."""
    architecture: Architecture | None
    """As its compiler calls it, such as sm_90 or gfx942."""
    memory_gib: PositiveNumber
    """As it is sold: the datasheet's GB."""
    datasheet: HttpsUrl
    """Where its numbers are published; a source names another document where one of them is not."""
    peaks: Annotated[Mapping[str, Peak], keys(PeakPrecision)]
    """Dense, by precision; matrix units where the device has them for it. int8 in operations per second."""
    limits: Limits = Limits()
    runs_above_boost: bool = False
    """Whether its peaks hold at a boost clock above which it runs: then a run may exceed them."""
    not_published: tuple[DeviceNumber, ...] = ()
    """Peaks and limits that the vendor does not print; also those of a precision that the device does not have."""
    not_found: tuple[DeviceNumber, ...] = ()
    """Those that are in no document that could be read."""
    acceptance: Mapping[Name, LimitOverride] = field(default_factory=dict)
    """What differs for this model from manifests/limits.yaml, by the id of the limit."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def has_name(self, reported: str) -> bool:
        """Whether a driver, or a published row, uses this name for the device; the whole name must match."""
        return reported == self.name or reported in self.match

    @property
    def flops(self) -> Mapping[str, float]:
        """The peaks by precision, FLOP/s."""
        return {precision: float(peak.flops) for precision, peak in self.peaks.items()}

    def peak(self, label: str | None) -> float | None:
        """Find the peak in the precision of a published row, such as `fp8-cs`, FLOP/s; None if it is not
        published."""
        format_of_row = (label or "").partition("-")[0]  # The rest is the recipe of scaling, such as `cs`.
        precision = _PRECISION_OF_FORMAT.get(format_of_row, format_of_row)
        peak = self.peaks.get(precision)
        if peak is None:
            return None
        return float(peak.flops)
