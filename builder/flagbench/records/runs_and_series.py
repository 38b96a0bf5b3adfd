"""The runs that a verdict is about: records, and the series that some of them belong to."""

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
    """A series in a verdict: of the runs that are verified, or of the baseline."""

    series_id: str
    side: Literal["runs", "baseline"]
    name: str
    """Of the series; two interleaved series have the same."""
    named_by: str
    """`user`, or `flagbench`, which chooses a random name."""
    seeds: str
    """`derived` from the name, or `given`."""
    requested: int
    held: int
    """The number of runs that ended well and have a record."""
    left_out: tuple[LeftOut, ...] = ()
    problems: tuple[str, ...] = ()
    """Where it contradicts itself or its records."""
    looks: tuple[int, ...] = ()
    """The numbers of runs after which it could end because its verdict was decided; none for a fixed number."""

    @property
    def text(self) -> str:
        """One line: how many runs count, and which do not, and why."""
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
            count += f", {len(self.left_out)} left out ({_reasons(self.left_out)})"
        return f"series {self.series_id}: {count}; {seeds}"


def _reasons(left_out: Sequence[LeftOut]) -> str:
    """Why runs are left out; consecutive runs with the same reason are named together."""
    groups: list[list[LeftOut]] = []
    for run in left_out:
        previous = groups[-1][-1] if groups else None
        if previous is not None and run.reason == previous.reason and run.run == previous.run + 1:
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


@dataclass
class Runs:
    """Records, and the series that some of them belong to."""

    records: list[Record] = field(default_factory=list)
    """Those of a series are of runs that ended well."""
    series: list[Series] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What makes the series worthless as evidence."""
        problems = []
        for series in self.series:
            problems += [f"series {series.document.series_id}: {problem}" for problem in series.problems]
        return problems

    @property
    def own_seeds(self) -> bool:
        """Whether runs have seeds of their own, derived from a name."""
        return any(series.document.seeds == "derived" for series in self.series)

    def to_verify(self) -> list[Record]:
        """The records to verify: those of failed runs if no run ended well, so that the verdict says how they ended.

        At most one of a series with problems, since its runs need not be alike: such a series gets a verdict, too.
        Raises FlagbenchError (data) if no run has a record.
        """
        records = self.records
        if not records:
            records = []
            for series in self.series:
                records += series.failed
        if self.problems:
            return records[:1]
        if not records:
            reasons = "; ".join(_reasons(series.left_out) for series in self.series)
            raise FlagbenchError(
                f"no run of the series can be verified: {reasons}",
                remedy="run it again, or name the store that has its records with --store",
                code=ExitCode.DATA,
            )
        return records

    def summaries(self, side: Literal["runs", "baseline"]) -> list[SeriesSummary]:
        """Each series as a verdict names it."""
        return [_summary(series, side) for series in self.series]


def _summary(series: Series, side: Literal["runs", "baseline"]) -> SeriesSummary:
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
