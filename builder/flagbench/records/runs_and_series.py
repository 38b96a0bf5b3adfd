"""The runs that a verdict is about: records, and the series that some of them belong to.

`named` finds the runs that a command names; `verdict` verifies their records and reports on their series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.records.series import LeftOut, Series
from flagbench_core.exit_codes import ExitCode


class SeriesSummary(Struct, frozen=True):
    """What a verdict states about a series: how many of its runs count, and how their seeds were chosen."""

    series_id: str
    side: Literal["runs", "baseline"]
    """Whether its runs are verified, or are the baseline that others are compared with."""
    name: str
    """The name of the series; two interleaved series have the same name."""
    named_by: str
    """Who chose the name: `user`, or `flagbench` at random."""
    seeds: str
    """How the seeds were chosen: `derived` from the name, or `given`."""
    requested: int
    """The number of runs that were requested."""
    held: int
    """The number of runs that ended well and have a record."""
    left_out: tuple[LeftOut, ...] = ()
    """The runs that are not in the sample, each with the reason."""
    problems: tuple[str, ...] = ()
    """Where the series contradicts itself or its records."""
    looks: tuple[int, ...] = ()
    """The numbers of runs after which it could end because its verdict was decided; empty for a fixed number."""

    @property
    def text(self) -> str:
        """The summary in one line: how many runs count, which do not and why, and how the seeds were chosen."""
        if self.seeds == "given":
            seeds = "the seed was given"
        elif self.named_by == "user":
            seeds = f"seeds derived from the name {self.name}"
        else:
            seeds = f"seeds derived from the random name {self.name}"
        count = f"{self.held} of {self.requested} runs"
        if self.held == self.requested and not self.left_out:
            count = f"all {self.requested} runs"
        if self.looks:
            count += f", looked at after {', '.join(map(str, self.looks))}"
        if self.left_out:
            count += f", {len(self.left_out)} left out ({_reasons_text(self.left_out)})"
        return f"series {self.series_id}: {count}; {seeds}"


def _reasons_text(left_out: Sequence[LeftOut]) -> str:
    """Return why runs are left out, such as `runs 2 to 4: failed, exit code 5; run 7: interrupted`.

    Consecutive runs with the same reason are named together.
    """
    groups: list[list[LeftOut]] = []
    for run in left_out:
        if groups and _continues(groups[-1], run):
            groups[-1].append(run)
        else:
            groups.append([run])
    reasons = []
    for group in groups:
        numbers = f"run {group[0].run}"
        if len(group) > 1:
            numbers = f"runs {group[0].run} to {group[-1].run}"
        reasons.append(f"{numbers}: {group[0].reason}")
    return "; ".join(reasons)


def _continues(group: Sequence[LeftOut], run: LeftOut) -> bool:
    """Return whether a run follows the last one of a group and has the same reason."""
    last = group[-1]
    return run.run == last.run + 1 and run.reason == last.reason


@dataclass
class Runs:
    """Records, and the series that some of them belong to."""

    records: list[Record] = field(default_factory=list)
    """All records, those of the series included; a series has here only runs that ended well."""
    series: list[Series] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Where the series contradict themselves or their records: series with problems prove nothing."""
        problems = []
        for series in self.series:
            problems += [f"series {series.document.series_id}: {problem}" for problem in series.problems]
        return problems

    @property
    def own_seeds(self) -> bool:
        """Whether there is a series in which each run has another seed, derived from the series' name."""
        return any(series.document.seeds == "derived" for series in self.series)

    def to_verify(self) -> list[Record]:
        """Return the records to verify.

        If no run ended well, they are those of failed runs, so that the verdict says how they ended. If a series has
        problems, it is only the first record, because the runs of such a series need not be alike. Its verdict is
        INVALID anyway.

        Raises FlagbenchError (DATA) if no run has a record.
        """
        records = self.records
        if not records:
            records = []
            for series in self.series:
                records += series.failed
        if self.problems:
            return records[:1]
        if not records:
            reasons = "; ".join(_reasons_text(series.left_out) for series in self.series)
            raise FlagbenchError(
                f"no run of the series can be verified: {reasons}",
                remedy="run it again, or name the store that has its records with --store",
                code=ExitCode.DATA,
            )
        return records

    def summaries(self, side: Literal["runs", "baseline"]) -> list[SeriesSummary]:
        """Return what a verdict states about each series; `side` says whether the runs are verified."""
        return [_summarise(series, side) for series in self.series]


def _summarise(series: Series, side: Literal["runs", "baseline"]) -> SeriesSummary:
    document = series.document
    return SeriesSummary(
        series_id=document.series_id,
        side=side,
        name=document.nonce,
        named_by=document.nonce_by,
        seeds=document.seeds,
        requested=document.requested,
        held=len(series.records),
        left_out=series.left_out,
        problems=series.problems,
        looks=document.looks or (),
    )
