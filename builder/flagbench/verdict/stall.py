"""A step that stalled: it took many times as long as the others, and the evidence says where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.metrics import DEVICE, HOST, OWN, PUBLISHED
from flagbench_core.evidence.section import Stretch
from flagbench_core.stats.summary import median
from flagbench_core.stats.within import STALL

NOTABLE = 0.01
"""The share of its window; a shorter stall widens the interval of a run by less than sessions differ."""
LONG_BLOCK = 2.0
"""How many times as long as usual a block of steps takes that has a stalled one."""
_DOING = {
    "data_wait": "waiting for data",
    "to_device": "copying the batch to the device",
    "host": "on the host",
    "device": "computing",
    "after": "between steps",
}
"""Where the time went, by the column of the evidence."""


class Stall(NamedTuple):
    """The longest stalled step of a window, or the block of steps that it is in."""

    first: int
    """The number of the step in the run, from 1; of a block, that of its first step."""
    last: int
    seconds: float
    usual: float
    """Seconds, by the median step."""
    column: str
    """The column of the evidence that has most of its time."""
    rank: int | None
    """The rank that had it; None if it is not known which, or there is only one."""
    others: int
    """How many other steps, or blocks, stalled."""
    lost: float
    """Seconds beyond the usual ones, of all that stalled."""
    share: float
    """Of the window's time that is lost."""

    def __str__(self) -> str:
        """`step 30 took 2.5 s instead of 0.4 s, waiting for data on rank 3, 2 more stalled: 5% of the window`."""
        step = f"step {self.first:,}"
        if self.last > self.first:
            step = f"steps {self.first:,} to {self.last:,}"
        text = f"{step} took {self.seconds:.3g} s instead of {self.usual:.3g} s, {_DOING[self.column]}"
        if self.rank is not None:
            text += f" on rank {self.rank}"
        if self.others:
            text += f", {self.others} more stalled"
        return f"{text}: {self.share:.0%} of the window"


def find_stall(stretch: Stretch, parts: Sequence[str], rank: int) -> Stall | None:
    """The longest stall in the steps of a rank; None if none is notable.

    Args:
        stretch: the window.
        parts: the columns that are counted as a step's time.
        rank: whose time it is.
    """
    times, sizes = stretch.time(parts, rank), stretch.sizes
    step = median([micro / size for micro, size in zip(times, sizes, strict=True)])
    if not step:
        return None
    beyond = [micro - step * size for micro, size in zip(times, sizes, strict=True)]
    total = sum(times)
    stalled = []
    for place, lost in enumerate(beyond):
        long = lost >= (STALL - 1) * step and times[place] >= LONG_BLOCK * step * sizes[place]
        if long and lost >= NOTABLE * total:
            stalled.append(place)
    if not stalled:
        return None
    longest = max(stalled, key=beyond.__getitem__)
    column, source = _locate_stall(stretch, longest, beyond[longest] / 2)
    if stretch.world == 1:
        source = None
    before = stretch.first + sum(sizes[:longest])
    lost = sum(beyond[place] for place in stalled)
    return Stall(
        first=before + 1,
        last=before + sizes[longest],
        seconds=times[longest] / MICRO,
        usual=step * sizes[longest] / MICRO,
        column=column,
        rank=source,
        others=len(stalled) - 1,
        lost=lost / MICRO,
        share=lost / total,
    )


def counted_by(metric: str, stretch: Stretch) -> tuple[Sequence[str], int]:
    """The columns and the rank whose time a rate counts, by its name."""
    if metric.endswith("_core_host"):
        return HOST, 0
    if metric.endswith(("_host", "_published_count")):
        return PUBLISHED, 0
    if "core" in metric:
        return DEVICE, stretch.slowest(DEVICE)
    return OWN, stretch.slowest(OWN)


def _locate_stall(stretch: Stretch, place: int, least: float) -> tuple[str, int | None]:
    """The column of a stalled block in which a rank had at least `least` microseconds, and the rank.

    All ranks of a job take the time of a stall: the others wait on their devices for the one that stalled.
    """
    ranks = range(stretch.world)
    waits = [stretch.column("data_wait", rank)[place] for rank in ranks]
    if max(waits) >= least:
        return "data_wait", waits.index(max(waits))
    before = max(0, place - 1)  # a host that runs ahead of its device sees the stall one step later
    busy = []
    for rank in ranks:
        device = stretch.column("device", rank)
        if max(device[before], device[place]) >= least:
            busy.append(rank)
    on_host = []
    for rank in ranks:
        if rank in busy:
            continue
        for column, block in (("to_device", place), ("host", place), ("after", place), ("after", before)):
            on_host.append((stretch.column(column, rank)[block], column, rank))
    micro, column, rank = max(on_host, default=(0, "", 0))
    if micro >= least:
        return column, rank
    if len(busy) == 1:
        return "device", busy[0]
    return "device", _find_late_rank(stretch, place, least)


def _find_late_rank(stretch: Stretch, place: int, least: float) -> int | None:
    """The only rank that came at least `least` microseconds late to its first collective; None if it is not known."""
    collectives = stretch.spans[0].collectives
    if collectives is None:
        return None
    # Of the times of collectives, whose blocks may be longer.
    block = sum(stretch.sizes[:place]) // collectives.block
    first = [times[block] for times in collectives.first]
    late = [rank for rank, micro in enumerate(first) if micro - min(first) >= least]
    if len(late) != 1:
        return None
    return late[0]
