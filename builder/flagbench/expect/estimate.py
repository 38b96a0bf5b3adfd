"""The speed of a published row on another device, by the ratio of the peaks that bound it, and how far off that is.

Matrix products bound training, so the roof is the published peak of the row's precision. What bounds inference is not
known from a row, so none is estimated there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from flagbench.expect.rows import Entry
from flagbench.manifests.catalogue import peak_of
from flagbench.manifests.device import DeviceModel

LEAST_ROWS = 8
"""An estimate needs as many rows that it can be tried on."""
MOST_ERROR = 0.15
"""With a larger median error there is no estimate."""


class Scalable(NamedTuple):
    """A published row whose speed a peak bounds."""

    entry: Entry
    metric: str
    speed: float
    peak: float
    """Of its device, FLOP/s."""


class LeftOut(NamedTuple):
    """A published row that was estimated from another device's."""

    entry: Entry
    factor: float
    """Its peak over that of the other device."""
    error: float
    """|estimated / published - 1|."""


class Estimate(NamedTuple):
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
        return {**self._asdict(), "source": self.source.id, "device": row.device, "precision": row.precision}


def leave_one_out(entries: Iterable[Entry]) -> list[LeftOut]:
    """Each row that another device's can stand for, estimated from the nearest such row."""
    able, found = _scalable(entries), []
    for one in able:
        others = [other for other in able if _same_work(one, other)]
        if others:
            nearest = min(others, key=lambda o: (_apart(one.entry, o.entry), ratio(o.peak, one.peak), o.entry.id))
            factor = one.peak / nearest.peak
            found.append(LeftOut(one.entry, factor, abs(nearest.speed * factor / one.speed - 1)))
    return found


def estimate(entries: Sequence[Entry], device: DeviceModel, tried: Sequence[LeftOut]) -> Estimate | str:
    """The estimate for a device from the first row that allows one; else why there is none.

    The error is known only for peaks that are no further apart than those it was measured on.

    Args:
        entries: of other devices of its vendor, the nearest first.
    """
    reasons = []
    for entry, metric, speed, peak in _scalable(entries):
        row, own = entry.row, peak_of(device, entry.row.precision)
        if own is None:
            continue
        same = [one for one in tried if one.entry.row.precision == row.precision]
        factor, most = own / peak, max((ratio(one.factor, 1) for one in same), default=1.0)
        if len(same) < LEAST_ROWS:
            count = f"{len(same)} published rows, and {LEAST_ROWS} are needed"
            reasons.append(f"in {row.precision} it can be tried on {count}")
        elif (error := median(one.error for one in same)) > MOST_ERROR:
            reasons.append(f"its median error over {len(same)} published rows in {row.precision} is {error:.0%}")
        elif ratio(factor, 1) > most:
            apart = f"its peak in {row.precision} is {factor:.2f} times that of {row.device}"
            reasons.append(f"{apart}, and the error is known for {1 / most:.2f} to {most:.2f} times")
        else:
            return Estimate(entry, metric, speed * factor, row.metrics[metric].unit, factor, error, len(same))
    only = (
        "training and matrix products are estimated, from the same vendor's devices, where both peaks are published"
    )
    return next(iter(reasons), f"only {only}")


def ratio(one: float, other: float) -> float:
    """The larger of two peaks over the smaller."""
    return max(one, other) / min(one, other)


def _scalable(entries: Iterable[Entry]) -> list[Scalable]:
    able = [(entry, entry.speed, entry.row.peak) for entry in entries if entry.row.task != "inference"]
    return [
        Scalable(entry, metric, float(entry.row.metrics[metric].value), peak)
        for entry, metric, peak in able
        if metric is not None and peak is not None
    ]


def _same_work(one: Scalable, other: Scalable) -> bool:
    """The same case, precision and layout on another device; a speed of all devices also needs as many of them."""
    row, its = one.entry.row, other.entry.row
    names = ["model", "task", "precision", "sequence", "parallelism"]
    if not one.metric.endswith("_per_device"):
        names.append("devices")
    same = all(getattr(row, name) == getattr(its, name) for name in names)
    return same and row.device_id != its.device_id and one.metric == other.metric


def _apart(entry: Entry, other: Entry) -> int:
    """How many other conditions differ."""
    names = ("devices", "batch", "software", "conditions")
    return sum(getattr(entry.row, name) != getattr(other.row, name) for name in names)
