"""What a piece of work costs, told in the seconds of one machine: processors differ, and one changes its clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

YARDSTICK = 0.0066
"""Seconds of CPU that `_yardstick` takes on the machine that limits in seconds are set on (CPython 3.11)."""


def cpu_seconds(job: Callable[[], object], repeats: int) -> float:
    """The CPU time of this process for one call of `job`, as it would be where the yardstick takes its seconds.

    The least of `repeats` is the least disturbed. A machine that is faster than that one gets no credit.
    """
    pairs = [(_cost(job), _cost(_yardstick)) for _ in range(repeats)]
    least, yardstick = (min(column) for column in zip(*pairs, strict=True))
    return least * min(1.0, YARDSTICK / yardstick)


def _cost(job: Callable[[], object]) -> float:
    before = time.process_time()
    job()
    return time.process_time() - before


def _yardstick() -> int:
    """A fixed amount of what an interpreter does most: calls, dicts, strings."""
    rows = [
        {"path": f"folder/{i}/file", "sizes": [i, i + 1, i * 2.5], "words": [f"{i}-{j}" for j in range(5)]}
        for i in range(400)
    ]
    # An indent keeps json to its implementation in Python.
    text = json.dumps(rows, sort_keys=True, indent=1)
    return len({line.strip().partition(":")[2] for line in text.splitlines()})
