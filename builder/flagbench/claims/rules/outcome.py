"""How a run ended: its time against the work and the rule that stops it, and its accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flagbench.claims.numbers import Cell
from flagbench.claims.rows import LintFinding, Row
from flagbench.claims.work import RunWork, run_work

START_S = 300.0
"""Seconds that imports, process groups, data and weights may take, without an evaluation. The longest that published
rows leave is 133 s."""
_SMALL = 0.005
"""Parts of a period: a match closer than that is no coincidence, and a wider interval decides nothing."""


@dataclass(frozen=True)
class _Run:
    """What a row says of its run, in seconds."""

    row: Row
    time: Cell
    whole: Cell
    work: RunWork
    evaluation: float
    """The longest that one evaluation may have taken, by the difference of p_whole and p_train."""

    @property
    def shortest(self) -> float:
        """The least time of a period."""
        return self.work.low / self.whole.high

    @property
    def longest(self) -> float:
        return self.work.high / self.whole.low

    @property
    def start(self) -> float:
        """The longest plausible initialisation: START_S and one and a half evaluations."""
        return START_S + 1.5 * self.evaluation


def end_to_end(row: Row) -> Iterator[LintFinding]:
    """e2e_time = n periods / p_whole + initialisation, for a whole n from 1 to the limit of the stop rule.

    A period is an epoch, the samples between two evaluations, or an inference set. The initialisation is positive and
    at most START_S and one and a half evaluations, where nothing but the limit ended the run.
    """
    run = _run(row)
    if run is None:
        return
    time, work = run.time, run.work
    if time.high <= run.shortest * (1 - _SMALL):
        yield row.finding(
            "e2e_time",
            "e2e-too-short",
            f"{time.text} s is less than {work.what} takes at p_whole {run.whole.text}: {run.shortest:.1f} s; "
            "check the unit of e2e_time, and which run each cell is from",
        )
        return
    full = "epochs" in row.conditions or _reached_limit(row, work)
    yield from _equals_training_time(run, full)
    limit = work.most * run.longest
    if math.isfinite(limit) and time.low > limit + run.start:
        yield row.finding(
            "e2e_time",
            "e2e-too-long",
            f"the stop rule ends a run after {_periods(work.most)} x {run.longest:.1f} s at the latest, which leaves "
            f"{time.value - limit:.0f} s of {time.text} s for initialisation, more than {run.start:.0f} s; "
            "check the unit, and whether all cells are from one run",
        )
    elif full and time.high < work.most * run.shortest * (1 - _SMALL):
        yield row.finding(
            "e2e_time",
            "e2e-too-short",
            f"the run lasted {_periods(work.most)} periods of {run.shortest:.1f} s, by its epochs or because the "
            f"accuracy misses its target, and {time.text} s is less; check acc, epochs and e2e_time",
        )


def _equals_training_time(run: _Run, full: bool) -> Iterator[LintFinding]:
    """A time that is n periods to the last digit contains no initialisation."""
    row, time = run.row, run.time
    counted = run.work.high
    low, high = counted / run.whole.high, counted / run.whole.low
    nearest = round(time.value / (counted / run.whole.value))
    width = time.high - time.low + nearest * (high - low)
    if width > 2 * _SMALL * low or run.work.what.startswith("the set"):
        return
    periods = run.work.most if full and run.work.most == int(run.work.most) else nearest
    if 1 <= nearest <= math.ceil(run.work.most) and nearest * low <= time.high and time.low <= nearest * high:
        yield row.finding(
            "e2e_time",
            "e2e-is-train-time",
            f"{time.text} s is {_periods(periods)} x {run.work.what} / p_whole {run.whole.text} to the last digit, "
            "without any initialisation; publish the time of the whole run",
        )


def _run(row: Row) -> _Run | None:
    time, whole = row.metrics.get("e2e_time"), row.metrics.get("p_whole") or row.metrics.get("p_infer_whole")
    batch = row.number_of("batch_size")
    if time is None or whole is None or not row.devices or not batch:
        return None
    batch *= row.number_of("gradient_accumulation_steps") or 1
    if time.value <= 0 or whole.low <= 0 or batch < 1:
        return None
    work = run_work(row.case, batch, row.devices, stop_limit(row))
    if work is None:
        return None
    return _Run(row, time, whole, work, _evaluation(row, whole, work))


def _evaluation(row: Row, whole: Cell, work: RunWork) -> float:
    """Seconds of one evaluation at most: the time that p_whole includes and p_train does not, of a period, or of all
    that a short limit allows."""
    train = row.metrics.get("p_train")
    if train is None or train.high <= whole.low:
        return 0.0
    periods = min(work.most, 1.0) if work.most >= 2 else work.most
    return periods * work.high * (1 / whole.low - 1 / train.high) / max(1, math.ceil(periods))


def stop_limit(row: Row) -> tuple[float, str] | None:
    """The limit that a row's own stop rule has: its number and `epochs` or `samples`; None if it has none."""
    found = re.search(r"(\d[\d,]*)\s*(epochs?|samples)", row.conditions.get("stop_rule", ""))
    if found:
        return float(found[1].replace(",", "")), "samples" if found[2] == "samples" else "epochs"
    for name in ("epochs", "max_epochs"):
        if name in row.conditions and (number := row.number_of(name)):
            return number, "epochs"
    return None


def _reached_limit(row: Row, work: RunWork) -> bool:
    acc = row.metrics.get("acc")
    return work.target is not None and acc is not None and acc.high < work.target


def _periods(number: float) -> str:
    return f"{number:,.0f}" if abs(number - round(number)) < 0.01 else f"{number:.2f}"


def accuracy(row: Row) -> Iterator[LintFinding]:
    """0 <= acc <= 1, and a run that the stop rule ends has reached its target, unless the row says otherwise."""
    acc = row.metrics.get("acc")
    if acc is None:
        return
    if acc.low > 1:
        yield row.finding("acc", "above-one", f"{acc.text} is more than 1; write a fraction, such as 0.915")
        return
    target = _target(row)
    said = row.conditions.get("converged", "").lower() == "false"
    if target is not None and acc.high < target and not said:
        yield row.finding(
            "acc",
            "not-converged",
            f"{acc.text} is below the target of {target:g} that ends a run; say that it did not converge",
        )


def can_converge(row: Row) -> Iterator[LintFinding]:
    """A run whose own limit allows fewer than two evaluations cannot stop at its target."""
    limit, case = stop_limit(row), row.case
    if limit is None or limit[1] != "samples" or "acc" in row.metrics:
        return
    cadence = case.presets["reference"].get("train", {}).get("evaluate_every_samples")
    if cadence and limit[0] < 2 * cadence:
        yield row.finding(
            "acc",
            "cannot-converge",
            f"the run stops at {limit[0]:,.0f} samples and is evaluated every {cadence:,}: no time to accuracy; "
            "say so, or publish a whole run",
        )


def _target(row: Row) -> float | None:
    target = row.case.presets["reference"].get("train", {}).get("target_acc")
    return None if target is None else float(target)
