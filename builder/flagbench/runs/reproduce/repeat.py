"""The runs of a reproduction: repeated until the verdict is decided at a look, a run fails, or a limit is reached."""

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
        """The verdicts that are possible, as far as is known before anything runs; INVALID always is."""
        if not self.plan.comparable:
            return (Verdict.NOT_COMPARABLE,)
        for finding in self.findings:
            if finding.name == DEVICE and finding.level is Level.WARN:
                return (Verdict.NOT_COMPARABLE,)
        return (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.BELOW, Verdict.INCONCLUSIVE)

    @property
    def facts(self) -> dict[str, Any]:
        """The fields that all documents about the reproduction have."""
        return {
            "claim": self.plan.claim.id,
            "via": self.target.via,
            "image": self.target.image,
            "differs": list(self.plan.differs),
            "unpublished": list(self.plan.unpublished),
            "preflight": [asdict(finding) for finding in self.findings],
        }


@dataclass
class Measured:
    """The outcome of all runs."""

    code: int
    """0, or that of the run that did not end well; 7 where it was interrupted, 14 where something was not stored."""
    ending: Ending
    series: Series | None
    """None where nothing was measured."""
    records: list[Record]
    """Those that the verdict is on."""
    result: VerifyResult | None
    contents: dict[int, bytes]
    """The record of each run."""
    clock: ReproductionClock

    @property
    def facts(self) -> dict[str, Any]:
        """How it ended, and what it took."""
        cost = self.clock.cost
        if cost is not None:
            cost = round(cost, 4)
        return {"ending": self.ending, "seconds": round(self.clock.seconds, 3), "cost": cost}


class _Repetition:
    """The runs of a reproduction: each within the limits, until no other one is due."""

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

    @property
    def count(self) -> int:
        """The runs so far that ended well."""
        return sum(run.state == "ok" for run in self.writer.series.runs)

    def run(self, target: Target) -> Finished:
        """Run once, within the time that is left."""
        before = self.clock.seconds
        finished = run_and_keep(target.with_options(max_minutes=self.clock.left), self.store)
        self.clock.longest = max(self.clock.longest, self.clock.seconds - before)
        return finished

    def is_over(self, code: int) -> bool:
        """Whether no other run is due after one that ended with this exit code; `ending` says why."""
        if code:
            self.ending = "failed"
            return True
        if self._look_decides():
            self.ending = "decided"
            return True
        if self.count < self.limits.looks[-1] and not self.clock.allows_another:
            self.ending = "time"
            return True
        return False

    def _look_decides(self) -> bool:
        """Look at the verdict where a look is due after so many runs, and say so: whether it is decided."""
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
        """The exit code of all runs, from that of `run_sides`; `ending` says how they ended."""
        if code == ExitCode.TIMEOUT and self.clock.left == 0 and self.count > 0:
            # The limit of all runs has ended the last one: the verdict is that of those before.
            self.ending = "time"
            return int(ExitCode.OK)
        if code == ExitCode.INTERRUPTED:
            self.ending = "interrupted"
        elif code not in (ExitCode.OK, ExitCode.NOT_STORED):
            self.ending = "failed"
        return code


def run_all(side: Side, reproduction: Reproduction, store: Store) -> Measured:
    """Run until it is decided; every run is stored, and so is the series, in which the looks are written beforehand.

    Raises FlagbenchError where the first run could not be started.
    """
    repetition = _Repetition(side, reproduction, store)
    named_by = "user"
    if reproduction.plan.name is None:
        named_by = "flagbench"
    writer = repetition.writer
    writer.series = replace(writer.series, looks=reproduction.limits.looks, nonce_by=named_by)
    try:
        code = run_sides([side], repetition.run, until=repetition.is_over)
    except KeyboardInterrupt:  # while something was stored; what was measured before is there
        if not side.contents:
            raise
        code = int(ExitCode.INTERRUPTED)
    code = repetition.conclude(code)
    series = side.series
    records: list[Record] = []
    result: VerifyResult | None = None
    if series is not None:
        try:
            records, result = series_verdict(series, repetition.claim, repetition.case)
        except FlagbenchError as error:
            print_note(f"flagbench: there is nothing to bundle: {error.message}")
            series = None
    return Measured(code, repetition.ending, series, records, result, side.contents, repetition.clock)
