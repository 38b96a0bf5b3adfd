"""Repeats an operation until its time is steady. A repeat is several operations, so that its time is long enough for
the clock; it is timed by marks on the device's timeline."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, NamedTuple

from flagbench_cases.contract import Isolated
from flagbench_cases.rank.stopwatch import now
from flagbench_core.evidence.roofs import REPEATS, is_steady
from flagbench_core.stats.summary import median

REPEAT_SECONDS = 0.02
"""The time that a repeat takes at least, unless it has MAX_OPERATIONS. The scheduler of a host takes a core away for
milliseconds, and the power management of a device reacts as fast."""
ROUND_SECONDS = 0.1
"""Duration of the repeats between two decisions of the ranks whether to continue."""
MAX_OPERATIONS = 1000
"""Maximum number of operations in a repeat."""
TRIES = 3
"""Number of repeats used to compare candidates."""
MIN_SECONDS = 1e-9
"""A shorter time is below the resolution of the clock and counts as this one, so that it can be divided by."""


class Times(NamedTuple):
    """The times of one repeat, seconds."""

    device: float
    """By the device's clock."""
    host: float
    """By the host's clock, from the start of the repeat until its last operation is launched."""
    after: float
    """By the host's clock, after the repeat until the device has finished; 0 except for the last of its round."""


def only_rank(value: Any) -> list[Any]:
    """The values of all ranks in a job with one rank."""
    return [value]


class Repeater:
    """Repeats operations on the device of a rank."""

    def __init__(
        self, device: Any, all_gather: Callable[[Any], list[Any]] = only_rank, beat: Callable[[], None] = lambda: None
    ) -> None:
        """`all_gather` returns every rank's value, so that all ranks decide the same; `beat` reports progress."""
        self.device = device
        self.all_gather = all_gather
        self.beat = beat

    def once(self, operation: Callable[[], Any]) -> float:
        """Seconds of one operation on this rank. The first one also loads libraries and maps memory."""
        return self._timed(operation, 1, 1)[0].device

    def pace(self, operation: Callable[[], Any]) -> float:
        """Seconds of an operation on the slowest rank: on each rank the median of TRIES repeats."""
        first_seconds = max(self.all_gather(self.once(operation)))
        count = self.operations(first_seconds)
        self.beat()
        repeats = self._timed(operation, count, TRIES)
        seconds = median([times.device for times in repeats]) / count
        return max(self.all_gather(seconds))

    def operations(self, seconds: float) -> int:
        """The number of operations in a repeat, for operations of this duration."""
        operations = round(REPEAT_SECONDS / max(seconds, MIN_SECONDS))
        return max(1, min(MAX_OPERATIONS, operations))

    def until_steady(
        self,
        operation: Callable[[], Any],
        seconds: float,
        limit: float,
        keep: int = REPEATS,
        warmup: int = 0,
        stop_when_steady: bool = True,
    ) -> list[Times]:
        """Repeat an operation until its last `keep` repeats are steady on all ranks, or a time limit.

        Args:
            operation: starts it once.
            seconds: of one operation, the same on all ranks, so that all of them make the same number of repeats.
            limit: seconds after which no further round of repeats begins.
            keep: the number of repeats to keep.
            warmup: the number of repeats before those that are kept, if there is time for them.
            stop_when_steady: if false, repeat until the limit even if the repeats are steady.

        Returns:
            The last repeats, at most `keep`; without `stop_when_steady`, all of them.
        """
        operations = self.operations(seconds)
        max_kept = None
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
            if all(self.all_gather(steady or now() >= end)):
                return list(kept)

    def repeat_in_full(self, operation: Callable[[], Any], operations: int, count: int) -> list[Times]:
        """`count` repeats of `operations` each, however long they take, after one that warms up."""
        repeats: list[Times] = []
        for _ in range(count + 1):
            repeats += self._timed(operation, operations, 1)
            self.beat()
        return repeats[1:]

    def isolated(self, operation: Isolated, warmup: int, count: int, min_seconds: float = 0.0) -> list[Times]:
        """`count` repeats of one operation each after `warmup` that are left out, and more until `min_seconds` have
        passed."""
        begun = now()
        repeats = self._timed(operation.run, 1, warmup + count, operation.clear)[warmup:]
        self.beat()
        while now() - begun < min_seconds:
            repeats += self._timed(operation.run, 1, count, operation.clear)
            self.beat()
        return repeats

    def heat(self, operation: Callable[[], Any], seconds: float, limit: float) -> float:
        """Repeat an operation, which takes `seconds`, until `limit` seconds have passed. Returns the seconds that it
        took."""
        begun = now()
        operations = self.operations(seconds)
        count = self._repeats_of_round(seconds, REPEATS)
        while now() - begun < limit:
            self._timed(operation, operations, count)
            self.beat()
        return now() - begun

    def _repeats_of_round(self, seconds: float, max_repeats: int) -> int:
        """The number of repeats in a round of about ROUND_SECONDS, for operations of this duration."""
        repeat_seconds = seconds * self.operations(seconds)
        repeats = int(ROUND_SECONDS / max(repeat_seconds, MIN_SECONDS))
        return max(1, min(max_repeats, repeats))

    def _timed(
        self, operation: Callable[[], Any], operations: int, count: int, before: Callable[[], Any] = lambda: None
    ) -> list[Times]:
        """Time repeats that follow one another without a wait; the wait for the device is after the last one.

        `before` runs before each repeat. The device's clock leaves it out.
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
