"""Charts of a report: what each shows, as coordinates that `templates/charts.j2` draws, and as a table.

A chart is 480 units wide with text of 14, so that it can be read on a phone. Everything is rounded: the same numbers
give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flagbench.manifests.device import DeviceModel
from flagbench.page import Table
from flagbench.records.model import Record
from flagbench.report.verdict_page import STYLES
from flagbench.terminal import visible
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict.limits import HIGH, LOW
from flagbench.verdict.losses import LossCurve
from flagbench.verdict.result import Ratio
from flagbench.verdict.rules.comparison import NO_THROTTLING, throttled

WIDTH, HEIGHT, ROW = 480, 250, 44
"""Of the picture, of one with two axes, and of a row."""
_LEFT, _RIGHT, _TOP, _FOOT, _EDGE = 52, 470, 12, 40, 10
_STRETCHES = 60
"""Most parts in which the steps of a run are summarised."""
_MOST_DOTS = 2000
MOST_RUNS = 200
"""Most runs in one chart, the newest."""
_LEAST, _FARTHEST = 1e-100, 1e15
"""No axis is shorter or goes beyond, whatever a record says."""
_LONG, _UNITS = 1e5, ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
"""From when on numbers beside an axis have a unit, and which."""


@dataclass(frozen=True)
class Axis:
    """Numbers as coordinates: `low` is drawn at `begin`, `high` at `end`."""

    low: float
    high: float
    begin: float
    end: float
    label: str = ""
    marks: tuple[tuple[float, str], ...] = ()
    """Numbers beside the axis, each with its text."""

    def at(self, value: float) -> float:
        """The coordinate of a number; of one outside the axis, its nearer end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)


