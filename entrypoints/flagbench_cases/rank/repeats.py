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
"""The least time of a repeat. The scheduler of a host takes a core away for milliseconds, and the power management of
a device reacts as fast."""
ROUND_SECONDS = 0.1
"""Duration of the repeats between two decisions of the ranks whether to continue."""
MOST_OPERATIONS = 1000
"""Maximum number of operations in a repeat."""
TRIES = 3
"""Number of repeats used to compare candidates."""


class Times(NamedTuple):
    """One repeat, seconds: by the device's clock, of the host, and of the host from its end to the next repeat."""

    device: float
    host: float
    after: float


def only_rank(value: Any) -> list[Any]:
    """The values of all ranks in a job with one rank."""
    return [value]


class Repeater:
    """Repeats operations on the device of a rank."""

    def __init__(
        self, device: Any, all_gather: Callable[[Any], list[Any]] = only_rank, beat: Callable[[], None] = lambda: None
    ) -> None:
        """`all_gather`: every rank's value, by which all ranks decide the same; `beat` reports progress."""
        self.device = device
        self.all_gather = all_gather
        self.beat = beat

    def once(self, operation: Callable[[], Any]) -> float:
        """Seconds of one operation on this rank. The first one also loads libraries and maps memory."""
        return self._timed(operation, 1, 1)[0].device

    def pace(self, operation: Callable[[], Any]) -> float:
        """Seconds of an operation on the slowest rank, of a few repeats."""
        count = self.operations(max(self.all_gather(self.once(operation))))
        self.beat()
        tried = median([times.device for times in self._timed(operation, count, TRIES)]) / count
        return max(self.all_gather(tried))

    def operations(self, seconds: float) -> int:
        """The number of operations in a repeat, for operations of this duration."""
        return max(1, min(MOST_OPERATIONS, round(REPEAT_SECONDS / max(seconds, 1e-9))))

    def until_steady(
        self,
        operation: Callable[[], Any],
        seconds: float,
        limit: float,
        keep: int = REPEATS,
        warmup: int = 0,
        whole: bool = False,
    ) -> list[Times]:
        """The last repeats, at most `keep`, once they are steady on all ranks or the limit of seconds is over.

        `seconds`: what one operation takes, the same on all ranks, as all of them make as many repeats. `warmup`:
        repeats before those that may be kept, if there is time for them. `whole`: all repeats until the limit, also
        steady ones.
        """
        operations = self.operations(seconds)
        longest = None if whole else keep
        kept: deque[Times] = deque(maxlen=longest)
        count = self._repeats_of_round(seconds, keep)
        count_so_far, end = 0, now() + limit
        while True:
            kept.extend(self._timed(operation, operations, count))
            count_so_far += count
            self.beat()
            steady = not whole and count_so_far >= warmup + keep and is_steady([times.device for times in kept])
            if all(self.all_gather(steady or now() >= end)):
                return list(kept)

    def all_of(self, operation: Callable[[], Any], operations: int, count: int) -> list[Times]:
        """`count` repeats, after one that warms up."""
        repeats: list[Times] = []
        for _ in range(count + 1):
            repeats += self._timed(operation, operations, 1)
            self.beat()
        return repeats[1:]

    def isolated(self, operation: Isolated, warmup: int, count: int, least: float = 0.0) -> list[Times]:
        """`count` repeats of one operation each after `warmup` others, and more until `least` seconds have passed."""
        begun = now()
        repeats = self._timed(operation.run, 1, warmup + count, operation.clear)[warmup:]
        self.beat()
        while now() - begun < least:
            repeats += self._timed(operation.run, 1, count, operation.clear)
            self.beat()
        return repeats

    def heat(self, operation: Callable[[], Any], seconds: float, limit: float) -> float:
        """Repeat an operation, which takes `seconds`, until `limit` seconds have passed. Returns how long it
        took."""
        begun = now()
        operations, count = self.operations(seconds), self._repeats_of_round(seconds, REPEATS)
        while now() - begun < limit:
            self._timed(operation, operations, count)
            self.beat()
        return now() - begun

    def _repeats_of_round(self, seconds: float, most: int) -> int:
        """The number of repeats in a round of about ROUND_SECONDS, for operations of this duration."""
        return max(1, min(most, int(ROUND_SECONDS / max(seconds * self.operations(seconds), 1e-9))))

    def _timed(
        self, operation: Callable[[], Any], operations: int, count: int, before: Callable[[], Any] = lambda: None
    ) -> list[Times]:
        """Time repeats that follow one another without a wait; the wait for the device is after the last one.

        `before` runs before each repeat and is not timed.
        """
        clock, marks, hosts = self.device.clock, [], []
        begun = now()
        for _ in range(count):
            before()
            start = clock.mark()
            for _ in range(operations):
                operation()
            marks.append((start, clock.mark()))
            ended = now()
            hosts.append(ended - begun)
            begun = ended
        self.device.synchronize()
        waited = now() - begun
        device = [clock.seconds(start, end) for start, end in marks]
        for pair in marks:
            clock.release(list(pair))
        waits = [0.0] * (count - 1) + [waited]
        return [Times(*times) for times in zip(device, hosts, waits)]
