"""The loop of a case that measures the device without a model, such as `roofs`: runs a MeasureWorkload.

rank/run.py creates the loop. A measurement names one operation, such as a matrix multiplication of a size, or several
candidates of which the fastest is wanted. The loop repeats the operation; each repeat is a step in the spool.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch

from flagbench_cases.contract import Isolated, Measurement, MeasureWorkload, Operation
from flagbench_cases.rank.repeats import MIN_SECONDS, Repeater, Times
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.spool import RankSpool, repeat
from flagbench_core.evidence.roofs import HEATED_SECONDS, MAMF_REPEATS, MAMF_WARMUP, amount
from flagbench_core.stats.summary import median

FULL_REPEATS = 100
"""The number of repeats of a measurement with a published number of iterations: enough for a confidence interval of
their mean."""
SEARCH_SHARE = 0.5
"""The share of a measurement's time used to find the fastest of its candidates. The other half measures it."""
MIN_REMAINING_SECONDS = 0.1
"""Seconds that the remaining measurements share if earlier ones have used up the time."""
MAX_REASON_LENGTH = 200
"""Most characters of an error that become the reason why an operation was not measured: two lines of a terminal."""


class MeasurePlan(NamedTuple):
    """How long to measure."""

    repeats: int
    """The number of repeats of each measurement that are kept at most."""
    seconds: float
    """The time that all measurements take together, approximately."""
    iterations: Mapping[str, int] = {}
    """The published number of operations by name of a measurement. They are made in full, however long they take."""
    names: Sequence[str] = ()
    """Names of the measurements to make; empty: all."""
    heat_seconds: float = 0.0
    """Seconds of matrix multiplications that heat the device before the first isolated operation. If not 0, each
    isolated operation is repeated for at least HEATED_SECONDS. Both are in addition to `seconds`."""
    fill_share: bool = False
    """Whether a measurement takes all of its share of the seconds, even if its repeats are steady before."""


class PreparedOperation(NamedTuple):
    """An operation that can be repeated."""

    operation: Operation
    start: Callable[[], Any]
    """Starts the operation once."""
    seconds: float
    """Seconds of one operation on the slowest rank."""

    @property
    def speed(self) -> float:
        """FLOP/s or B/s of the operation."""
        return _speed_of(self.operation, self.seconds)


class Finalists(NamedTuple):
    """The candidates of a measurement that are measured until they are steady."""

    operations: list[PreparedOperation]
    """The first candidate and the fastest later one, if there is one; empty if no candidate can be measured."""
    tried: int
    """The number of candidates that could be measured."""
    reason: str | None
    """Why a candidate cannot be measured, the last such candidate; None if all can be."""


class MeasuredCandidate(NamedTuple):
    """A finalist and its repeats."""

    candidate: PreparedOperation
    times: list[Times]
    speed: float
    """FLOP/s or B/s of the slowest rank in these repeats."""


class MeasurementEnd(NamedTuple):
    """How a measurement ended."""

    absent_reason: str | None
    """Why the measurement could not be made; None if it was made."""
    extra_seconds: float
    """The seconds that it took and that do not count as its share."""


