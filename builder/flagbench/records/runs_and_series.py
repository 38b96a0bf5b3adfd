"""The runs that a verdict is on: records, with the series that some of them are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from msgspec import Struct

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.records.series import LeftOut, Series
from flagbench_core.exit_codes import ExitCode


class SeriesSummary(Struct, frozen=True):
    """A series whose runs were held, or are the baseline."""

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
    left_out: tuple[LeftOut, ...] = ()
    problems: tuple[str, ...] = ()
    """Where it contradicts itself or its records."""
    looks: tuple[int, ...] = ()
    """The numbers of runs after which it could end because its verdict was decided; none for a fixed number."""

    @property
    def text(self) -> str:
        """One line: how many runs count, and which do not, and why."""
        left = f", {len(self.left_out)} left out ({_reasons(self.left_out)})" if self.left_out else ""
        if self.seeds == "given":
            seeds = "the seed was given"
        elif self.named_by == "user":
            seeds = f"seeds derived from the name {self.name}"
        else:
            seeds = f"seeds derived from the random name {self.name}"
        whole = self.held == self.requested and not self.left_out
        count = f"all {self.requested} runs" if whole else f"{self.held} of {self.requested} runs"
        if self.looks:
            count += f", looked at after {', '.join(map(str, self.looks))}"
        return f"series {self.series_id}: {count}{left}; {seeds}"


def _reasons(left_out: Sequence[LeftOut]) -> str:
    """Why runs are left out; runs in a row with one reason are named together."""
    found = []
    for (why, _), group in groupby(enumerate(left_out), key=lambda each: (each[1].reason, each[1].run - each[0])):
        numbers = [run.run for _, run in group]
        named = f"run {numbers[0]}" if len(numbers) == 1 else f"runs {numbers[0]} to {numbers[-1]}"
        found.append(f"{named}: {why}")
    return "; ".join(found)


@dataclass
class Runs:
    """Records, with the series that some of them are of."""

    records: list[Record] = field(default_factory=list)
    """Of runs that ended well, where they are of a series."""
    series: list[Series] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What makes the series worthless as evidence."""
        return [f"series {s.document.series_id}: {what}" for s in self.series for what in s.problems]

    @property
    def own_seeds(self) -> bool:
        """Whether runs have seeds of their own, derived from a name."""
        return any(each.document.seeds == "derived" for each in self.series)

    def to_verify(self) -> list[Record]:
        """The records to hold: those of failed runs where no run ended well, so that the verdict says how they ended.

        Of a series with problems one at most, since they need not be alike. Raises FlagbenchError (data) if no
        run has a record; a series with problems is given a verdict all the same.
        """
        found = self.records or [record for each in self.series for record in each.failed]
        if self.problems:
            return found[:1]
        if not found:
            why = "; ".join(_reasons(each.left_out) for each in self.series)
            raise FlagbenchError(
                f"no run of the series can be verified: {why}",
                remedy="run it again, or name the store that has its records with --store",
                code=ExitCode.DATA,
            )
        return found

    def summaries(self, side: Literal["runs", "baseline"]) -> list[SeriesSummary]:
        """Each series as a verdict names it."""
        return [_summary(each, side) for each in self.series]


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