def axis(values: Sequence[float], begin: float, end: float, label: str = "", *, exact: bool = False) -> Axis:
    """An axis with round numbers beside it, the first and last of which it reaches unless it is to be `exact`."""
    low, high = (min(max(value, -_FARTHEST), _FARTHEST) for value in (min(values), max(values)))
    most = max(abs(low), abs(high))
    spread = high - low
    if spread <= max(most * 1e-9, _LEAST):
        spread = most if most > _LEAST else 1.0
    power = 10.0 ** math.floor(math.log10(spread / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if spread / (power * factor) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last += first == last
    unit, suffix = next(((u, s) for u, s in _UNITS if most >= max(u, _LONG)), (1.0, ""))
    digits = max(0, -math.floor(math.log10(step / unit)) + (step / power == 2.5))
    ends = (low, low + spread) if exact else (first * step, last * step)
    marks = ((n * step, f"{n * step / unit:,.{digits}f}{suffix}") for n in range(first, last + 1))
    inside = tuple(mark for mark in marks if ends[0] <= mark[0] <= ends[1])
    return Axis(*ends, begin, end, label, inside)


@dataclass(frozen=True)
class Row:
    """A value of a chart of rows, with its interval; `tone` is a class of the style sheet."""

    label: str
    value: float
    text: str
    """The value as it is written beside the row."""
    ends: tuple[float, float] | None = None
    """Of its interval."""
    tone: str = "plain"


@dataclass(frozen=True)
class Line:
    """A line or dots over the steps or runs of a chart: (x, y) in the units of its axes."""

    name: str
    points: tuple[tuple[float, float], ...]
    tone: str
    dots: bool = False
    intervals: tuple[tuple[float, float, float], ...] = ()
    """(x, low, high) of the dots that have one."""


@dataclass(frozen=True)
class Chart:
    """One chart. `band` is shaded and `target` a line: across the x axis where there are `rows`, else the y axis."""

    id: str
    title: str
    description: str
    table: Table
    x: Axis
    rows: tuple[Row, ...] = ()
    y: Axis | None = None
    lines: tuple[Line, ...] = ()
    band: tuple[float, float] | None = None
    target: float | None = None

    @property
    def height(self) -> int:
        """Of the picture."""
        return HEIGHT if self.y else ROW * len(self.rows) + _TOP + _FOOT

    def path(self, line: Line) -> str:
        """The path of a line, or of its dots: strokes without length, which round caps make visible."""
        assert self.y is not None
        points = [f"{self.x.at(x):g},{self.y.at(y):g}" for x, y in line.points]
        return "".join(f"M{point}h0" for point in points) if line.dots else "M" + "L".join(points)


def row_chart(
    id: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    table: Table,
    *,
    label: str,
    band: tuple[float, float] | None = None,
    target: float | None = None,
    shown: Sequence[float] = (),
) -> Chart | None:
    """A chart of rows, each a value with its interval; None without any. `shown`: numbers that the axis reaches."""
    if not rows:
        return None
    ends = [end for row in rows for end in (row.value, *(row.ends or ()))]
    x = axis([*ends, *_around(band), *shown], _EDGE + 10, WIDTH - _EDGE - 10, label)
    return Chart(id, title, description, table, x, tuple(rows), band=band, target=target)


_CLASSES = {"bold green": "good", "bold red": "bad", "bold yellow": "doubt", "bold": "cited"}
TONES = {outcome: _CLASSES[style] for outcome, style in STYLES.items()}
"""The class of the style sheet by verdict, or by the outcome of a check."""


def ratio_row(label: str, ratio: Ratio, outcome: str) -> Row:
    """A ratio with its interval, in the colour of its verdict, or of the outcome of a check."""
    return Row(label, ratio.value, f"{ratio.value:.3f} {outcome}", ratio.ci95, TONES[outcome])


def ratio_chart(ratios: Mapping[str, tuple[Ratio, str]]) -> Chart | None:
    """Ratios with their intervals in the band of a verdict; None without any. By label: the ratio and its verdict."""
    rows = [ratio_row(label, *ratio) for label, ratio in ratios.items()]
    cells = [(row.label, f"{row.value:.3f}", interval(row.ends, "{:.3f}"), ratios[row.label][1]) for row in rows]
    told = (
        f"1 is the published value. A line is a 95 % interval, the shaded band {LOW:.2f} to {HIGH:.2f}: "
        "the verdict is decided where a whole line lies inside the band or outside it."
    )
    table = Table(("measured", "ratio", "95 % interval", "verdict"), cells, frozenset({"ratio", "95 % interval"}))
    band, title, label = (LOW, HIGH), "Speed against the published row", "ratio to the published value"
    return row_chart("ratio", title, told, rows, table, label=label, band=band, target=1.0)


def verdict_chart(result: VerifyResult) -> Chart | None:
    """The ratios of a verdict on a claim that are of comparable speeds, the deciding one first; None without any.

    A REFERENCE has no chart: no limits are those of a row that is only cited.
    """
    if result.verdict is Verdict.REFERENCE:
        return None
    speeds = sorted((m for m in result.metrics if m.comparable), key=lambda metric: metric.name != result.gate)
    return ratio_chart({m.name: (m.ratio, m.verdict.value) for m in speeds if m.ratio and m.verdict})


def _around(band: tuple[float, float] | None) -> list[float]:
    """Numbers that an axis has to reach for the band to be seen: half as far again from 1; none without a band."""
    return [] if band is None else [1.5 * band[0] - 0.5, 1.5 * band[1] - 0.5]


def interval(ends: tuple[float, float] | None, form: str = "{:.4g}") -> str:
    """An interval as text; `-` for none."""
    return "-" if ends is None else f"{form.format(ends[0])} to {form.format(ends[1])}"


def _stretches(values: Mapping[int, float]) -> Iterator[tuple[int, int, float, float, float]]:
    """Steps in at most _STRETCHES parts: first and last step, lowest, median and highest value."""
    steps = sorted(values)
    size = max(1, math.ceil(len(steps) / _STRETCHES))
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        found = [values[step] for step in part]
        yield part[0], part[-1], min(found), median(found), max(found)


def _curve(
    id: str, title: str, description: str, curves: Mapping[str, Mapping[int, float]], label: str, scale: float = 1.0
) -> Chart | None:
    """Values by step: of one run every value as a dot below the line of medians, of several their lines."""
    curves = {
        name: {step: value * scale for step, value in values.items()} for name, values in curves.items() if values
    }
    if not curves:
        return None
    alone = len(curves) == 1
    parts = {name: [*_stretches(values)] for name, values in curves.items()}
    lines = [
        Line(name or "median", tuple(((first + last) / 2, mid) for first, last, _, mid, _ in found), f"s{number % 4}")
        for number, (name, found) in enumerate(parts.items())
    ]
    if alone and len(values := next(iter(curves.values()))) <= _MOST_DOTS:
        lines.insert(0, Line("each step", tuple(values.items()), "faint", dots=True))
    seen = [y for line in lines for _, y in line.points]
    steps = [step for values in curves.values() for step in (min(values), max(values))]
    cells = [
        (name, f"{first} to {last}" if last > first else f"{first}", *(f"{number:.5g}" for number in numbers))
        for name, found in parts.items()
        for first, last, *numbers in found
    ]
    columns = ("run", "steps", "lowest", "median", "highest")
    table = Table(columns[alone:], [cell[alone:] for cell in cells], frozenset(columns[1:]))
    x, y = axis(steps, _LEFT, _RIGHT, "step", exact=True), axis(seen, HEIGHT - _FOOT, _TOP + 14, label)
    return Chart(id, title, description, table, x, y=y, lines=tuple(lines))


def step_chart(record: Record) -> Chart | None:
    """The device time of each step of the window; None for a record without any."""
    window = record.window
    if window is None or len(window.step_seconds) < 2:
        return None
    skipped = window.steps / len(window.step_seconds)
    values = {window.first_step + int(n * skipped): seconds for n, seconds in enumerate(window.step_seconds)}
    told = f"Device time of the steps that the speed is computed from, on rank {window.rank or 0}, the slowest."
    if window.step_median is not None:
        told += f" Median {1000 * window.step_median:.4g} ms."
    if window.drift is not None:
        told += f" The second half takes {1 + window.drift:.3f} times as long as the first."
    return _curve("steps", "Step times over the window", told, {"": values}, "ms", 1000)


def clock_chart(record: Record) -> Chart | None:
    """The clock of each device during the window, and how long it was throttled; None without clocks."""
    devices = record.telemetry.devices if record.telemetry is not None else ()
    rows, cells = [], []
    for device in devices:
        busy = device.sm_clock_mean_mhz if device.sm_clock_busy_mhz is None else device.sm_clock_busy_mhz
        if busy is None:
            continue
        lowest, highest = device.sm_clock_min_mhz or busy, device.sm_clock_max_mhz or busy
        ends = (min(busy, lowest), max(busy, highest))
        reasons = {why: seconds for why, seconds in device.throttle_seconds.items() if why not in NO_THROTTLING}
        slowed = throttled([device])
        longest = f", throttled {max(slowed.values()):.1f} s" if slowed else ""
        rows.append(Row(f"device {device.index}", busy, f"{busy:.0f} MHz{longest}", ends, "bad" if slowed else "s0"))
        why = ", ".join(f"{why} {seconds:.1f} s" for why, seconds in reasons.items())
        cells.append((f"{device.index}", f"{busy:.0f}", interval(ends, "{:.0f}"), why or "no"))
    told = (
        "A dot is the mean while the device was busy; the line reaches from the lowest sample to the highest allowed."
    )
    table = Table(("device", "MHz", "lowest to allowed", "throttled"), cells, frozenset({"MHz", "lowest to allowed"}))
    return row_chart("clocks", "Clocks and throttling", told, rows, table, label="MHz")


def loss_chart(curves: Mapping[str, LossCurve]) -> Chart | None:
    """The losses of runs by step, each under the name of its run; None without any."""
    losses = {
        visible(name): {step: loss for step, loss in curve.items() if loss is not None}
        for name, curve in curves.items()
    }
    told = "The line is the median of each stretch of steps."
    return _curve("losses", "Loss by step", told, losses, "loss")


def roof_chart(record: Record, device: DeviceModel | None) -> Chart | None:
    """What a device reached of its published peaks; None where it has none of what was measured."""
    peaks = {} if device is None else dict(device.flops)
    bandwidth = device.limits.memory_bandwidth if device is not None else None
    rows, cells = [], []
    for one in record.measurements:
        peak = peaks.get(one.precision or "")
        if one.name == "memory_bandwidth" and bandwidth is not None:
            peak = float(bandwidth.value)
        if not peak:
            continue
        scale, unit = (1e12, "TFLOP/s") if one.unit == "FLOP/s" else (1e9, "GB/s")
        rates = one.devices or (one.rate,)
        share = one.rate / peak
        rows.append(
            Row(one.name, share, f"{share:.0%} of {peak / scale:,.4g} {unit}", (min(rates) / peak, max(rates) / peak))
        )
        cells.append((one.name, f"{one.rate / scale:,.4g}", f"{peak / scale:,.4g}", unit, f"{share:.1%}"))
    told = "1 is the peak of the datasheet. A line reaches from the slowest device to the fastest."
    table = Table(("measured", "rate", "peak", "unit", "share"), cells, frozenset({"rate", "peak", "share"}))
    return row_chart(
        "roofs", "Roofs against peaks", told, rows, table, label="share of the peak", target=1.0, shown=(0.0, 1.0)
    )


@dataclass(frozen=True)
class Run:
    """A run of a chart of runs."""

    created_at: str
    name: str
    value: float
    ci95: tuple[float, float] | None = None


def run_chart(
    runs: Sequence[Run], title: str, label: str, *, band: tuple[float, float] | None = None, id: str = "runs"
) -> Chart | None:
    """All runs from the oldest to the newest, which is marked; None for fewer than two."""
    newest = sorted(runs, key=lambda run: (run.created_at, run.name))[-MOST_RUNS:]
    if len(newest) < 2:
        return None
    numbered, last = [*enumerate(newest, 1)], len(newest)
    lines = tuple(
        Line(
            name,
            tuple((number, run.value) for number, run in part),
            tone,
            dots=True,
            intervals=tuple((number, *run.ci95) for number, run in part if run.ci95),
        )
        for name, tone, part in (("earlier runs", "s0", numbered[:-1]), ("newest run", "new", numbered[-1:]))
    )
    seen = [run.value for run in newest] + [end for run in newest for end in run.ci95 or ()] + _around(band)
    y = axis(seen, HEIGHT - _FOOT, _TOP + 14, label)
    days = f"{newest[0].created_at[:10]} to {newest[-1].created_at[:10]}"
    x = Axis(0, last + 1, _LEFT, _RIGHT, f"runs, {days}", ((1, "1"), (last, f"{last}")))
    told = f"{len(newest)} runs of {days}, the oldest on the left. The newest has {newest[-1].value:.4g}."
    if len(runs) > len(newest):
        told = f"The newest {len(newest)} of {len(runs)} runs. {told}"
    cells = [(run.created_at, run.name, f"{run.value:.4g}", interval(run.ci95)) for run in reversed(newest)]
    table = Table(("created", "record", label, "95 % interval"), cells, frozenset({label, "95 % interval"}))
    return Chart(id, title, told, table, x, y=y, lines=lines, band=band, target=1.0 if band else None)
