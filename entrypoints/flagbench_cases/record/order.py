"""Whether rates are in order: p_core >= p_train >= p_whole over the same steps."""

from typing import Sequence, Tuple

from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.metrics import DEVICE, OWN
from flagbench_core.evidence.section import Stretch

CLOCK_DRIFT = 1e-4  # maximum drift of a device's clock relative to the host's


def in_order(stretches: Sequence[Stretch], durations: Sequence[int]) -> Tuple[bool, str]:
    """Whether device time <= host time <= duration, each the maximum over ranks, within one step; and the times.

    `durations`: each rank's microseconds from start to end of the first stretch; empty if it did not end. Stretches
    without steps are ignored.
    """
    ok, shown = True, []
    for index, stretch in enumerate(stretches):
        if not stretch.steps:
            continue
        times = [stretch.rank_time(parts, stretch.slowest(parts)) / MICRO for parts in (DEVICE, OWN)]
        if durations and index == 0:
            times.append(max(durations) / MICRO)
        allowed = 1 + 1 / stretch.steps + CLOCK_DRIFT
        ok = ok and all(times[i] <= times[i + 1] * allowed for i in range(len(times) - 1))
        words = " <= ".join("%.4f s" % seconds for seconds in times)
        shown.append("steps %d to %d: %s" % (stretch.first, stretch.first + stretch.steps, words))
    return ok, "device <= host <= end to end, each the maximum over ranks: " + "; ".join(shown)
