"""Charts of a report: what each shows, as coordinates that `templates/charts.j2` draws, and as a table.

A chart is 480 units wide with text of 14, so that it can be read on a phone. Everything is rounded: the same numbers
give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from flagbench.console.page import Table
from flagbench.console.terminal import brief, visible
from flagbench.manifests.device import DeviceModel
from flagbench.records.model import Measurement, Record, SlowestDevice
from flagbench.report.verdict_page import STYLES, with_slowest
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict.claim_limits import HIGH, LOW
from flagbench.verdict.disturbance import throttled
from flagbench.verdict.losses import LossCurve
from flagbench.verdict.result import Ratio, number_text
from flagbench_core.evidence.slow_devices import slowest_device

WIDTH = 480
HEIGHT = 250
"""Of a chart with two axes."""
ROW = 44
"""Height of a row."""
_LEFT = 52
"""Least room for the numbers beside a y axis."""
_RIGHT = 470
_TOP = 12
_FOOT = 40
"""Room for the x axis."""
_EDGE = 10
_STRETCHES = 60
"""Most stretches into which the steps of a run are summarised."""
_MOST_DOTS = 2000
RUNS_SHOWN = 200
"""Most runs in one chart; the newest are kept."""
_LEAST = 1e-100
"""An axis is at least this long, whatever numbers a record has."""
_FARTHEST = 1e15
"""No axis goes beyond, whatever numbers a record has."""
_MOST_DIGITS = 5
"""Most digits after the point of a number beside an axis."""
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_UNITS_FROM = 1e5
"""Numbers beside an axis have a unit if the largest is at least this."""
_MARK_WIDTH = 8.3
"""Average width of a character of a number beside an axis, at most."""
_LABEL_WIDTH = 7.9
"""Average width of a character of a row's label, at most."""
_VALUE_WIDTH = 9.3
"""Average width of a character of a row's value, at most."""
_LEAST_POINTS = 3
"""Least number of points of a chart; fewer are written as a `Note`."""
_DATED = 4
"""Up to this many runs, each has its date and host below its dot; of more, only the first and the last."""
_HALF_DATE = 44
"""Half the width of a date below a dot."""
_HOST = 12
"""Most characters of a host's name below a dot."""


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


def axis(values: Sequence[float], begin: float, end: float, label: str = "") -> Axis:
    """An axis from one round number to another that covers the values.

    The label of an axis without zero states its range.
    """
    low, high = _within_reach(min(values)), _within_reach(max(values))
    most = max(abs(low), abs(high))
    spread = high - low
    if spread <= max(most * 1e-9, _LEAST):
        spread = 1.0
        if most > _LEAST:
            spread = most
    power = 10.0 ** math.floor(math.log10(spread / 4))
    factor = _step_factor(spread, power)
    step = power * factor
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        last += 1
    unit, suffix = _unit_of(most)
    digits = -math.floor(math.log10(step / unit))
    if factor == 2.5:
        digits += 1
    digits = max(0, digits)
    marks = []
    for number in range(first, last + 1):
        mark = number * step
        text = number_text(mark)
        if digits <= _MOST_DIGITS:
            text = f"{mark / unit:,.{digits}f}{suffix}"
        marks.append((mark, text))
    if first > 0 or last < 0:
        label = f"{label} (axis from {marks[0][1]} to {marks[-1][1]})"
    return Axis(first * step, last * step, begin, end, label, tuple(marks))


def _within_reach(number: float) -> float:
    return min(max(number, -_FARTHEST), _FARTHEST)


