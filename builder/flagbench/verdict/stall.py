"""Find steps that stalled: they took many times as long as the others, and the evidence says where their time went.

A step waits for its batch, copies it to the device, starts kernels on the host, computes on the device, and ends. The
evidence has the time of each part in a column, per rank, in microseconds; in long runs it has sums over blocks of
steps. The rule `stalled-step` and the causes of a slow run use `find_stall`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.document import StepRange
from flagbench_core.evidence.metrics import DEVICE, HOST, OWN, PUBLISHED
from flagbench_core.stats.summary import median
from flagbench_core.stats.within import STALL

NOTABLE = 0.01
"""The least share of the window that a stall loses: less widens the interval of a run by less than sessions
differ."""
LONG_BLOCK = 2.0
"""A block of steps that has a stalled one takes at least this many times as long as usual."""
_DOING = {
    "data_wait": "waiting for data",
    "to_device": "copying the batch to the device",
    "host": "on the host",
    "device": "computing",
    "after": "between steps",
}
"""What a rank did in the time of each column of the evidence, as a clause."""


class Stall(NamedTuple):
    """The longest stalled step of a window, or the block of steps that it is in."""

    first: int
    """The number of the stalled step in the run, counted from 1; for a block, that of its first step."""
    last: int
    """The number of the block's last step; equal to `first` for a single step."""
    seconds: float
    """The time of the step or block."""
    usual: float
    """The time that it usually takes, in seconds, according to the median step."""
    column: str
    """The column of the evidence that has most of its time."""
    rank: int | None
    """The rank that stalled; None if it is not known which, or the job has only one."""
    others: int
    """The number of other steps, or blocks, that stalled."""
    lost: float
    """Seconds that all stalled steps took beyond their usual time."""
    share: float
    """The share of the window's time that is lost."""

    def __str__(self) -> str:
        """Return text such as `step 30 took 2.5 s instead of 0.4 s, waiting for data on rank 3: 5% of the window`."""
        step = f"step {self.first:,}"
        if self.last > self.first:
            step = f"steps {self.first:,} to {self.last:,}"
        text = f"{step} took {self.seconds:.3g} s instead of {self.usual:.3g} s, {_DOING[self.column]}"
        if self.rank is not None:
            text += f" on rank {self.rank}"
        if self.others:
            text += f", {self.others} more stalled"
        return f"{text}: {self.share:.0%} of the window"


class CountedTime(NamedTuple):
    """The time that a rate counts: the columns of the evidence that are summed, and the rank whose time it is."""

    columns: Sequence[str]
    rank: int


class _StallPlace(NamedTuple):
    """The column of the evidence that has the time of a stall, and the rank that stalled, if it is known."""

    column: str
    rank: int | None


def find_stall(step_range: StepRange, columns: Sequence[str], rank: int) -> Stall | None:
    """Return the longest stall in the steps of a rank; None if none is notable.

    Args:
        step_range: the steps of the window.
        columns: the columns of the evidence that are counted as a step's time.
        rank: the rank whose time is counted.
    """
    times = step_range.time(columns, rank)
    sizes = step_range.sizes
    median_step = median([micro / size for micro, size in zip(times, sizes, strict=True)])
    if not median_step:
        return None
    beyond = [micro - median_step * size for micro, size in zip(times, sizes, strict=True)]
    total = sum(times)
    stalled = []
    for place, excess in enumerate(beyond):
        has_stalled_step = excess >= (STALL - 1) * median_step
        is_long_block = times[place] >= LONG_BLOCK * median_step * sizes[place]
        if has_stalled_step and is_long_block and excess >= NOTABLE * total:
            stalled.append(place)
    if not stalled:
        return None
    longest = max(stalled, key=beyond.__getitem__)
    # The part that has more than half of the excess is where the time went.
    located = _locate_stall(step_range, longest, beyond[longest] / 2)
    stalled_rank = located.rank
    if step_range.world == 1:
        stalled_rank = None
    before = step_range.first + sum(sizes[:longest])
    lost = sum(beyond[place] for place in stalled)
    return Stall(
        first=before + 1,
        last=before + sizes[longest],
        seconds=times[longest] / MICRO,
        usual=median_step * sizes[longest] / MICRO,
        column=located.column,
        rank=stalled_rank,
        others=len(stalled) - 1,
        lost=lost / MICRO,
        share=lost / total,
    )


def find_counted_time(metric: str, step_range: StepRange) -> CountedTime:
    """Return the time that a rate counts, according to its name.

    The publisher's rates use the clock of rank 0; flagbench's own use that of the slowest rank.
    """
    if metric.endswith("_core_host"):
        return CountedTime(HOST, 0)
    if metric.endswith(("_host", "_published_count")):
        return CountedTime(PUBLISHED, 0)
    if "core" in metric:
        return CountedTime(DEVICE, step_range.slowest(DEVICE))
    return CountedTime(OWN, step_range.slowest(OWN))


def _locate_stall(step_range: StepRange, place: int, least: float) -> _StallPlace:
    """Return where a stalled block lost its time: the column in which a rank had at least `least` microseconds.

    All ranks of a job take the time of a stall, because the others wait on their devices for the one that stalled. So
    a rank that waited for data or worked on its host is the cause, before one whose device was busy.
    """
    ranks = range(step_range.world)
    waits = [step_range.column("data_wait", rank)[place] for rank in ranks]
    if max(waits) >= least:
        return _StallPlace("data_wait", waits.index(max(waits)))
    before = max(0, place - 1)  # a host that runs ahead of its device sees the stall one step later
    busy_on_device = []
    for rank in ranks:
        device = step_range.column("device", rank)
        if max(device[before], device[place]) >= least:
            busy_on_device.append(rank)
    on_host = []
    for rank in ranks:
        if rank in busy_on_device:
            continue
        for column, block in (("to_device", place), ("host", place), ("after", place), ("after", before)):
            on_host.append((step_range.column(column, rank)[block], column, rank))
    micro, column, rank = max(on_host, default=(0, "", 0))
    if micro >= least:
        return _StallPlace(column, rank)
    if len(busy_on_device) == 1:
        return _StallPlace("device", busy_on_device[0])
    return _StallPlace("device", _find_late_rank(step_range, place, least))


def _find_late_rank(step_range: StepRange, place: int, least: float) -> int | None:
    """Return the rank that came at least `least` microseconds late to the first collective of a block.

    None if no rank or several ranks did, or if these times are not in the evidence.
    """
    collectives = step_range.spans[0].collectives
    if collectives is None:
        return None
    # The blocks of these times may be longer than those of the steps.
    block = sum(step_range.sizes[:place]) // collectives.block
    arrivals = [times[block] for times in collectives.first]
    earliest = min(arrivals)
    late = [rank for rank, micro in enumerate(arrivals) if micro - earliest >= least]
    if len(late) != 1:
        return None
    return late[0]
