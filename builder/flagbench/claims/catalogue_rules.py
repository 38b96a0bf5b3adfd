"""Rules over a catalogue file: what its speeds, TFLOP/s and utilisations say of each other.

FLOPs per token are TFLOP/s, or MFU times the peak, over tokens/s. They depend on the model, the task, the sequence
length and the other stated conditions, never on the device: rows that share these must agree within their rounding.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from statistics import median

from flagbench.claims.numbers import Cell, read_number
from flagbench.claims.rows import LintFinding
from flagbench.claims.rules.speeds import TOLERANCE
from flagbench.manifests.catalogue import PublishedRow

SPEED, TFLOPS, MFU = "tokens_per_second_per_device", "tflops_per_device", "mfu"
RELEASE = attrgetter("release")
_CHANCE = 1e-6
"""Speeds that lie on a grid by chance more often than this are not called rounded to it."""


@dataclass(frozen=True)
class _Row:
    """A published row with its numbers, and half of what its release rounds its speed to, tokens/s."""

    of: PublishedRow
    cells: Mapping[str, Cell]
    half_grid: float = 0.0

    @property
    def rate(self) -> Cell | None:
        """FLOP/s of a device as published: TFLOP/s, else MFU times the peak."""
        if cell := self.cells.get(TFLOPS):
            return cell.scaled(1e12)
        cell = self.cells.get(MFU)
        return None if cell is None or self.of.peak is None else cell.scaled(self.of.peak / 100)

    @property
    def speed(self) -> Cell:
        """Tokens/s of a device, with the interval that its digits and its release's grid stand for."""
        cell = self.cells[SPEED]
        low, high = cell.value - self.half_grid, cell.value + self.half_grid
        return replace(cell, low=min(cell.low, low), high=max(cell.high, high))

    @property
    def flops(self) -> tuple[float, float, float] | None:
        """FLOPs per token: lowest, as printed, highest."""
        rate = self.rate
        if SPEED not in self.cells or rate is None or self.speed.low <= 0:
            return None
        return rate.low / self.speed.high, rate.value / self.speed.value, rate.high / self.speed.low

    @property
    def grid(self) -> float | None:
        """Tokens/s of a device when the job does one sequence a second."""
        return int(self.of.sequence) / self.of.devices if self.of.sequence.isdecimal() and self.of.devices else None

    @property
    def workload(self) -> tuple[str, ...]:
        """What FLOPs per token depend on."""
        return self.of.model, self.of.task, self.of.sequence, self.of.conditions

    @property
    def release(self) -> tuple[tuple[int, ...], str]:
        """The software; releases are in the order of the numbers in their name."""
        return tuple(map(int, re.findall(r"\d+", self.of.software))), self.of.software

    def deviates(self, usual: float) -> bool:
        """Whether no FLOPs per token that the row may stand for are near the usual ones."""
        return self.flops is not None and (self.flops[0] > usual * TOLERANCE or self.flops[2] * TOLERANCE < usual)

    def finding(self, field: str, rule: str, message: str) -> LintFinding:
        """A finding of this row."""
        name = f"row {self.of.row} ({self.of.model}, {self.of.device}, {self.of.software})"
        return LintFinding(self.of.row, self.of.line, name, field, rule, message)


def lint_catalogue(published: Sequence[PublishedRow]) -> list[LintFinding]:
    """What the rules find in the rows of a file, by row."""
    numbers = ({name: read_number(value) for name, (value, _) in row.metrics.items()} for row in published)
    rows = [_Row(row, {n: c for n, c in cells.items() if c}) for row, cells in zip(published, numbers, strict=True)]
    rows.sort(key=RELEASE)
    rows = [row for _, release in groupby(rows, RELEASE) for row in _with_grid([*release])]
    findings = [finding for rule in (_peaks, _flops_per_token, _scaling, _rounding) for finding in rule(rows)]
    return sorted(findings, key=lambda finding: (finding.row, finding.rule))


def _with_grid(release: Sequence[_Row]) -> Iterable[_Row]:
    """The rows of a release, with its grid where all speeds are a whole number of sequences a second of the job."""
    pairs = [(row.cells[SPEED], row.grid) for row in release if SPEED in row.cells]
    coarse = [(cell, grid) for cell, grid in pairs if grid is not None and grid > cell.unit]
    whole = all(math.isclose(cell.value / grid, round(cell.value / grid), abs_tol=1e-9) for cell, grid in coarse)
    if not whole or math.prod(cell.unit / grid for cell, grid in coarse) > _CHANCE:
        return release
    return [replace(row, half_grid=(row.grid or 0) / 2) for row in release]


