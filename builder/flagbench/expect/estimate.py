"""The speed of a published row on another device, by the ratio of the peaks that bound it, and how far off that is.

Matrix products bound training, so the roof is the published peak of the row's precision. What bounds inference is not
known from a row, so none is estimated there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from flagbench.expect.rows import Entry
from flagbench.manifests.catalogue import peak_of
from flagbench.manifests.model import DeviceModel

LEAST_ROWS = 8
"""An estimate needs as many rows that it can be tried on."""
MOST_ERROR = 0.15
"""With a larger median error there is no estimate."""


class LeftOut(NamedTuple):
    """A published row estimated from the nearest row of another device."""

    entry: Entry
    source: Entry
    error: float
    """|estimated / published - 1|."""


@dataclass(frozen=True)
class Estimate:
    """What a row's speed would be on another device. Never a verdict."""

    source: Entry
    metric: str
    value: float
    unit: str
    factor: float
    """Peak of the device over that of the row's, in the row's precision."""
    error: float
    """Median over `tried` rows in the same precision, each left out once."""
    tried: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        row = self.source.row
        names = ("metric", "value", "unit", "factor", "error", "tried")
        own = {name: getattr(self, name) for name in names}
        return {"source": self.source.id, "device": row.device, "precision": row.precision, **own}


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


def estimate(entries: Sequence[Entry], device: DeviceModel, tried: Sequence[LeftOut]) -> Estimate | str:
    """The estimate for a device from the first row that allows one; else why there is none.

    The error is known only for peaks that are no further apart than those it was measured on.

    Args:
        entries: of other devices of its vendor, the nearest first.
    """
    reasons = []
    for entry in entries:
        row, speed, peak = entry.row, _speed(entry), peak_of(device, entry.row.precision)
        if entry.rate is None or speed is None or row.peak is None or peak is None:
            continue
        same = [one for one in tried if one.entry.row.precision == row.precision]
        factor, metric = peak / row.peak, entry.rate[0]
        if len(same) < LEAST_ROWS:
            count = f"{len(same)} published rows, and {LEAST_ROWS} are needed"
            reasons.append(f"in {row.precision} it can be tried on {count}")
        elif (error := median(one.error for one in same)) > MOST_ERROR:
            reasons.append(f"its median error over {len(same)} published rows in {row.precision} is {error:.0%}")
        elif peaks_apart(entry, peak) > (most := max(peaks_apart(one.source, one.entry.row.peak) for one in same)):
            limits = f"{math.exp(-most):.2f} to {math.exp(most):.2f}"
            apart = f"its peak in {row.precision} is {factor:.2f} times that of {row.device}"
            reasons.append(f"{apart}, and the error is known for {limits} times")
        else:
            return Estimate(entry, metric, speed * factor, row.metrics[metric].unit, factor, error, len(same))
    return next(iter(reasons), f"no row of a device of the same vendor can be scaled by a peak of {device.name}")


def peaks_apart(entry: Entry, peak: float | None) -> float:
    """How far the peak of a row's device is from another one: the logarithm of their ratio."""
    return abs(math.log(peak) - math.log(entry.row.peak)) if peak and entry.row.peak else math.inf


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
