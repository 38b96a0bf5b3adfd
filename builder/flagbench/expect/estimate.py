"""The speed of a published row on another device, by the ratio of the peaks that bound it, and how far off that is.

Matrix products bound training, so the roof is the published peak of the row's precision. What bounds inference is not
known from a row, so none is estimated there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from flagbench.expect.rows import Entry
from flagbench.manifests.catalogue import peak_of
from flagbench.manifests.model import DeviceModel

LEAST_ROWS = 8
"""An estimate needs as many rows that it can be tried on."""
MOST_ERROR = 0.15
"""With a larger median error there is no estimate."""


class LeftOut(NamedTuple):
    """A published row, the row of another device that it is estimated from, and |estimated / published - 1|."""

    entry: Entry
    source: Entry
    error: float


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


def leave_one_out(entries: Iterable[Entry]) -> list[LeftOut]:
    """Each row that another device's can stand for, estimated from the nearest such row."""
    able = [entry for entry in entries if _speed(entry) is not None]
    found = []
    for entry in able:
        speed, peak = _speed(entry), entry.row.peak
        others = [other for other in able if _same_work(entry, other)]
        if others and speed is not None and peak is not None:
            nearest = min(others, key=lambda other: (_apart(entry, other), peaks_apart(other, peak), other.id))
            scaled = (_speed(nearest) or 0.0) * peak / (nearest.row.peak or peak)
            found.append(LeftOut(entry, nearest, abs(scaled / speed - 1)))
    return found


def estimate(
    entries: Sequence[Entry], device: DeviceModel, tried: Sequence[LeftOut], run: Collection[str | None]
) -> Estimate | str:
    """The estimate for a device from the first row that allows one; else why there is none.

    Args:
        entries: of other devices, the nearest first.
        run: precisions that somebody has published on the device. A recipe, such as mxfp8, is no peak's own name, and
            not every device with the peak has it.
    """
    reasons = []
    for entry in entries:
        row, speed, peak = entry.row, _speed(entry), peak_of(device, entry.row.precision)
        if speed is None or row.peak is None or peak is None or row.precision not in {*device.peaks, *run}:
            continue
        errors = [one.error for one in tried if one.entry.row.precision == row.precision]
        if len(errors) < LEAST_ROWS:
            count = f"{len(errors)} published rows, and {LEAST_ROWS} are needed"
            reasons.append(f"in {row.precision} it can be tried on {count}")
        elif (error := median(errors)) > MOST_ERROR:
            reasons.append(f"its median error over {len(errors)} published rows in {row.precision} is {error:.0%}")
        elif entry.rate is not None:
            metric, factor = entry.rate[0], peak / row.peak
            value, unit = speed * factor, row.metrics[metric].unit
            return Estimate(entry.id, row.device, row.precision, metric, value, unit, factor, error, len(errors))
    return next(iter(reasons), f"no published row can be scaled by a peak of {device.name}")


def peaks_apart(entry: Entry, peak: float | None) -> float:
    """How far the peak of a row's device is from another one: the logarithm of their ratio."""
    return abs(math.log(peak / entry.row.peak)) if peak and entry.row.peak else math.inf


def _speed(entry: Entry) -> float | None:
    """The speed of a row that can be scaled; None for any other."""
    able = entry.row.task != "inference" and entry.row.peak is not None
    return entry.rate[1] if able and entry.rate is not None else None


def _same_work(entry: Entry, other: Entry) -> bool:
    """The same case, precision and layout on another device; a speed of all devices also needs as many of them."""
    row, its = entry.row, other.row
    names = ("model", "task", "precision", "sequence", "parallelism")
    if row.device_id == its.device_id or any(getattr(row, name) != getattr(its, name) for name in names):
        return False
    metrics = [each.rate[0] for each in (entry, other) if each.rate is not None]
    each_device = metrics[0].endswith("_per_device") or row.devices == its.devices
    return len(set(metrics)) == 1 and each_device


def _apart(entry: Entry, other: Entry) -> int:
    """How many other conditions differ."""
    names = ("devices", "batch", "software", "conditions")
    return sum(getattr(entry.row, name) != getattr(other.row, name) for name in names)
