"""Rules over a catalogue file: what its speeds, TFLOP/s and utilisations say of each other.

FLOPs per token are TFLOP/s, or MFU times the peak, over tokens/s. They depend on the model, the task, the sequence
length and the other stated conditions, never on the device: rows that share these must agree within their rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from flagbench.claims.numbers import Cell, read_number
from flagbench.claims.rows import LintFinding
from flagbench.claims.rules.speeds import TOLERANCE
from flagbench.manifests.catalogue import CatalogueValue, peak_of
from flagbench.manifests.model import DeviceModel

SPEED, TFLOPS, MFU = "tokens_per_second_per_device", "tflops_per_device", "mfu"
_CHANCE = 1e-6
"""Values that lie on a grid by chance more often than this are not called rounded to it."""


@dataclass(frozen=True)
class Published:
    """A published row: its first value, which has the conditions of all, and its cells by metric."""

    of: CatalogueValue
    cells: Mapping[str, Cell]
    peak: float | None
    """Of the device in the row's precision, FLOP/s."""
    half_grid: float = 0.0
    """Half of what the release rounds this row's speed to, tokens/s."""

    @property
    def speed(self) -> tuple[float, float] | None:
        """The interval of tokens/s that the printed speed stands for."""
        cell = self.cells.get(SPEED)
        return (
            None
            if cell is None
            else (min(cell.low, cell.value - self.half_grid), max(cell.high, cell.value + self.half_grid))
        )

    @property
    def rate(self) -> Cell | None:
        """FLOP/s of a device as published: TFLOP/s, else MFU times the peak."""
        if cell := self.cells.get(TFLOPS):
            return cell.scaled(1e12)
        cell = self.cells.get(MFU)
        return None if cell is None or self.peak is None else cell.scaled(self.peak / 100)

    @property
    def flops(self) -> tuple[float, float, float] | None:
        """FLOPs per token: lowest, as printed, highest."""
        speed, rate = self.speed, self.rate
        if speed is None or rate is None or speed[0] <= 0:
            return None
        return rate.low / speed[1], rate.value / self.cells[SPEED].value, rate.high / speed[0]

    @property
    def grid(self) -> float | None:
        """Tokens/s of a device when the job does one sequence a second."""
        return int(self.of.sequence) / self.of.devices if self.of.sequence.isdecimal() and self.of.devices else None

    def finding(self, field: str, rule: str, message: str) -> LintFinding:
        """A finding of this row."""
        name = f"row {self.of.row} ({self.of.model}, {self.of.device}, {self.of.software})"
        return LintFinding(self.of.row, self.of.line, name, field, rule, message)


def lint_catalogue(values: Iterable[CatalogueValue], devices: Mapping[str, DeviceModel]) -> list[LintFinding]:
    """What the rules find in the values of a file, by row."""
    by_row = [_published(list(group), devices) for _, group in groupby(values, _number)]
    rows = [row for _, group in groupby(sorted(by_row, key=_release), _release) for row in _with_grid([*group])]
    findings = [finding for rule in (_peaks, _flops_per_token, _scaling, _rounding) for finding in rule(rows)]
    return sorted(findings, key=lambda finding: (finding.row, finding.rule))


def _published(values: Sequence[CatalogueValue], devices: Mapping[str, DeviceModel]) -> Published:
    cells = {value.metric: cell for value in values if (cell := read_number(value.value)) is not None}
    return Published(values[0], cells, peak_of(devices.get(values[0].device_id or ""), values[0].precision))


def _with_grid(release: Sequence[Published]) -> Iterable[Published]:
    """The rows of a release, with its grid where all speeds are a whole number of sequences a second of the job."""
    coarse = [(row.cells[SPEED], row.grid) for row in release if SPEED in row.cells and row.grid is not None]
    coarse = [(cell, grid) for cell, grid in coarse if grid > cell.unit]
    whole = all(math.isclose(cell.value / grid, round(cell.value / grid), abs_tol=1e-9) for cell, grid in coarse)
    if not whole or math.prod(cell.unit / grid for cell, grid in coarse) > _CHANCE:
        return release
    return [replace(row, half_grid=(row.grid or 0) / 2) for row in release]


def _rounding(rows: Sequence[Published]) -> Iterator[LintFinding]:
    """A release that rounds: the row of which that explains most."""
    usual = {row.of.row: _flops(segment) for segment, _ in _segments(rows) for row in segment}

    def off(row: Published) -> float:
        return abs(row.flops[1] / usual[row.of.row] - 1) if row.flops is not None else 0.0

    for _, group in groupby((row for row in rows if row.half_grid and SPEED in row.cells), _release):
        members = list(group)
        row = max(members, key=lambda row: (off(row), row.half_grid / row.cells[SPEED].value))
        value, text = row.cells[SPEED].value, row.cells[SPEED].text
        message = (
            f"all {len(members)} speeds are whole sequences per second of the whole job: {text} tokens/s are "
            f"{value / row.half_grid / 2:.0f}, half of one is {row.half_grid / value:.1%} of it, and its FLOPs per "
            f"token are {off(row):.1%} from those of other rows; publish more digits"
        )
        yield row.finding(SPEED, "rounding-grid", message)


