"""The loop of a case that measures. It runs a MeasureWorkload; each repeat of an operation is a step in the spool."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch

from flagbench_cases.contract import Isolated, Measurement, MeasureWorkload, Operation
from flagbench_cases.rank.repeats import Repeater, Times
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.spool import RankSpool, repeat
from flagbench_core.evidence.roofs import HEATED_SECONDS, MAMF_REPEATS, MAMF_WARMUP, amount
from flagbench_core.stats.summary import median

FULL_REPEATS = 100
"""With this number of repeats, a mean has an interval within the run."""

SEARCH_SHARE = 0.5
"""The share of a measurement's time used to find the fastest of its candidates."""


class MeasurePlan(NamedTuple):
    """How long to measure: at most `repeats` of each measurement are kept, and all take about `seconds`."""

    repeats: int
    seconds: float
    iterations: Mapping[str, int] = {}
    """Operations of measurements, by name, that are made in full, in FULL_REPEATS repeats, however long they take."""
    names: Sequence[str] = ()
    """Names of the measurements to make; empty: all."""
    heat_seconds: float = 0.0
    """Of products before the first one that is isolated. Then each isolated one takes at least HEATED_SECONDS. Both
    are in addition to `seconds`."""
    whole: bool = False
    """Whether a measurement takes all of its share of the seconds, even if its repeats are steady before."""


class Ready(NamedTuple):
    """An operation that can be repeated: what starts it, and how many seconds one takes."""

    operation: Operation
    start: Callable[[], Any]
    seconds: float