def _step_factor(spread: float, power: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 that, times `power`, divides `spread` into at most five steps."""
    for factor in (1, 2, 2.5, 5):
        if spread / (power * factor) <= 5:
            return factor
    return 10


def _unit_of(most: float) -> tuple[float, str]:
    """The unit of the numbers beside an axis whose largest number is `most`, and its letter; (1, "") for none."""
    for unit, suffix in _UNITS:
        if most >= max(unit, _UNITS_FROM):
            return unit, suffix
    return 1.0, ""


def step_axis(first: int, last: int, begin: float) -> Axis:
    """An axis of steps, from the first to the last: whole numbers."""
    apart = 10 ** math.floor(math.log10(max(1, last - first)))
    if (last - first) / apart <= 2 and apart > 1:
        apart //= 5
    elif (last - first) / apart > 5:
        apart *= 2
    first_mark = -(-first // apart) * apart  # rounded up
    marks = tuple((mark, f"{mark:,}") for mark in range(first_mark, last + 1, apart))
    return Axis(first, max(last, first + 1), begin, _RIGHT, "step", marks)


def value_axis(values: Sequence[float], label: str) -> Axis:
    """The y axis of a chart."""
    return axis(values, HEIGHT - _FOOT, _TOP + 14, label)


def _beside(y: Axis) -> float:
    """The x coordinate at which a chart begins, so that the numbers beside its y axis fit."""
    longest = max(len(text) for _, text in y.marks)
    return max(_LEFT, round(10 + _MARK_WIDTH * longest))


@dataclass(frozen=True)
class ChartRow:
    """A value of a chart of rows, with its interval; `tone` is a class of the style sheet."""

    label: str
    value: float
    text: str
    """The value as it is written beside the row."""
    ends: tuple[float, float] | None = None
    """Ends of its interval."""
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
    titles: tuple[str, ...] = ()
    """A tooltip for each dot, or none."""


@dataclass(frozen=True)
class Note:
    """A sentence in place of a chart with too few values."""

    title: str
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart. `band` is shaded and `target` is a line, on the x axis of a chart of rows, else on the y axis."""

    id: str
    title: str
    description: str
    table: Table
    x: Axis
    rows: tuple[ChartRow, ...] = ()
    y: Axis | None = None
    lines: tuple[Line, ...] = ()
    band: tuple[float, float] | None = None
    target: float | None = None
    hosts: tuple[tuple[float, str], ...] = ()
    """Names of hosts below the numbers of the x axis."""

    @property
    def left(self) -> float:
        """Where a chart with two axes begins."""
        assert self.y is not None
        return _beside(self.y)

    @property
    def height(self) -> int:
        """Height of the picture."""
        if self.y:
            return HEIGHT
        return ROW * len(self.rows) + _TOP + _FOOT

    def path(self, line: Line) -> str:
        """The path of a line, or of its dots."""
        if line.dots:
            return "".join(self.dots(line))
        return "M" + "L".join(self._points(line))

    def dots(self, line: Line) -> list[str]:
        """The path of each dot: a stroke without length, which round caps make visible."""
        return [f"M{point}h0" for point in self._points(line)]

    def _points(self, line: Line) -> list[str]:
        assert self.y is not None
        return [f"{self.x.at(x):g},{self.y.at(y):g}" for x, y in line.points]


def row_chart(
    id: str,
    title: str,
    description: str,
    rows: Sequence[ChartRow],
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
    numbers = [*_around(band), *shown]
    for row in rows:
        numbers.append(row.value)
        if row.ends is not None:
            numbers += row.ends
    x = axis(numbers, _EDGE + 10, WIDTH - _EDGE - 10, label)
    fitting = []
    for row in rows:
        room = int((_RIGHT - _EDGE - _VALUE_WIDTH * (len(row.text) + 1)) / _LABEL_WIDTH)
        fitting.append(replace(row, label=brief(row.label, room)))
    return Chart(id, title, description, table, x, tuple(fitting), band=band, target=target)


_CLASSES = {"bold green": "good", "bold red": "bad", "bold yellow": "doubt", "bold": "cited"}
TONES = {outcome: _CLASSES[style] for outcome, style in STYLES.items()}
"""The class of the style sheet by verdict, or by the outcome of a check."""


def ratio_row(label: str, ratio: Ratio, outcome: str) -> ChartRow:
    """A ratio with its interval, in the colour of its verdict, or of the outcome of a check."""
    return ChartRow(label, ratio.value, f"{ratio.value:.3f} {outcome}", ratio.ci95, TONES[outcome])


def ratio_chart(ratios: Mapping[str, tuple[Ratio, str]]) -> Chart | None:
    """Ratios with their intervals in the band of a verdict; None without any. By label: the ratio and its verdict."""
    rows, cells = [], []
    for label, (ratio, verdict) in ratios.items():
        rows.append(ratio_row(label, ratio, verdict))
        cells.append((label, f"{ratio.value:.3f}", interval(ratio.ci95, "{:.3f}".format), verdict))
    description = (
        f"1 is the published value. A line is a 95 % interval, the shaded band {LOW:.2f} to {HIGH:.2f}: "
        "the verdict is decided where a whole line lies inside the band or outside it."
    )
    return row_chart(
        "ratio",
        "Speed against the published row",
        description,
        rows,
        Table(("measured", "ratio", "95 % interval", "verdict"), cells, frozenset({"ratio", "95 % interval"})),
        label="ratio to the published value",
        band=(LOW, HIGH),
        target=1.0,
    )


def verdict_chart(result: VerifyResult) -> Chart | None:
    """The ratios of a verdict on a claim that are of comparable speeds, the deciding one first; None without any.

    A REFERENCE has no chart: rows that are only cited have no limits.
    """
    if result.verdict is Verdict.REFERENCE:
        return None
    ratios = {}
    for metric in sorted(result.metrics, key=lambda metric: metric.name != result.gate):
        if metric.comparable and metric.ratio is not None and metric.verdict is not None:
            ratios[metric.name] = (metric.ratio, metric.verdict.value)
    return ratio_chart(ratios)


def _around(band: tuple[float, float] | None) -> list[float]:
    """Numbers that an axis must cover to show a band with space around it: 1.5 times as far from 1; none without."""
    if band is None:
        return []
    low, high = band
    return [1.5 * low - 0.5, 1.5 * high - 0.5]


def interval(ends: tuple[float, float] | None, text: Callable[[float], str] = number_text) -> str:
    """An interval as text; `-` for none."""
    if ends is None:
        return "-"
    low, high = ends
    return f"{text(low)} to {text(high)}"


class _Stretch(NamedTuple):
    """Consecutive steps, summarised."""

    first: int
    last: int
    lowest: float
    median: float
    highest: float


def _stretches(values: Mapping[int, float]) -> list[_Stretch]:
    """Values by step, in at most _STRETCHES stretches of nearly equal length."""
    steps = sorted(values)
    size = max(1, math.ceil(len(steps) / _STRETCHES))
    stretches = []
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        numbers = [values[step] for step in part]
        stretches.append(_Stretch(part[0], part[-1], min(numbers), median(numbers), max(numbers)))
    return stretches


def _curve(
    id: str, title: str, description: str, curves: Mapping[str, Mapping[int, float]], label: str, unit: str = ""
) -> Chart | Note | None:
    """Values by step: one run has a dot for each value and a line of medians, several runs have a line each.

    A Note where no run has more than two values; None without values.
    """
    curves = {name: values for name, values in curves.items() if values}
    if not curves:
        return None
    if max(map(len, curves.values())) < _LEAST_POINTS:
        return Note(title, _steps_in_words(curves, unit))
    if any(len(values) > _STRETCHES for values in curves.values()):
        description += " The line is the median of each stretch of steps."
    lines = _curve_lines(curves)
    numbers = [0.0]
    for line in lines:
        numbers += [y for _, y in line.points]
    y = value_axis(numbers, label)
    first = min(map(min, curves.values()))
    last = max(map(max, curves.values()))
    x = step_axis(first, last, _beside(y))
    return Chart(id, title, description, _curve_table(curves), x, y=y, lines=tuple(lines))


def _curve_lines(curves: Mapping[str, Mapping[int, float]]) -> list[Line]:
    """A line of medians for each run; a single run also has its values as dots, unless there are too many."""
    lines = []
    for number, (name, values) in enumerate(curves.items()):
        points = []
        for stretch in _stretches(values):
            points.append(((stretch.first + stretch.last) / 2, stretch.median))
        if len(curves) == 1:
            name = "median"
        lines.append(Line(name, tuple(points), f"s{number % 4}"))
    if len(curves) > 1:
        return lines
    (values,) = curves.values()
    if _STRETCHES < len(values) <= _MOST_DOTS:
        lines.insert(0, Line("each step", tuple(values.items()), "faint", dots=True))
    return lines


def _curve_table(curves: Mapping[str, Mapping[int, float]]) -> Table:
    """A row for each stretch of steps; the runs are named only where there are several."""
    columns = ("run", "steps", "lowest", "median", "highest")
    rows = []
    for name, values in curves.items():
        for stretch in _stretches(values):
            steps = f"{stretch.first} to {stretch.last}"
            if stretch.first == stretch.last:
                steps = f"{stretch.first}"
            numbers = map(number_text, (stretch.lowest, stretch.median, stretch.highest))
            rows.append((name, steps, *numbers))
    right = frozenset(columns[1:])
    if len(curves) == 1:
        return Table(columns[1:], [row[1:] for row in rows], right)
    return Table(columns, rows, right)


def _steps_in_words(curves: Mapping[str, Mapping[int, float]], unit: str) -> str:
    """`Step 5: 10,920 ms, step 6: 10,940 ms.`: a sentence for each run, with its name if there are several."""
    sentences = []
    for name, values in curves.items():
        steps = []
        for step in sorted(values):
            steps.append(f"step {step}: {number_text(values[step])} {unit}".rstrip())
        numbers = ", ".join(steps)
        if len(curves) > 1:
            sentences.append(f"{name}, {numbers}.")
        else:
            sentences.append(f"{numbers.capitalize()}.")
    return " ".join(sentences)


def step_chart(record: Record) -> Chart | Note | None:
    """The device time of each step of the window; None for a record without any."""
    window = record.window
    if window is None or not window.step_seconds:
        return None
    skipped = window.steps / len(window.step_seconds)
    milliseconds = {}
    for number, seconds in enumerate(window.step_seconds):
        milliseconds[window.first_step + int(number * skipped)] = 1000 * seconds
    description = (
        f"Device time of the steps that the speed is computed from, on rank {window.rank or 0}, the slowest."
    )
    if window.step_median is not None:
        description += f" Median {number_text(1000 * window.step_median)} ms."
    if window.drift is not None:
        description += f" The second half takes {1 + window.drift:.3f} times as long as the first."
    return _curve("steps", "Step times over the window", description, {"": milliseconds}, "ms", "ms")


def clock_chart(record: Record) -> Chart | None:
    """The clock of each device during the window, and how long it was throttled; None without clocks."""
    if record.telemetry is None:
        return None
    rows, cells = [], []
    for device in record.telemetry.devices:
        busy = device.sm_clock_busy_mhz
        if busy is None:
            busy = device.sm_clock_mean_mhz
        if busy is None:
            continue
        lowest, highest = device.sm_clock_min_mhz or busy, device.sm_clock_max_mhz or busy
        ends = (min(busy, lowest), max(busy, highest))
        text = f"{number_text(busy)} MHz"
        tone = "s0"
        slowed = throttled([device])
        if slowed:
            text += f", throttled {max(slowed.values()):.1f} s"
            tone = "bad"
        rows.append(ChartRow(f"device {device.index}", busy, text, ends, tone))
        reasons = throttled([device], at_own_limit=True)
        reason_text = ", ".join(f"{reason} {seconds:.1f} s" for reason, seconds in reasons.items())
        cells.append((f"{device.index}", number_text(busy), interval(ends), reason_text or "no"))
    description = (
        "A dot is the mean while the device was busy; the line reaches from the lowest sample to the highest allowed."
    )
    table = Table(("device", "MHz", "lowest to allowed", "throttled"), cells, frozenset({"MHz", "lowest to allowed"}))
    return row_chart("clocks", "Clocks and throttling", description, rows, table, label="MHz", shown=(0.0,))


def loss_chart(curves: Mapping[str, LossCurve]) -> Chart | Note | None:
    """The losses of runs by step, each under the name of its run; None without any."""
    losses = {}
    for name, curve in curves.items():
        losses[visible(name)] = {step: loss for step, loss in curve.items() if loss is not None}
    return _curve("losses", "Loss by step", "The loss of each step.", losses, "loss")


def roof_chart(record: Record, device: DeviceModel | None) -> Chart | None:
    """The share of its published peaks that a device reached; None where no measurement has a published peak."""
    rows, cells, devices = [], [], []
    for measurement in record.measurements:
        peak = _peak(measurement, device)
        if not peak:
            continue
        scale, unit = scale_of(measurement)
        rates = measurement.devices or (measurement.rate,)
        share, of_peak = measurement.rate / peak, f"{number_text(peak / scale)} {unit}"
        ends = (min(rates) / peak, max(rates) / peak)
        rows.append(ChartRow(measurement.name, share, f"{share:.0%} of {of_peak}", ends))
        cells.append((measurement.name, f"{share:.1%}", of_peak))
        devices.append(slowest_of(record, measurement))
    description = "1 is the peak of the datasheet. A line reaches from the slowest device to the fastest."
    table = Table(("measured", "share", "peak"), cells, frozenset({"share", "peak"}))
    table = with_slowest(table, devices, "slowest device", place=3)
    return row_chart(
        "roofs",
        "Roofs against peaks",
        description,
        rows,
        table,
        label="share of the peak",
        target=1.0,
        shown=(0.0, 1.0),
    )


def rate_charts(record: Record, device: DeviceModel | None) -> list[Chart | None]:
    """The rates of a device that have no published peak: a chart for each unit."""
    products = _rate_chart(record, device, "TFLOP/s", "products", "Matrix products")
    copies = _rate_chart(record, device, "GB/s", "copies", "Memory, copies and collectives")
    return [products, copies]


def _rate_chart(record: Record, device: DeviceModel | None, unit: str, id: str, title: str) -> Chart | None:
    rows, cells, devices = [], [], []
    for measurement in record.measurements:
        scale, measured_in = scale_of(measurement)
        if measured_in != unit or _peak(measurement, device):
            continue
        rate = measurement.rate / scale
        if measurement.bus_rate is not None:
            rate = measurement.bus_rate / scale
        rows.append(ChartRow(measurement.name, rate, f"{number_text(rate)} {unit}"))
        cells.append((measurement.name, number_text(rate)))
        devices.append(slowest_of(record, measurement))
    description = f"{unit} of one device; the datasheet has no peak for these."
    if unit == "GB/s":
        description += " A collective's rate is that on the bus."
    table = Table(("measured", unit), cells, frozenset({unit}))
    table = with_slowest(table, devices, "slowest device", place=2)
    return row_chart(id, title, description, rows, table, label=unit, shown=(0.0,))


def scale_of(measurement: Measurement) -> tuple[float, str]:
    """The divisor of a rate and the unit in which it is then shown: 1e12 and TFLOP/s, or 1e9 and GB/s."""
    if measurement.unit == "FLOP/s":
        return 1e12, "TFLOP/s"
    return 1e9, "GB/s"


def slowest_of(record: Record, measurement: Measurement) -> SlowestDevice | None:
    """The slowest device of a measurement, in the unit of `scale_of`; None for one device, and for a collective.

    A measurement of many devices does not list them; the metric of the same name has the slowest one.
    """
    scale, _ = scale_of(measurement)
    slowest = slowest_device([rate / scale for rate in measurement.devices])
    if slowest is not None:
        return SlowestDevice(**slowest)
    metric = record.metric(measurement.name)
    if metric is None:
        return None
    return metric.slowest_device


def _peak(measurement: Measurement, device: DeviceModel | None) -> float | None:
    """The published peak of what was measured."""
    if device is None:
        return None
    bandwidth = device.limits.memory_bandwidth
    if measurement.name == "memory_bandwidth" and bandwidth is not None:
        return float(bandwidth.value)
    return device.flops.get(measurement.precision or "")


@dataclass(frozen=True)
class Run:
    """A run in a chart of runs."""

    created_at: str
    name: str
    value: float
    ci95: tuple[float, float] | None = None
    host: str | None = None

    @property
    def text(self) -> str:
        """`675.1 on node-17, 2026-11-26 10:55`."""
        created = self.created_at[:16].replace("T", " ")
        if self.host is None:
            return f"{number_text(self.value)}, {created}"
        return f"{number_text(self.value)} on {visible(self.host)}, {created}"


def run_chart(
    runs: Sequence[Run], title: str, label: str, *, band: tuple[float, float] | None = None, id: str = "runs"
) -> Chart | Note | None:
    """All runs from the oldest to the newest, which is marked; a Note for two runs, None for fewer."""
    newest = sorted(runs, key=lambda run: (run.created_at, run.name))[-RUNS_SHOWN:]
    if len(newest) < 2:
        return None
    if len(newest) < _LEAST_POINTS:
        return Note(title, f"{len(newest)} runs, {label}: {'; '.join(run.text for run in newest)}.")
    numbered = [*enumerate(newest, 1)]
    earlier, last = numbered[:-1], numbered[-1:]
    lines = (_run_line("earlier runs", "s0", earlier), _run_line("newest run", "new", last))
    numbers = _around(band)
    if band is None:
        numbers.append(0.0)
    for run in newest:
        numbers += (run.value, *(run.ci95 or ()))
    y = value_axis(numbers, label)
    dated = numbered
    if len(newest) > _DATED:
        dated = [numbered[0], numbered[-1]]
    days = tuple((number, run.created_at[:10]) for number, run in dated)
    hosts = []
    for number, run in dated:
        if run.host is not None:
            hosts.append((number, brief(visible(run.host), _HOST)))
    x = Axis(1, len(newest), _beside(y) + _HALF_DATE, _RIGHT - _HALF_DATE, "", days)
    count = f"{len(runs)} runs"
    if len(runs) > len(newest):
        count = f"The newest {len(newest)} of {len(runs):,} runs"
    description = f"{count}, the oldest on the left. The newest has {newest[-1].text}."
    target = None
    if band is not None:
        target = 1.0
    table = _run_table(newest, label)
    return Chart(id, title, description, table, x, y=y, lines=lines, band=band, target=target, hosts=tuple(hosts))


def _run_line(name: str, tone: str, numbered: Sequence[tuple[int, Run]]) -> Line:
    """Runs as dots, by their number from the oldest."""
    points, intervals, titles = [], [], []
    for number, run in numbered:
        points.append((number, run.value))
        titles.append(run.text)
        if run.ci95 is not None:
            intervals.append((number, *run.ci95))
    return Line(name, tuple(points), tone, dots=True, intervals=tuple(intervals), titles=tuple(titles))


def _run_table(runs: Sequence[Run], label: str) -> Table:
    """A row for each run, the newest first."""
    rows = []
    for run in reversed(runs):
        rows.append((run.created_at, run.host or "-", run.name, number_text(run.value), interval(run.ci95)))
    columns = ("created", "host", "record", label, "95 % interval")
    return Table(columns, rows, frozenset({label, "95 % interval"}))