class NotMeasurableError(Exception):
    """An operation cannot be measured. Raised on all ranks together."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MeasureLoop:
    """Measures on one rank, in step with the other ranks, and writes the repeats to the spool."""

    def __init__(self, workload: MeasureWorkload, plan: MeasurePlan, spool: RankSpool, repeater: Repeater) -> None:
        self.measurements = list(workload.measurements())
        if plan.names:
            self.measurements = [measurement for measurement in self.measurements if measurement.name in plan.names]
        self.plan = plan
        self.spool = spool
        self.repeater = repeater
        self.steps = 0
        self.heated_seconds: float | None = None
        """The seconds for which the device was heated; None before it is."""

    @property
    def capacity(self) -> int:
        """The maximum number of steps that the spool must hold."""
        return len(self.measurements) * max(self.plan.repeats, FULL_REPEATS, MAMF_REPEATS)

    def run(self) -> dict[str, Any]:
        """Make all measurements. Returns their duration as `measure`, seconds."""
        self.spool.phase("measure", self.capacity, of_steps=False)
        start = now()
        with torch.no_grad():
            self._measure_all(self.measurements)
        return {"measure": now() - start}

    def _measure_all(self, measurements: Sequence[Measurement]) -> None:
        """Make measurements in about as many seconds as the plan says, each in an equal share of what remains."""
        count = len(measurements)
        end = now() + self.plan.seconds
        for index, measurement in enumerate(measurements):
            remaining = max(end - now(), MIN_REMAINING_SECONDS)
            share_on_rank = remaining / (count - index)
            # The share is the same on all ranks: the number of repeats that each of them makes depends on it.
            share = max(self.repeater.all_gather(share_on_rank))
            measurement_end = self._measure(measurement, share)
            if measurement_end.absent_reason is not None:
                self._note_absent(measurement.name, measurement_end.absent_reason)
            self._show_progress(index + 1, count)
            end += measurement_end.extra_seconds

    def _note_absent(self, name: str, reason: str) -> None:
        """Write why a measurement could not be made."""
        if self.spool.rank == 0:
            self.spool.fact("absent", name=name, reason=reason)

    def _show_progress(self, done: int, count: int) -> None:
        """Write how many of the measurements are done."""
        self.spool.progress(done * self.capacity // count, self.capacity)

    def _measure(self, measurement: Measurement, seconds: float) -> MeasurementEnd:
        """Make one measurement in about `seconds`, in the way that fits its operation and the plan."""
        start = now()
        finalists = self._find_finalists(measurement, seconds)
        if not finalists.operations:
            return MeasurementEnd(finalists.reason, 0.0)
        first = finalists.operations[0]
        if isinstance(first.start, Isolated):
            return self._measure_isolated(measurement.name, first, first.start, seconds)
        iterations = self.plan.iterations.get(measurement.name)
        if iterations is not None:
            self._measure_iterations(measurement.name, first, iterations)
            return MeasurementEnd(None, now() - start)
        limit = max(seconds - (now() - start), seconds * (1 - SEARCH_SHARE))
        self._measure_fastest(measurement, finalists, limit)
        return MeasurementEnd(None, 0.0)

    def _measure_iterations(self, name: str, prepared: PreparedOperation, iterations: int) -> None:
        """Make the published number of iterations, in FULL_REPEATS repeats, however long they take.

        The remainder of the division by FULL_REPEATS is dropped: repeats of different lengths cannot be compared.
        """
        operations = max(1, iterations // FULL_REPEATS)
        times = self.repeater.repeat_in_full(prepared.start, operations, FULL_REPEATS)
        self._write(name, times, operations, prepared.operation.measured, FULL_REPEATS)

    def _measure_fastest(self, measurement: Measurement, finalists: Finalists, limit: float) -> None:
        """Repeat each finalist until it is steady, and write the repeats of the fastest.

        Each of two finalists may take the whole `limit`, so that the measurement may exceed its share of the seconds.
        The share is a target: later measurements share what is left.
        """
        keep = self.plan.repeats
        fastest: MeasuredCandidate | None = None
        for candidate in finalists.operations:
            times = self.repeater.repeat_until_steady(
                candidate.start,
                candidate.seconds,
                limit,
                keep,
                warmup=keep,
                stop_when_steady=not self.plan.fill_share,
            )
            repeat_seconds = median([times_of_repeat.device for times_of_repeat in times])
            operation_seconds = repeat_seconds / self.repeater.operations_per_repeat(candidate.seconds)
            slowest_seconds = max(self.repeater.all_gather(operation_seconds))
            speed = _speed_of(candidate.operation, slowest_seconds)
            if fastest is None or speed > fastest.speed:
                fastest = MeasuredCandidate(candidate, times, speed)
        assert fastest is not None, "there is at least one finalist"
        measured = dict(fastest.candidate.operation.measured)
        if len(measurement.candidates) > 1:
            measured["tried"] = finalists.tried
        operations = self.repeater.operations_per_repeat(fastest.candidate.seconds)
        self._write(measurement.name, fastest.times, operations, measured, keep)

    def _measure_isolated(
        self, name: str, prepared: PreparedOperation, operation: Isolated, seconds: float
    ) -> MeasurementEnd:
        """Measure an operation that is timed alone, in `seconds`, on a heated device if the plan says so.

        MAMF_REPEATS and MAMF_WARMUP are those of the published MAMF measurements (maximum achievable matmul FLOPS).
        """
        expected = prepared.seconds * (MAMF_WARMUP + MAMF_REPEATS)
        if expected > seconds:
            return MeasurementEnd(_too_long(expected), 0.0)
        measured = dict(prepared.operation.measured)
        min_seconds = 0.0
        if self.plan.fill_share:
            min_seconds = seconds
        extra_seconds = 0.0
        if self.plan.heat_seconds:
            if self.heated_seconds is None:
                self.heated_seconds = self.repeater.heat(operation.run, prepared.seconds, self.plan.heat_seconds)
                extra_seconds += self.heated_seconds
            measured["heated_seconds"] = round(self.heated_seconds, 3)
            if min_seconds < HEATED_SECONDS:
                extra_seconds += HEATED_SECONDS - min_seconds
                min_seconds = HEATED_SECONDS
        times = self.repeater.repeat_isolated(operation, MAMF_WARMUP, MAMF_REPEATS, min_seconds)
        self._write(name, times, 1, measured, MAMF_REPEATS)
        return MeasurementEnd(None, extra_seconds)

    def _find_finalists(self, measurement: Measurement, seconds: float) -> Finalists:
        """Try the candidates for SEARCH_SHARE of `seconds`, at least the first one.

        There are two finalists because an idle device is fast until its power is limited: the first candidate, which
        is tried on a cool device, may only look fastest.
        """
        first: PreparedOperation | None = None
        fastest_later: PreparedOperation | None = None
        start = now()
        tried = 0
        reason: str | None = None
        for operation in measurement.candidates:
            if tried:
                has_time = now() - start < seconds * SEARCH_SHARE
                if not all(self.repeater.all_gather(has_time)):
                    break
            try:
                prepared = self._prepare(operation, seconds)
            except NotMeasurableError as error:
                reason = error.reason
                continue
            tried += 1
            if first is None:
                first = prepared
            elif fastest_later is None or prepared.speed > fastest_later.speed:
                fastest_later = prepared
        operations = []
        if first is not None:
            operations.append(first)
        if fastest_later is not None:
            operations.append(fastest_later)
        return Finalists(operations, tried, reason)

    def _prepare(self, operation: Operation, seconds: float) -> PreparedOperation:
        """Prepare an operation on all ranks. Raises NotMeasurableError if it fails or takes over half of `seconds`.

        If it has a trial, a small operation of the same kind, its time is estimated first, so that a slow device does
        not spend minutes on an operation that is then left out.
        """
        if operation.trial is not None:
            trial = self._prepare(operation.trial, seconds)
            expected = amount(operation.measured) / trial.speed
            if expected > seconds / 2:
                raise NotMeasurableError(_too_long(expected))
        start = self._run_on_all_ranks(operation.prepare)
        seconds_on_rank = self._run_on_all_ranks(lambda: self.repeater.time_once(start))
        first_seconds = max(self.repeater.all_gather(seconds_on_rank))
        if first_seconds > seconds / 2:
            raise NotMeasurableError(_too_long(first_seconds))
        return PreparedOperation(operation, start, self.repeater.time_operation(start))

    def _run_on_all_ranks(self, function: Callable[[], Any]) -> Any:
        """Call `function` on every rank. Returns its value on this rank.

        Raises NotMeasurableError if it fails on any rank.
        """
        value = None
        reason = None
        try:
            value = function()
        except (RuntimeError, TypeError, ValueError) as error:  # torch raises these for an operation that it lacks
            first_line = str(error).strip().split("\n")[0]
            reason = (first_line or type(error).__name__)[:MAX_REASON_LENGTH]
        for reason_of_rank in self.repeater.all_gather(reason):
            if reason_of_rank:
                raise NotMeasurableError(reason_of_rank)
        return value

    def _write(self, name: str, times: list[Times], operations: int, measured: dict[str, Any], keep: int) -> None:
        """Write the last `keep` repeats as steps, and as the fact `pass` which operation they measure.

        Args:
            name: the measurement.
            times: of each repeat.
            operations: the number of operations in a repeat.
            measured: the kind and sizes of the operation; see `Operation.measured`.
            keep: the number of repeats to write at most.
        """
        times = times[-keep:]
        total = 0.0
        written = 0.0
        for times_of_repeat in times:
            total += times_of_repeat.device
            # The record's evidence has whole microseconds. What rounding cuts off one repeat is added to the next.
            device = round(total - written, 6)
            written += device
            self.spool.step(repeat(operations, device, times_of_repeat.host, times_of_repeat.after))
        seconds = sum(times_of_repeat.host + times_of_repeat.after for times_of_repeat in times)
        self.spool.fact(
            "pass", name=name, first_step=self.steps, steps=len(times), seconds=seconds, measured=measured
        )
        self.steps += len(times)


class RoofsLoop(MeasureLoop):
    """Measures some of the roofs, the rates that a device reaches without a model, before the steps of another case.

    The repeats do not count as steps.
    """

    def _write(self, name: str, times: list[Times], operations: int, measured: dict[str, Any], keep: int) -> None:
        """Write the last `keep` repeats as the fact `roof`."""
        self.spool.fact("roof", name=name, operations=operations, times=times[-keep:], measured=measured)


def _too_long(seconds: float) -> str:
    """The reason why an operation that takes `seconds` is not measured."""
    return f"it takes {seconds:.2g} s, too long for its share of the time"


def _speed_of(operation: Operation, seconds: float) -> float:
    """FLOP/s or B/s of an operation that takes `seconds`."""
    return amount(operation.measured) / max(seconds, MIN_SECONDS)