def _peaks(rows: Sequence[_Row]) -> Iterator[LintFinding]:
    """No device is faster than its peak, and MFU is TFLOP/s over it."""
    for row in rows:
        peak, rate, tflops, mfu = row.of.peak, row.rate, row.cells.get(TFLOPS), row.cells.get(MFU)
        if peak is not None and rate is not None and rate.low > peak:
            yield row.finding(TFLOPS, "above-peak", f"{rate.value:.4g} FLOP/s is above the peak of {peak:.4g}")
        if peak is not None and tflops and mfu:
            implied = mfu.scaled(peak / 1e14)
            if implied.low > tflops.high * TOLERANCE or implied.high * TOLERANCE < tflops.low:
                yield row.finding(MFU, "mfu", f"{mfu.text} % of {peak:.4g} is not {tflops.text} TFLOP/s")


def _segments(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Rows of one workload over releases, until its FLOPs per token change."""
    able = sorted((row for row in rows if row.flops is not None), key=lambda row: (row.workload, row.release))
    for _, group in groupby(able, lambda row: row.workload):
        segment: list[_Row] = []
        for _, release in groupby(group, RELEASE):
            members = list(release)
            if segment and sum(row.deviates(_usual(segment)) for row in members) * 2 > len(members):
                yield segment
                segment = []
            segment += members
        yield segment


def _flops_per_token(rows: Sequence[_Row]) -> Iterator[LintFinding]:
    """Rows of one workload have the same FLOPs per token; where a release changes them, it is said once."""
    before: list[_Row] = []
    for segment in _segments(rows):
        usual, first = _usual(segment), segment[0]
        if before and before[0].workload == first.workload:
            old, sides = _usual(before), (before, segment)
            precisions = [" and ".join(sorted({row.of.precision or "unknown" for row in side})) for side in sides]
            also = f"; precision changes too, from {precisions[0]} to {precisions[1]}"
            change = f"{usual / old - 1:+.1%} FLOPs per token from here on, {old:.4g} before and {usual:.4g} after"
            yield first.finding(TFLOPS, "flops-step", change + (also if len(set(precisions)) > 1 else ""))
        before = segment
        for row in segment:
            if row.flops is not None and row.deviates(usual):
                cell, speed = row.cells.get(TFLOPS), row.speed
                other = f"an MFU of {row.cells[MFU].text} %" if cell is None else f"{cell.text} TFLOP/s"
                yield row.finding(
                    SPEED,
                    "flops-per-token",
                    f"{speed.text} tokens/s against {other} are {row.flops[1]:.4g} FLOPs per token, "
                    f"{abs(row.flops[1] / usual - 1):.1%} from {usual:.4g} in other rows; half of what the speed is "
                    f"rounded to is {(speed.high - speed.low) / 2 / speed.value:.1%} of it",
                )


def _rounding(rows: Sequence[_Row]) -> Iterator[LintFinding]:
    """A release that rounds: the row of which that explains most."""
    usual = {row.of.row: _usual(segment) for segment in _segments(rows) for row in segment}

    def off(row: _Row) -> float:
        return 0.0 if row.flops is None else abs(row.flops[1] / usual[row.of.row] - 1)

    for _, release in groupby((row for row in rows if row.half_grid and SPEED in row.cells), RELEASE):
        members = list(release)
        row = max(members, key=lambda row: (off(row), row.half_grid / row.speed.value))
        value = row.speed.value
        message = (
            f"all {len(members)} speeds are whole sequences per second of the whole job: {row.speed.text} tokens/s "
            f"are {value / row.half_grid / 2:.0f}, half of one is {row.half_grid / value:.1%} of it, and its FLOPs "
            f"per token are {off(row):.1%} from those of other rows; publish more digits"
        )
        yield row.finding(SPEED, "rounding-grid", message)


def _scaling(rows: Sequence[_Row]) -> Iterator[LintFinding]:
    """A device of a larger job is not faster than one of a smaller job, all else as stated."""
    groups: dict[tuple[object, ...], list[_Row]] = defaultdict(list)
    for row in rows:
        if SPEED in row.cells and row.of.devices:
            names = ("device", "precision", "parallelism", "software")
            micro_batch = row.of.batch.split("/")[0].strip()
            key = (*row.workload, micro_batch, *(getattr(row.of, name) for name in names))
            groups[key].append(row)
    for group in groups.values():
        for row in group:
            smaller = [other for other in group if (other.of.devices or 0) < (row.of.devices or 0)]
            best = max(smaller, key=lambda other: other.speed.high, default=None)
            if best is not None and row.speed.low > best.speed.high * TOLERANCE:
                message = (
                    f"{row.speed.text} tokens/s on each of {row.of.devices} devices, and {best.speed.text} on each "
                    f"of {best.of.devices} in row {best.of.row}"
                )
                yield row.finding(SPEED, "scaling", message)


def _usual(rows: Sequence[_Row]) -> float:
    return median(row.flops[1] for row in rows if row.flops is not None)
