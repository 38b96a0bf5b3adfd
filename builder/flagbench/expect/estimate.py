"""The speed of a published row on another device, by the ratio of the peaks that bound it, and how far off that is.

Matrix products bound training, so the roof is the published peak of the row's precision. What bounds inference is not
known from a row, so none is estimated there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from flagbench.expect.rows import PublishedRow
from flagbench.manifests.catalogue import peak_of
from flagbench.manifests.model import DeviceModel

LEAST_ROWS = 8
"""An estimate needs as many rows that it can be tried on."""
MOST_ERROR = 0.15
"""With a larger median error there is no estimate."""


@dataclass(frozen=True)
class LeftOut:
    """A published row, and what is estimated for its device from another one."""

    row: PublishedRow
    source: PublishedRow
    estimated: float
    published: float

    @property
    def error(self) -> float:
        """|estimated / published - 1|."""
        return abs(self.estimated / self.published - 1)


@dataclass(frozen=True)
class Estimate:
    """What a row's speed would be on another device. Never a verdict."""

    source: str
    """The row's id."""
    device: str
    """Of that row."""
    precision: str | None
    metric: str
    value: float
    unit: str
    factor: float
    """Peak of the device over that of the row's, in the row's precision."""
    error: float
    """Median over `tried` rows in the same precision, each left out once."""
    tried: int


def leave_one_out(rows: Iterable[PublishedRow]) -> tuple[LeftOut, ...]:
    """Each row that another device's can stand for, with the estimate from the nearest such row."""
    able = [row for row in rows if _can_be_scaled(row)]
    found = []
    for row in able:
        others = [other for other in able if other.device_id != row.device_id and _same_work(row, other)]
        if others and row.rate is not None and row.peak is not None:
            nearest = min(others, key=lambda other: (_apart(row, other), peaks_apart(other, row.peak), other.id))
            found.append(LeftOut(row, nearest, _scaled(nearest, row.peak), row.rate[1]))
    return tuple(found)


def estimate(
    rows: Sequence[PublishedRow], device: DeviceModel, tried: Sequence[LeftOut], run: Collection[str | None]
) -> Estimate | str:
    """The estimate for a device from the first row that allows one; else why there is none.

    Args:
        rows: of other devices, the nearest first.
        run: precisions that somebody has published on the device. A recipe, such as mxfp8, is no peak's own name, and
            not every device with the peak has it.
    """
    reasons = []
    for row in rows:
        peak = peak_of(device, row.precision)
        if not _can_be_scaled(row) or peak is None or row.precision not in {*device.peaks, *run}:
            continue
        errors = [one.error for one in tried if one.row.precision == row.precision]
        if len(errors) < LEAST_ROWS:
            count = f"{len(errors)} published rows, and {LEAST_ROWS} are needed"
            reasons.append(f"in {row.precision} it can be tried on {count}")
        elif (error := median(errors)) > MOST_ERROR:
            reasons.append(f"its median error over {len(errors)} published rows in {row.precision} is {error:.0%}")
        elif row.rate is not None and row.peak is not None:
            metric = row.rate[0]
            unit, value = row.metrics[metric][1], _scaled(row, peak)
            factor = peak / row.peak
            return Estimate(row.id, row.device, row.precision, metric, value, unit, factor, error, len(errors))
    return next(iter(reasons), f"no published row can be scaled by a peak of {device.name}")


def _can_be_scaled(row: PublishedRow) -> bool:
    return row.task != "inference" and row.peak is not None and row.rate is not None


def _same_work(row: PublishedRow, other: PublishedRow) -> bool:
    """The same case, precision and layout; a speed of all devices also needs as many of them."""
    names = ("model", "task", "precision", "sequence", "parallelism")
    if any(getattr(row, name) != getattr(other, name) for name in names) or not row.rate or not other.rate:
        return False
    metric = row.rate[0]
    return metric == other.rate[0] and (metric.endswith("_per_device") or row.devices == other.devices)


def _apart(row: PublishedRow, other: PublishedRow) -> int:
    """How many other conditions differ."""
    names = ("devices", "batch", "software", "conditions")
    return sum(getattr(row, name) != getattr(other, name) for name in names)


def peaks_apart(row: PublishedRow, peak: float | None) -> float:
    """How far the peak of a row's device is from another one: the logarithm of their ratio."""
    return abs(math.log(peak / row.peak)) if peak and row.peak else math.inf


def _scaled(row: PublishedRow, peak: float) -> float:
    assert row.rate is not None
    assert row.peak is not None
    return row.rate[1] * peak / row.peak
