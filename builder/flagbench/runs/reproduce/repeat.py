"""Repeats the run of a reproduction until the verdict is decided, a run fails, or a limit is reached.

The verdict is only computed at looks: after numbers of runs that are fixed before the first run. `run_all` makes the
runs for `flagbench reproduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from msgspec.structs import replace

from flagbench.console.output import print_note
from flagbench.errors import FlagbenchError
from flagbench.machine.diagnosis import Diagnosis, Level
from flagbench.records.model import Record
from flagbench.records.series import Series
from flagbench.records.store import Store
from flagbench.runs.keep import Finished, run_and_keep
from flagbench.runs.reproduce.budget import LimitOptions, ReproductionClock
from flagbench.runs.reproduce.plan import ReproductionPlan
from flagbench.runs.reproduce.preflight import DEVICE
from flagbench.runs.series import Side, run_sides
from flagbench.runs.target import Target
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict.series import is_decided, series_verdict
from flagbench_core.exit_codes import ExitCode

Ending = Literal["decided", "all runs", "time", "failed", "interrupted"]
"""The reason why no more runs were made, as the documents of a reproduction state it."""


@dataclass(frozen=True)
class Reproduction:
    """The plan of a reproduction, its limits, and the findings of preflight."""

    plan: ReproductionPlan
    limits: LimitOptions
    target: Target
    command: Sequence[str]
    """The words of the command line."""
    findings: Sequence[Diagnosis]

    @property
    def forbidden(self) -> list[Diagnosis]:
        """The findings that forbid a run."""
        return [finding for finding in self.findings if finding.level is Level.FAIL]

    @property
    def possible(self) -> tuple[Verdict, ...]:
        """The verdicts that are possible, as far as is known before anything runs.

        INVALID is always possible too, and is left out.
        """
        if not self.plan.comparable:
            return (Verdict.NOT_COMPARABLE,)
        for finding in self.findings:
            if finding.name == DEVICE and finding.level is Level.WARN:
                return (Verdict.NOT_COMPARABLE,)
        return (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.BELOW, Verdict.INCONCLUSIVE)

    @property
    def facts(self) -> dict[str, Any]:
        """The plan and the findings as fields that all JSON documents about the reproduction have."""
        return {
            "claim": self.plan.claim.id,
            "via": self.target.via,
            "image": self.target.image,
            "differs": list(self.plan.differs),
            "unpublished": list(self.plan.unpublished),
            "preflight": [asdict(finding) for finding in self.findings],
        }


@dataclass(frozen=True)
class ReproductionOutcome:
    """The outcome of all runs."""

    code: int
    """The exit code: 0, that of the run that failed, 7 if they were interrupted, 14 if something was not stored."""
    ending: Ending
    series: Series | None
    """The series of the runs; None if nothing was measured."""
    records: list[Record]
    """The records that the verdict is computed from."""
    result: VerifyResult | None
    """The verdict; None if nothing was measured."""
    contents: dict[int, bytes]
    """The JSON of each run's record by the run's number."""
    clock: ReproductionClock

    @property
    def facts(self) -> dict[str, Any]:
        """The reason why the runs ended, their seconds and their cost, as fields of a JSON document."""
        cost = self.clock.cost
        if cost is not None:
            cost = round(cost, 4)
        return {"ending": self.ending, "seconds": round(self.clock.seconds, 3), "cost": cost}


class _Repetition:
    """The state of the runs of a reproduction while they are made within its limits."""

    def __init__(self, side: Side, reproduction: Reproduction, store: Store) -> None:
        assert side.writer is not None  # this is node 0
        self.side = side
        self.writer = side.writer
        self.claim = reproduction.plan.claim
        self.case = reproduction.plan.request.case
        self.limits = reproduction.limits
        self.store = store
        self.clock = ReproductionClock(reproduction.limits)
        self.ending: Ending = "all runs"
        """The reason why no more runs are made; `stop_after` and `conclude` change it."""

    @property
    def count(self) -> int:
        """The number of runs so far that ended well."""
        return sum(run.state == "ok" for run in self.writer.series.runs)

    def run(self, target: Target) -> Finished:
        """Run once, within the time that is left, and note how long it took."""
        before = self.clock.seconds
        finished = run_and_keep(target.with_options(max_minutes=self.clock.left), self.store)
        self.clock.longest = max(self.clock.longest, self.clock.seconds - before)
        return finished

    def stop_after(self, code: int) -> bool:
        """Decide whether the run that ended with this exit code is the last one. If it is, `ending` says why."""
        if code:
            self.ending = "failed"
            return True
        if self._look_at_verdict():
            self.ending = "decided"
            return True
        if self.count < self.limits.looks[-1] and not self.clock.allows_another:
            self.ending = "time"
            return True
        return False

    def _look_at_verdict(self) -> bool:
        """Compute and print the verdict if a look is due after this number of runs. Returns whether it is decided."""
        count = self.count
        label = f"flagbench: run {count} of at most {self.limits.looks[-1]}"
        series = self.side.series
        if count not in self.limits.looks or series is None:
            print_note(f"{label}: no look at the verdict is due, {self.clock.text}")
            return False
        _, result = series_verdict(series, self.claim, self.case)
        print_note(f"{label}: {result.verdict.value} so far, {self.clock.text}")
        return is_decided(result)

    def conclude(self, code: int) -> int:
        """Set `ending` after all runs and return their exit code. `code`: that of `run_sides`."""
        limit_ended_run = code == ExitCode.TIMEOUT and self.clock.left == 0
        if limit_ended_run and self.count > 0:
            # The limit of all runs has ended the last one. That is no failure: the earlier runs have a verdict.
            self.ending = "time"
            return int(ExitCode.OK)
        if code == ExitCode.INTERRUPTED:
            self.ending = "interrupted"
        elif code not in (ExitCode.OK, ExitCode.NOT_STORED):
            self.ending = "failed"
        return code


def run_all(side: Side, reproduction: Reproduction, store: Store) -> ReproductionOutcome:
    """Repeat the run until the verdict is decided, or a limit is reached. Every run and the series are stored.

    The looks are written into the series before the first run, so that a reader can check that they were fixed.
    Raises FlagbenchError if the first run cannot be started.
    """
    repetition = _Repetition(side, reproduction, store)
    named_by = "user"
    if reproduction.plan.name is None:
        named_by = "flagbench"
    writer = repetition.writer
    writer.series = replace(writer.series, looks=reproduction.limits.looks, nonce_by=named_by)
    try:
        code = run_sides([side], repetition.run, until=repetition.stop_after)
    except KeyboardInterrupt:  # it came while something was stored, and earlier runs are kept
        if not side.contents:
            raise
        code = int(ExitCode.INTERRUPTED)
    code = repetition.conclude(code)  # first, because it sets `ending`
    series = side.series
    records: list[Record] = []
    result: VerifyResult | None = None
    if series is not None:
        try:
            records, result = series_verdict(series, repetition.claim, repetition.case)
        except FlagbenchError as error:
            print_note(f"flagbench: there is nothing to bundle: {error.message}")
            series = None
    return ReproductionOutcome(code, repetition.ending, series, records, result, side.contents, repetition.clock)