class MeasureLoop:
    """Measures on one rank, in step with the others, and writes the repeats to the spool."""

    def __init__(self, workload: MeasureWorkload, plan: MeasurePlan, spool: RankSpool, repeater: Repeater) -> None:
        self.measurements = list(workload.measurements())
        if plan.names:
            self.measurements = [measurement for measurement in self.measurements if measurement.name in plan.names]
        self.plan = plan
        self.spool = spool
        self.repeater = repeater
        self.steps = 0
        self.heated: float | None = None
        """Seconds of products that heated the device; None before."""

    @property
    def capacity(self) -> int:
        """The maximum number of steps."""
        return len(self.measurements) * max(self.plan.repeats, FULL_REPEATS, MAMF_REPEATS)

    def run(self) -> dict[str, Any]:
        """Measure everything. Returns the duration, seconds."""
        self.spool.phase("measure", self.capacity, of_steps=False)
        start = now()
        with torch.no_grad():
            self._measure_all(self.measurements)
        return {"measure": now() - start}

    def _measure_all(self, measurements: Sequence[Measurement]) -> None:
        """Measure in about as many seconds as the plan says."""
        count = len(measurements)
        end = now() + self.plan.seconds
        for index, measurement in enumerate(measurements):
            begun = now()
            # The same on all ranks, since they decide by it how many repeats they make.
            share = max(self.repeater.all_gather(max(end - begun, 0.1) / (count - index)))
            reason, beside = self._measure(measurement, share)
            if reason is not None:
                self._note_absent(measurement.name, reason)
            self._show_progress(index + 1, count)
            end += beside

    def _note_absent(self, name: str, reason: str) -> None:
        """Write why a measurement could not be made."""
        if self.spool.rank == 0:
            self.spool.fact("absent", name=name, reason=reason)

    def _show_progress(self, done: int, count: int) -> None:
        """Write how many of the measurements are done."""
        self.spool.progress(done * self.capacity // count, self.capacity)

    def _measure(self, measurement: Measurement, seconds: float) -> tuple[str | None, float]:
        """Measure one operation in about `seconds`.

        Returns the reason if it could not be measured, and the seconds that it took in addition to its share.
        """
        start = now()
        finalists, tried, reason = self._finalists(measurement, seconds)
        if not finalists:
            return reason, 0.0
        first = finalists[0]
        if isinstance(first.start, Isolated):
            return self._measure_isolated(measurement.name, first, first.start, seconds)
        iterations = self.plan.iterations.get(measurement.name)
        if iterations is not None:
            operations = max(1, iterations // FULL_REPEATS)
            times = self.repeater.all_of(first.start, operations, FULL_REPEATS)
            self._write(measurement.name, times, operations, first.operation.measured, FULL_REPEATS)
            return None, now() - start
        limit, keep = max(seconds - (now() - start), seconds * (1 - SEARCH_SHARE)), self.plan.repeats
        measured = []
        for ready in finalists:
            times = self.repeater.until_steady(
                ready.start, ready.seconds, limit, keep, warmup=keep, whole=self.plan.whole
            )
            taken = median([times_of_repeat.device for times_of_repeat in times]) / self.repeater.operations(
                ready.seconds
            )
            measured.append((_speed(ready.operation, max(self.repeater.all_gather(taken))), ready, times))
        _, best, times = max(measured, key=lambda finalist: finalist[0])
        what = dict(best.operation.measured)
        if len(measurement.candidates) > 1:
            what["tried"] = tried
        self._write(measurement.name, times, self.repeater.operations(best.seconds), what, keep)
        return None, 0.0

    def _measure_isolated(
        self, name: str, ready: Ready, operation: Isolated, seconds: float
    ) -> tuple[str | None, float]:
        """Measure an isolated operation in its share of seconds, on a heated device if the plan says so.

        Returns what `_measure` does.
        """
        expected = ready.seconds * (MAMF_WARMUP + MAMF_REPEATS)
        if expected > seconds:
            return _too_long(expected), 0.0
        measured = dict(ready.operation.measured)
        least = seconds if self.plan.whole else 0.0
        beside = 0.0
        if self.plan.heat_seconds:
            if self.heated is None:
                self.heated = self.repeater.heat(operation.run, ready.seconds, self.plan.heat_seconds)
                beside += self.heated
            measured["heated_seconds"] = round(self.heated, 3)
            if least < HEATED_SECONDS:
                beside += HEATED_SECONDS - least
                least = HEATED_SECONDS
        times = self.repeater.isolated(operation, MAMF_WARMUP, MAMF_REPEATS, least)
        self._write(name, times, 1, measured, MAMF_REPEATS)
        return None, beside

    def _finalists(self, measurement: Measurement, seconds: float) -> tuple[list[Ready], int, str | None]:
        """The first candidate and the fastest other one, how many were tried, and why the last one that failed did.

        A device that was idle is fast for a moment, until its power is limited: the two are measured to the end.
        """
        first: Ready | None = None
        fastest_other: Ready | None = None
        start, tried, reason = now(), 0, None
        for operation in measurement.candidates:
            if tried and not all(self.repeater.all_gather(now() - start < seconds * SEARCH_SHARE)):
                break
            ready, why = self._prepare(operation, seconds)
            reason = why or reason
            if ready is None:
                continue
            tried += 1
            if first is None:
                first = ready
            elif fastest_other is None or _speed(operation, ready.seconds) > _speed(
                fastest_other.operation, fastest_other.seconds
            ):
                fastest_other = ready
        return [candidate for candidate in (first, fastest_other) if candidate is not None], tried, reason

    def _prepare(self, operation: Operation, seconds: float) -> tuple[Ready | None, str | None]:
        """An operation that can be repeated on all ranks within `seconds`, or why it cannot."""
        if operation.probe is not None:
            small, why = self._prepare(operation.probe, seconds)
            if small is None:
                return None, why
            expected = amount(operation.measured) / _speed(small.operation, small.seconds)
            if expected > seconds / 2:
                return None, _too_long(expected)
        start, why = self._attempt(operation.prepare)
        if start is None:
            return None, why
        first, why = self._attempt(lambda: self.repeater.once(start))
        if first is None:
            return None, why
        first = max(self.repeater.all_gather(first))
        if first > seconds / 2:
            return None, _too_long(first)
        return Ready(operation, start, self.repeater.pace(start)), None

    def _attempt(self, run: Callable[[], Any]) -> tuple[Any, str | None]:
        """What a function returns on this rank, if it raised an error on none; else None and the first error."""
        outcome, why = None, None
        try:
            outcome = run()
        except (RuntimeError, TypeError, ValueError) as error:  # what torch raises for an operation that it lacks
            why = (str(error).strip().split("\n")[0] or type(error).__name__)[:200]
        for reason in self.repeater.all_gather(why):
            if reason:
                return None, reason
        return outcome, None

    def _write(self, name: str, times: list[Times], operations: int, measured: dict[str, Any], keep: int) -> None:
        """Write the last `keep` repeats as steps, and which operation they measure."""
        times = times[-keep:]
        written = total = 0.0
        for times_of_repeat in times:
            total += times_of_repeat.device
            # In whole microseconds, as the evidence has it; what is left of one repeat counts in the next.
            device = round(total - written, 6)
            written += device
            self.spool.step(repeat(operations, device, times_of_repeat.host, times_of_repeat.after))
        seconds = sum(times_of_repeat.host + times_of_repeat.after for times_of_repeat in times)
        self.spool.fact(
            "pass", name=name, first_step=self.steps, steps=len(times), seconds=seconds, measured=measured
        )
        self.steps += len(times)


class RoofsLoop(MeasureLoop):
    """Measures some of the roofs before the steps of another case, among which the repeats are not counted."""

    def _write(self, name: str, times: list[Times], operations: int, measured: dict[str, Any], keep: int) -> None:
        """Write the last `keep` repeats as one fact."""
        self.spool.fact("roof", name=name, operations=operations, times=times[-keep:], measured=measured)


def _too_long(seconds: float) -> str:
    return f"it takes {seconds:.2g} s, too long for its share of the time"


def _speed(operation: Operation, seconds: float) -> float:
    """FLOP/s or B/s of an operation that takes `seconds`."""
    return amount(operation.measured) / max(seconds, 1e-9)
