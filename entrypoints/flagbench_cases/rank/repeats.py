"""Times operations of the device by repeating them, for the measuring loop (measure_loop.py) and matmul_peak.py.

A repeat is several operations that follow one another, so that its time is long enough for the clock. It is timed by
marks on the device's timeline. Repeats are steady when flagbench_core.evidence.roofs.is_steady says so.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, NamedTuple

from flagbench_cases.contract import Isolated
from flagbench_cases.rank.stopwatch import now
from flagbench_core.evidence.roofs import REPEATS, is_steady
from flagbench_core.stats.summary import median

REPEAT_SECONDS = 0.02
"""The time that a repeat takes at least, unless it has MAX_OPERATIONS. It is longer than the milliseconds for which
the scheduler of a host takes a core away, and within which the power management of a device reacts."""
ROUND_SECONDS = 0.1
"""Duration of a round: the repeats between two decisions of the ranks whether to continue. A decision makes the
device wait, so there are few of them."""
MAX_OPERATIONS = 1000
"""Maximum number of operations in a repeat. Operations of less than 20 microseconds reach it."""
TRIES = 3
"""Number of repeats used to compare candidates."""
MIN_SECONDS = 1e-9
"""A shorter time is below the resolution of the clock and counts as this one, so that it can be divided by."""


class Times(NamedTuple):
    """The times of one repeat, seconds."""

    device: float
    """The time between the marks around the repeat, by the device's clock."""
    host: float
    """The time from the start of the repeat until its last operation is launched, by the host's clock."""
    after: float
    """The time that the host then waits for the device; 0 except for the last repeat of a round."""


def gather_one(value: Any) -> list[Any]:
    """The values of all ranks in a job with one rank: the default for `all_gather`."""
    return [value]


class Repeater:
    """Repeats operations on the device of a rank."""

    def __init__(
        self,
        device: Any,
        all_gather: Callable[[Any], list[Any]] = gather_one,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to repeat operations on `device`.

        Args:
            device: the device of this rank.
            all_gather: returns every rank's value on every rank, so that all ranks decide the same.
            beat: reports that this rank makes progress.
        """
        self.device = device
        self.all_gather = all_gather
        self.beat = beat

    def time_once(self, operation: Callable[[], Any]) -> float:
        """Run an operation once. Returns its seconds; the first time, they include loading libraries."""
        return self._timed(operation, 1, 1)[0].device

    def time_operation(self, operation: Callable[[], Any]) -> float:
        """Run TRIES repeats. Returns the seconds of one operation: the median on a rank, the maximum over ranks."""
        first_seconds = max(self.all_gather(self.time_once(operation)))
        count = self.operations_per_repeat(first_seconds)
        self.beat()
        repeats = self._timed(operation, count, TRIES)
        seconds = median([times.device for times in repeats]) / count
        return max(self.all_gather(seconds))

    def operations_per_repeat(self, seconds: float) -> int:
        """The number of operations in a repeat, if one operation takes `seconds`."""
        operations = round(REPEAT_SECONDS / max(seconds, MIN_SECONDS))
        return max(1, min(MAX_OPERATIONS, operations))

    def repeat_until_steady(
        self,
        operation: Callable[[], Any],
        seconds: float,
        limit: float,
        keep: int = REPEATS,
        warmup: int = 0,
        stop_when_steady: bool = True,
    ) -> list[Times]:
        """Repeat an operation until its last `keep` repeats are steady on all ranks, or until a time limit.

        Args:
            operation: starts the operation once.
            seconds: the duration of one operation. It is the same on all ranks: the number of repeats depends on it.
            limit: seconds after which no further round of repeats begins.
            keep: the number of repeats to keep.
            warmup: the number of repeats before those that are kept, if there is time for them.
            stop_when_steady: if false, repeat until the limit even if the repeats are steady.

        Returns:
            The times of the last `keep` repeats at most; without `stop_when_steady`, of all repeats.
        """
        operations = self.operations_per_repeat(seconds)
        max_kept = None  # no maximum
        if stop_when_steady:
            max_kept = keep
        kept: deque[Times] = deque(maxlen=max_kept)
        count = self._repeats_of_round(seconds, keep)
        repeats_so_far = 0
        end = now() + limit
        while True:
            kept.extend(self._timed(operation, operations, count))
            repeats_so_far += count
            self.beat()
            steady = False
            if stop_when_steady and repeats_so_far >= warmup + keep:
                steady = is_steady([times.device for times in kept])
            is_done = steady or now() >= end
            if all(self.all_gather(is_done)):
                return list(kept)

    def repeat_in_full(self, operation: Callable[[], Any], operations: int, count: int) -> list[Times]:
        """Make `count` repeats of `operations` each, however long they take, after a repeat that warms up.

        Returns the times of the `count` repeats.
        """
        repeats: list[Times] = []
        for _ in range(count + 1):
            repeats += self._timed(operation, operations, 1)
            self.beat()
        return repeats[1:]

    def repeat_isolated(self, operation: Isolated, warmup: int, count: int, min_seconds: float = 0.0) -> list[Times]:
        """Make repeats of one operation each: `warmup` and then `count`, and more until `min_seconds` have passed.

        Returns the times of all repeats after the warm-up.
        """
        begun = now()
        repeats = self._timed(operation.run, 1, warmup + count, operation.clear)[warmup:]
        self.beat()
        while now() - begun < min_seconds:
            repeats += self._timed(operation.run, 1, count, operation.clear)
            self.beat()
        return repeats

    def heat(self, operation: Callable[[], Any], seconds: float, limit: float) -> float:
        """Repeat an operation, which takes `seconds`, until `limit` seconds have passed. Returns how many passed."""
        begun = now()
        operations = self.operations_per_repeat(seconds)
        count = self._repeats_of_round(seconds, REPEATS)
        while now() - begun < limit:
            self._timed(operation, operations, count)
            self.beat()
        return now() - begun

    def _repeats_of_round(self, seconds: float, max_repeats: int) -> int:
        """The number of repeats in a round, at most `max_repeats`, if one operation takes `seconds`."""
        repeat_seconds = seconds * self.operations_per_repeat(seconds)
        repeats = int(ROUND_SECONDS / max(repeat_seconds, MIN_SECONDS))
        return max(1, min(max_repeats, repeats))

    def _timed(
        self, operation: Callable[[], Any], operations: int, count: int, before: Callable[[], Any] = lambda: None
    ) -> list[Times]:
        """Time `count` repeats of `operations` each. The host waits for the device only after the last repeat.

        `before` runs before each repeat. Its time is part of `Times.host`, but not of `Times.device`.
        """
        clock = self.device.clock
        marks = []
        host_seconds = []
        begun = now()
        for _ in range(count):
            before()
            start = clock.mark()
            for _ in range(operations):
                operation()
            marks.append((start, clock.mark()))
            ended = now()
            host_seconds.append(ended - begun)
            begun = ended
        self.device.synchronize()
        waited = now() - begun
        device_seconds = [clock.seconds(start, end) for start, end in marks]
        for start, end in marks:
            clock.release([start, end])
        repeats = [Times(device, host, 0.0) for device, host in zip(device_seconds, host_seconds)]
        repeats[-1] = repeats[-1]._replace(after=waited)
        return repeats
