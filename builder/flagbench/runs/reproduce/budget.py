"""The limits of `flagbench reproduce` in runs, minutes or money, and the clock that says how much of them is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.records.series_document import MAX_RUNS
from flagbench.runs.request import YEAR_SECONDS
from flagbench.verdict.stats.looks import LOOKS

_MARGIN = 1.1
"""A run is only started if this many times the duration of the longest one is left, because durations vary."""


_LARGEST_VALUE = YEAR_SECONDS
"""The largest minutes, cost or price accepted: it only refuses infinity and typing errors."""


@dataclass(frozen=True)
class LimitOptions:
    """Limits at which a reproduction ends even if the verdict is not decided."""

    runs: Annotated[
        int | None,
        Option(min=1, max=MAX_RUNS, metavar="N", help=f"Run it at most N times. Default: {LOOKS[-1]}."),
    ] = None
    max_minutes: Annotated[float | None, Option(metavar="MINUTES", help="End all runs after that time.")] = None
    max_cost: Annotated[
        float | None, Option(metavar="AMOUNT", help="End all runs when they have cost that much; needs --price.")
    ] = None
    price: Annotated[float | None, Option(metavar="AMOUNT", help="What this machine costs per hour.")] = None

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of runs after which the verdict is computed.

        They are fixed before the first run, because a test that may stop after every run errs more often.
        """
        most = self.runs or LOOKS[-1]
        return (*(look for look in LOOKS if look < most), most)

    @property
    def minutes(self) -> float | None:
        """The time limit in minutes: the lower of --max-minutes and of what --max-cost pays for; None: no limit."""
        limits = []
        if self.max_minutes is not None:
            limits.append(self.max_minutes)
        if self.max_cost is not None and self.price is not None:
            limits.append(60 * self.max_cost / self.price)
        return min(limits, default=None)

    def check(self) -> None:
        """Raise FlagbenchError (USAGE) for limits that are out of range or incomplete."""
        _check_positive("--max-minutes", self.max_minutes)
        _check_positive("--max-cost", self.max_cost)
        _check_positive("--price", self.price)
        if self.max_cost is not None and self.price is None:
            raise FlagbenchError("--max-cost needs --price", remedy="give what this machine costs per hour")
        if self.minutes is not None and self.minutes > YEAR_SECONDS / 60:
            raise FlagbenchError(
                f"the limit of {self.minutes:.0f} minutes is out of range", remedy="give a lower --max-cost"
            )


def _check_positive(option: str, value: float | None) -> None:
    """Raise FlagbenchError (USAGE) for a value that is not above 0, or that is larger than any real one."""
    if value is not None and not 0 < value <= _LARGEST_VALUE:
        raise FlagbenchError(f"{option} {value} is out of range", remedy="give a number above 0")


@dataclass
class ReproductionClock:
    """The time and money that a reproduction has used, counted from when the clock is made."""

    limits: LimitOptions
    now: Callable[[], float] = time.monotonic
    """Returns the time in seconds; tests replace it."""
    longest: float = 0.0
    """Seconds of the longest run so far."""
    _start: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._start = self.now()

    @property
    def seconds(self) -> float:
        """Seconds since the reproduction started."""
        return self.now() - self._start

    @property
    def left(self) -> float | None:
        """The minutes left, 0 or more; None without a limit."""
        minutes = self.limits.minutes
        if minutes is None:
            return None
        return max(0.0, minutes - self.seconds / 60)

    @property
    def cost(self) -> float | None:
        """The cost of the time so far, in the currency of --price; None without a price."""
        if self.limits.price is None:
            return None
        return self.limits.price * self.seconds / 3600

    @property
    def allows_another(self) -> bool:
        """Whether there is time left for one more run as long as the longest one so far."""
        return self.left is None or 60 * self.left >= _MARGIN * self.longest

    @property
    def text(self) -> str:
        """`3.2 min so far, 26.8 min left, cost 0.11`."""
        parts = [f"{self.seconds / 60:.1f} min so far"]
        if self.left is not None:
            parts.append(f"{self.left:.1f} min left")
        if self.cost is not None:
            parts.append(f"cost {self.cost:.2f}")
        return ", ".join(parts)