def _peaks(rows: Sequence[Published]) -> Iterator[LintFinding]:
    """No device is faster than its peak, and MFU is TFLOP/s over it."""
    for row in rows:
        tflops, mfu = row.cells.get(TFLOPS), row.cells.get(MFU)
        if row.peak is None:
            continue
        if (rate := row.rate) and rate.low > row.peak:
            yield row.finding(TFLOPS, "above-peak", f"{rate.value:.4g} FLOP/s is above the peak of {row.peak:.4g}")
        if tflops and mfu:
            implied = mfu.scaled(row.peak / 1e14)
            if implied.low > tflops.high * TOLERANCE or implied.high * TOLERANCE < tflops.low:
                yield row.finding(MFU, "mfu", f"{mfu.text} % of {row.peak:.4g} is not {tflops.text} TFLOP/s")


def _segments(rows: Sequence[Published]) -> Iterator[tuple[list[Published], LintFinding | None]]:
    """Rows of one workload over releases, until its FLOPs per token change, and the finding of the change."""
    able = sorted((row for row in rows if row.flops is not None), key=lambda row: (_workload(row), _release(row)))
    for _, group in groupby(able, _workload):
        segment: list[Published] = []
        for _, release in groupby(group, _release):
            members = list(release)
            if segment and sum(_deviates(row, _flops(segment)) for row in members) * 2 > len(members):
                yield segment, _step(segment, members)
                segment = []
            segment += members
        yield segment, None


def _flops_per_token(rows: Sequence[Published]) -> Iterator[LintFinding]:
    """Rows of one workload have the same FLOPs per token; where a release changes them, it is said once."""
    for segment, step in _segments(rows):
        if step is not None:
            yield step
        usual = _flops(segment)
        for row in segment:
            if _deviates(row, usual) and row.flops is not None and row.speed is not None:
                half = (row.speed[1] - row.speed[0]) / 2 / row.cells[SPEED].value
                other = (
                    f"{row.cells[TFLOPS].text} TFLOP/s"
                    if TFLOPS in row.cells
                    else f"an MFU of {row.cells[MFU].text} %"
                )
                yield row.finding(
                    SPEED,
                    "flops-per-token",
                    f"{row.cells[SPEED].text} tokens/s against {other} are {row.flops[1]:.4g} FLOPs per token, "
                    f"{abs(row.flops[1] / usual - 1):.1%} from {usual:.4g} in other rows; half a grid is {half:.1%}",
                )


def _step(before: Sequence[Published], after: Sequence[Published]) -> LintFinding:
    old, new = _flops(before), _flops(after)
    precisions = [" and ".join(sorted({row.of.precision or "unknown" for row in side})) for side in (before, after)]
    changed = f"; precision changes too, from {precisions[0]} to {precisions[1]}" if len(set(precisions)) > 1 else ""
    message = (
        f"{new / old - 1:+.1%} FLOPs per token from {after[0].of.software} on: {old:.4g}, then {new:.4g}{changed}"
    )
    return after[0].finding(TFLOPS, "flops-step", message)


def _scaling(rows: Sequence[Published]) -> Iterator[LintFinding]:
    """A device of a larger job is not faster than one of a smaller job, all else as stated."""
    groups: dict[tuple[object, ...], list[Published]] = {}
    for row in rows:
        of = row.of
        if SPEED in row.cells and of.devices:
            micro_batch = of.batch.split("/")[0].strip()
            key = (
                of.model,
                of.task,
                of.device,
                of.precision,
                of.sequence,
                of.parallelism,
                of.software,
                of.conditions,
            )
            groups.setdefault((*key, micro_batch), []).append(row)
    for group in groups.values():
        for row in group:
            low = row.speed[0] if row.speed else 0.0
            smaller = [other for other in group if (other.of.devices or 0) < (row.of.devices or 0)]
            best = max(smaller, key=lambda other: other.speed[1] if other.speed else 0.0, default=None)
            if best is not None and best.speed is not None and low > best.speed[1] * TOLERANCE:
                message = (
                    f"{row.cells[SPEED].text} tokens/s on each of {row.of.devices} devices, and "
                    f"{best.cells[SPEED].text} on each of {best.of.devices} in row {best.of.row}"
                )
                yield row.finding(SPEED, "scaling", message)


def _flops(rows: Sequence[Published]) -> float:
    """The usual FLOPs per token: the median of the rows that are rounded least, as many as half of them."""
    able = sorted((row.flops for row in rows if row.flops is not None), key=lambda f: (f[2] - f[0]) / f[1])
    return median(flops[1] for flops in able[: (len(able) + 1) // 2])


def _deviates(row: Published, usual: float) -> bool:
    return row.flops is not None and (row.flops[0] > usual * TOLERANCE or row.flops[2] * TOLERANCE < usual)


def _release(row: Published) -> tuple[tuple[int, ...], str]:
    """Releases in order: by the numbers of their name."""
    return tuple(map(int, re.findall(r"\d+", row.of.software))), row.of.software


def _workload(row: Published) -> tuple[str, ...]:
    return row.of.model, row.of.task, row.of.sequence, row.of.conditions


def _number(value: CatalogueValue) -> int:
    return value.row
