"""The types of device manifests (manifests/devices/*.yaml): the peaks and limits of a device model.

A peak is a throughput in FLOP/s at one precision; limits are power, memory bandwidth and clock. FLOP utilisation is
computed from the peaks, and records whose numbers exceed peaks or limits are refused. The JSON Schema of a device is
generated from this file: types become its rules, and the docstrings of classes and fields its descriptions.
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
    """The peak throughput of a device at one precision."""

    flops: Annotated[int, Meta(ge=10**9)] | Annotated[float, Meta(ge=10**9)]
    """The peak in FLOP/s, such as 312.0e+12; for int8, operations per second. The lower bound rejects numbers that
    were written in TFLOP/s by mistake."""
    source: SourceText
    """The document that states the peak."""


@dataclass(frozen=True)
class Limit:
    """An upper limit that a device cannot exceed."""

    value: PositiveNumber
    """The limit, in the unit of the field that contains it."""
    source: SourceText
    """The document that states the limit, or how it was calculated."""


@dataclass(frozen=True)
class Limits:
    """The upper limits of a device. A limit is absent if no document states it."""

    power_watts: Limit | None = None
    """The power limit of the board in watts."""
    memory_bandwidth: Limit | None = None
    """The bandwidth of the device's memory in bytes per second."""
    sm_clock_mhz: Limit | None = None
    """The highest clock of the device's processors in MHz."""


@dataclass(frozen=True, kw_only=True)
class DeviceModel(Manifest):
    """The manifest of a device model in one form factor: its capabilities according to its datasheet."""

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
    """The id of the device model, by which stacks refer to it. It is also the name of its file."""
    name: str
    """The name of the device model in records and claims."""
    match: tuple[SourceText, ...]
    """All names that drivers report for the device. A name must match completely, since a part of it may be the name
    of another device."""
    vendor: Name
    """The vendor, in lower case, such as `nvidia`."""
    form_factor: Word
    """The form factor, such as SXM, PCIe, NVL or OAM."""
    architecture: Architecture | None
    """The name of the architecture for the vendor's compiler, such as `sm_90` or `gfx942`; null if it has none."""
    memory_gib: PositiveNumber
    """The size of the device's memory as it is sold, which is the number of GB in the datasheet."""
    datasheet: HttpsUrl
    """The address of the datasheet. The source of a number that is not in the datasheet names another document."""
    peaks: Annotated[Mapping[str, Peak], keys(PeakPrecision)]
    """The peaks by precision, for dense matrices, of the device's matrix units if they support the precision."""
    limits: Limits = Limits()
    """The upper limits of power, memory bandwidth and clock."""
    runs_above_boost: bool = False
    """Whether the peaks are stated for a boost clock that the device can exceed. If so, a run may exceed the
    peaks."""
    not_published: tuple[DeviceNumber, ...] = ()
    """The peaks and limits that the vendor does not publish, including peaks of precisions that the device lacks."""
    not_found: tuple[DeviceNumber, ...] = ()
    """The peaks and limits that were not found in any accessible document."""
    acceptance: Mapping[Name, LimitOverride] = field(default_factory=dict)
    """The acceptance limits that differ for this model from manifests/limits.yaml, by the id of the limit."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole manifest as JSON types."""

    def has_name(self, reported: str) -> bool:
        """Whether a driver or a published row uses exactly this name for the device."""
        return reported == self.name or reported in self.match

    @property
    def flops(self) -> Mapping[str, float]:
        """The peaks by precision, FLOP/s."""
        return {precision: float(peak.flops) for precision, peak in self.peaks.items()}

    def peak(self, label: str | None) -> float | None:
        """Find the peak for the precision label of a published row, FLOP/s; None if it is not published.

        Args:
            label: a precision, which may be followed by a hyphen and the recipe of scaling, such as `fp8-cs`.
        """
        format_of_row = (label or "").partition("-")[0]
        precision = _PRECISION_OF_FORMAT.get(format_of_row, format_of_row)
        peak = self.peaks.get(precision)
        if peak is None:
            return None
        return float(peak.flops)
