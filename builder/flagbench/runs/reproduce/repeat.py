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
    """What is to be reproduced, how, and what was found before."""

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
        elsewhere = any(f.name == DEVICE and f.level is Level.WARN for f in self.findings)
        if elsewhere or not self.plan.comparable:
            return (Verdict.NOT_COMPARABLE,)
        return (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.BELOW, Verdict.INCONCLUSIVE)

    @property
    def facts(self) -> dict[str, Any]:
        """What every document about it says."""
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
    """What was measured."""

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
        return {
            "ending": self.ending,
            "seconds": round(self.clock.seconds, 3),
            "cost": None if cost is None else round(cost, 4),
        }


def run_all(side: Side, asked: Reproduction, store: Store) -> Measured:
    """Run until it is decided; every run is stored, and so is the series, in which the looks are written beforehand.

    Raises FlagbenchError where the first run could not be started.
    """
    plan, limits = asked.plan, asked.limits
    writer = side.writer
    assert writer is not None  # this is node 0
    named_by = "flagbench" if plan.name is None else "user"
    writer.series = replace(writer.series, looks=limits.looks, nonce_by=named_by)
    clock, case = ReproductionClock(limits), plan.request.case
    ending: Ending = "all runs"

    def run(target: Target) -> Finished:
        before = clock.seconds
        ended = run_and_keep(target.asked(max_minutes=clock.left), store)
        clock.longest = max(clock.longest, clock.seconds - before)
        return ended

    def until(code: int) -> bool:
        nonlocal ending
        count = sum(run.state == "ok" for run in writer.series.runs)
        label = f"flagbench: run {count} of at most {limits.looks[-1]}"
        if code:
            ending = "failed"
            return True
        if count in limits.looks and side.series is not None:
            _, result = series_verdict(side.series, plan.claim, case)
            print_note(f"{label}: {result.verdict.value} so far, {clock.text}")
            if is_decided(result):
                ending = "decided"
                return True
        else:
            print_note(f"{label}: no look at the verdict is due, {clock.text}")
        if count < limits.looks[-1] and not clock.allows_another:
            ending = "time"
            return True
        return False

    try:
        code = run_sides([side], run, until=until)
    except KeyboardInterrupt:  # while something was stored; what was measured before is there
        if not side.contents:
            raise
        code = int(ExitCode.INTERRUPTED)
    if code == ExitCode.TIMEOUT and clock.left == 0 and any(each.state == "ok" for each in writer.series.runs):
        # The limit of all runs has ended the last one: the verdict is that of those before.
        code, ending = int(ExitCode.OK), "time"
    elif code == ExitCode.INTERRUPTED:
        ending = "interrupted"
    elif code not in (ExitCode.OK, ExitCode.NOT_STORED):
        ending = "failed"
    series = side.series
    records: list[Record] = []
    result: VerifyResult | None = None
    if series is not None:
        try:
            records, result = series_verdict(series, plan.claim, case)
        except FlagbenchError as error:
            print_note(f"flagbench: there is nothing to bundle: {error.message}")
            series = None
    return Measured(code, ending, series, records, result, side.contents, clock)
