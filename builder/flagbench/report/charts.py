"""Charts of a report: what each shows, as coordinates that `templates/charts.j2` draws, and as a table.

A chart is 480 units wide with text of 14, so that it can be read on a phone. Everything is rounded: the same numbers
give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

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

WIDTH, HEIGHT, ROW = 480, 250, 44
"""Of the picture, of one with two axes, and of a row."""
_LEFT, _RIGHT, _TOP, _FOOT, _EDGE = 52, 470, 12, 40, 10
_STRETCHES = 60
"""Most parts in which the steps of a run are summarised."""
_MOST_DOTS = 2000
RUNS_SHOWN = 200
"""Most runs in one chart, the newest."""
_LEAST, _FARTHEST = 1e-100, 1e15
"""No axis is shorter or goes beyond, whatever a record says."""
_MOST_DIGITS = 5
"""Of a number beside an axis, after its point."""
_LONG, _UNITS = 1e5, ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
"""From when on numbers beside an axis have a unit, and which."""
_MARK, _LABEL, _VALUE = 8.3, 7.9, 9.3
"""How wide a character of a number beside an axis, of a row's label and of its value is at most, on average."""
_LEAST_POINTS = 3
"""Fewer values are no chart: a `Note` says them."""
_DATED = 4
"""Most runs that have date and host below their dots; of more, the first and the last."""
_HALF_DATE, _HOST = 44, 12
"""Half the width of a date below a dot, and the characters of a host's name that fit."""


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
    """An axis with round numbers beside it, the first and last of which it reaches.

    The label of an axis without zero says from where to where it reaches.
    """
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
    marks = []
    for number in range(first, last + 1):
        value = number * step
        text = f"{value / unit:,.{digits}f}{suffix}" if digits <= _MOST_DIGITS else number_text(value)
        marks.append((value, text))
    if first > 0 or last < 0:
        label = f"{label} (axis from {marks[0][1]} to {marks[-1][1]})"
    return Axis(first * step, last * step, begin, end, label, tuple(marks))


def step_axis(first: int, last: int, begin: float) -> Axis:
    """An axis of steps, from the first to the last: whole numbers."""
    apart = 10 ** math.floor(math.log10(max(1, last - first)))
    if (last - first) / apart <= 2 and apart > 1:
        apart //= 5
    elif (last - first) / apart > 5:
        apart *= 2
    marks = range(-(-first // apart) * apart, last + 1, apart)
    return Axis(first, max(last, first + 1), begin, _RIGHT, "step", tuple((mark, f"{mark:,}") for mark in marks))


def value_axis(values: Sequence[float], label: str) -> Axis:
    """The y axis of a chart."""
    return axis(values, HEIGHT - _FOOT, _TOP + 14, label)


def _beside(y: Axis) -> float:
    """Where a chart begins for the numbers beside its y axis to be seen whole."""
    return max(_LEFT, round(10 + _MARK * max(len(text) for _, text in y.marks)))


@dataclass(frozen=True)
class ChartRow:
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
    titles: tuple[str, ...] = ()
    """What each dot says of itself; none where dots have nothing to say."""


@dataclass(frozen=True)
class Note:
    """What a chart would show of too few values, in words."""

    title: str
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart. `band` is shaded and `target` a line: across the x axis where there are `rows`, else the y axis."""

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
        """Of the picture."""
        return HEIGHT if self.y else ROW * len(self.rows) + _TOP + _FOOT

    def path(self, line: Line) -> str:
        """The path of a line, or of its dots."""
        return "".join(self.dots(line)) if line.dots else "M" + "L".join(self._points(line))

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
    ends = [end for row in rows for end in (row.value, *(row.ends or ()))]
    x = axis([*ends, *_around(band), *shown], _EDGE + 10, WIDTH - _EDGE - 10, label)
    fitting = []
    for row in rows:
        room = int((_RIGHT - _EDGE - _VALUE * (len(row.text) + 1)) / _LABEL)
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
    rows = [ratio_row(label, *ratio) for label, ratio in ratios.items()]
    cells = [
        (row.label, f"{row.value:.3f}", interval(row.ends, "{:.3f}".format), ratios[row.label][1]) for row in rows
    ]
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


def interval(ends: tuple[float, float] | None, text: Callable[[float], str] = number_text) -> str:
    """An interval as text; `-` for none."""
    return "-" if ends is None else f"{text(ends[0])} to {text(ends[1])}"


def _stretches(values: Mapping[int, float]) -> Iterator[tuple[int, int, float, float, float]]:
    """Steps in at most _STRETCHES parts: first and last step, lowest, median and highest value."""
    steps = sorted(values)
    size = max(1, math.ceil(len(steps) / _STRETCHES))
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        found = [values[step] for step in part]
        yield part[0], part[-1], min(found), median(found), max(found)


def _curve(
    id: str, title: str, description: str, curves: Mapping[str, Mapping[int, float]], label: str, unit: str = ""
) -> Chart | Note | None:
    """Values by step: of one run every value as a dot below the line of medians, of several their lines.

    Of runs with one or two values each these are said in words.
    """
    curves = {name: values for name, values in curves.items() if values}
    if not curves:
        return None
    alone = len(curves) == 1
    if max(map(len, curves.values())) < _LEAST_POINTS:
        return Note(title, _steps_in_words(curves, unit))
    parts = {name: [*_stretches(values)] for name, values in curves.items()}
    lines = []
    for number, (name, found) in enumerate(parts.items()):
        points = tuple(((first + last) / 2, mid) for first, last, _, mid, _ in found)
        lines.append(Line("median" if alone else name, points, f"s{number % 4}"))
    if any(len(values) > _STRETCHES for values in curves.values()):
        description += " The line is the median of each stretch of steps."
        if alone and len(values := next(iter(curves.values()))) <= _MOST_DOTS:
            lines.insert(0, Line("each step", tuple(values.items()), "faint", dots=True))
    seen = [y for line in lines for _, y in line.points]
    steps = [step for values in curves.values() for step in (min(values), max(values))]
    cells = [
        (name, f"{first} to {last}" if last > first else f"{first}", *map(number_text, numbers))
        for name, found in parts.items()
        for first, last, *numbers in found
    ]
    columns = ("run", "steps", "lowest", "median", "highest")
    table = Table(columns[alone:], [cell[alone:] for cell in cells], frozenset(columns[1:]))
    y = value_axis([0.0, *seen], label)
    x = step_axis(min(steps), max(steps), _beside(y))
    return Chart(id, title, description, table, x, y=y, lines=tuple(lines))


def _steps_in_words(curves: Mapping[str, Mapping[int, float]], unit: str) -> str:
    """`Step 5: 10,920 ms, step 6: 10,940 ms.`, a sentence for each run; of several runs each has its name."""
    sentences = []
    for name, values in curves.items():
        numbers = ", ".join(f"step {step}: {number_text(values[step])} {unit}".rstrip() for step in sorted(values))
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
    values = {window.first_step + int(n * skipped): 1000 * seconds for n, seconds in enumerate(window.step_seconds)}
    told = f"Device time of the steps that the speed is computed from, on rank {window.rank or 0}, the slowest."
    if window.step_median is not None:
        told += f" Median {number_text(1000 * window.step_median)} ms."
    if window.drift is not None:
        told += f" The second half takes {1 + window.drift:.3f} times as long as the first."
    return _curve("steps", "Step times over the window", told, {"": values}, "ms", "ms")


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
        reasons = throttled([device], at_own_limit=True)
        slowed = throttled([device])
        longest = f", throttled {max(slowed.values()):.1f} s" if slowed else ""
        text = f"{number_text(busy)} MHz{longest}"
        rows.append(ChartRow(f"device {device.index}", busy, text, ends, "bad" if slowed else "s0"))
        why = ", ".join(f"{why} {seconds:.1f} s" for why, seconds in reasons.items())
        cells.append((f"{device.index}", number_text(busy), interval(ends), why or "no"))
    told = (
        "A dot is the mean while the device was busy; the line reaches from the lowest sample to the highest allowed."
    )
    table = Table(("device", "MHz", "lowest to allowed", "throttled"), cells, frozenset({"MHz", "lowest to allowed"}))
    return row_chart("clocks", "Clocks and throttling", told, rows, table, label="MHz", shown=(0.0,))


def loss_chart(curves: Mapping[str, LossCurve]) -> Chart | Note | None:
    """The losses of runs by step, each under the name of its run; None without any."""
    losses = {
        visible(name): {step: loss for step, loss in curve.items() if loss is not None}
        for name, curve in curves.items()
    }
    return _curve("losses", "Loss by step", "The loss of each step.", losses, "loss")


def roof_chart(record: Record, device: DeviceModel | None) -> Chart | None:
    """What a device reached of its published peaks; None where it has none of what was measured."""
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
    told = "1 is the peak of the datasheet. A line reaches from the slowest device to the fastest."
    table = Table(("measured", "share", "peak"), cells, frozenset({"share", "peak"}))
    table = with_slowest(table, devices, "slowest device", place=3)
    label, shown = "share of the peak", (0.0, 1.0)
    return row_chart("roofs", "Roofs against peaks", told, rows, table, label=label, target=1.0, shown=shown)


def rate_charts(record: Record, device: DeviceModel | None) -> list[Chart | None]:
    """What a device reached where it has no published peak: a chart for each unit."""
    titles = {"TFLOP/s": "Matrix products", "GB/s": "Memory, copies and collectives"}
    charts = []
    for unit, title in titles.items():
        rows, cells, devices = [], [], []
        for measurement in record.measurements:
            scale, measured_in = scale_of(measurement)
            if measured_in != unit or _peak(measurement, device):
                continue
            rate = (measurement.rate if measurement.bus_rate is None else measurement.bus_rate) / scale
            rows.append(ChartRow(measurement.name, rate, f"{number_text(rate)} {unit}"))
            cells.append((measurement.name, number_text(rate)))
            devices.append(slowest_of(record, measurement))
        told = f"{unit} of one device; the datasheet has no peak for these."
        if unit == "GB/s":
            told += " A collective's rate is that on the bus."
        table = Table(("measured", unit), cells, frozenset({unit}))
        table = with_slowest(table, devices, "slowest device", place=2)
        id = "products" if unit == "TFLOP/s" else "copies"
        charts.append(row_chart(id, title, told, rows, table, label=unit, shown=(0.0,)))
    return charts


def scale_of(measurement: Measurement) -> tuple[float, str]:
    """The unit in which a rate is shown, and what it is divided by."""
    return (1e12, "TFLOP/s") if measurement.unit == "FLOP/s" else (1e9, "GB/s")


def slowest_of(record: Record, measurement: Measurement) -> SlowestDevice | None:
    """The slowest device of a measurement, in the unit of `scale_of`; None for one device, and for a collective.

    A measurement of many devices does not list them: then it is that of the metric of the same name.
    """
    scale, _ = scale_of(measurement)
    found = slowest_device([rate / scale for rate in measurement.devices])
    if found is not None:
        return SlowestDevice(**found)
    metric = record.metric(measurement.name)
    return None if metric is None else metric.slowest_device


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
    """A run of a chart of runs."""

    created_at: str
    name: str
    value: float
    ci95: tuple[float, float] | None = None
    host: str | None = None

    @property
    def text(self) -> str:
        """`675.1 on node-17, 2026-11-26 10:55`."""
        where = "" if self.host is None else f" on {visible(self.host)}"
        return f"{number_text(self.value)}{where}, {self.created_at[:16].replace('T', ' ')}"


def run_chart(
    runs: Sequence[Run], title: str, label: str, *, band: tuple[float, float] | None = None, id: str = "runs"
) -> Chart | Note | None:
    """All runs from the oldest to the newest, which is marked; two runs in words, None for fewer."""
    newest = sorted(runs, key=lambda run: (run.created_at, run.name))[-RUNS_SHOWN:]
    if len(newest) < 2:
        return None
    if len(newest) < _LEAST_POINTS:
        return Note(title, f"{len(newest)} runs, {label}: {'; '.join(run.text for run in newest)}.")
    numbered, last = [*enumerate(newest, 1)], len(newest)
    lines = tuple(
        Line(
            name,
            tuple((number, run.value) for number, run in part),
            tone,
            dots=True,
            intervals=tuple((number, *run.ci95) for number, run in part if run.ci95),
            titles=tuple(run.text for _, run in part),
        )
        for name, tone, part in (("earlier runs", "s0", numbered[:-1]), ("newest run", "new", numbered[-1:]))
    )
    seen = [run.value for run in newest] + [end for run in newest for end in run.ci95 or ()] + _around(band)
    y = value_axis(seen if band else [0.0, *seen], label)
    dated = numbered if last <= _DATED else [numbered[0], numbered[-1]]
    days = tuple((number, run.created_at[:10]) for number, run in dated)
    x = Axis(1, last, _beside(y) + _HALF_DATE, _RIGHT - _HALF_DATE, "", days)
    hosts = tuple((number, brief(visible(run.host), _HOST)) for number, run in dated if run.host is not None)
    count = f"{last} runs" if len(runs) == last else f"The newest {last} of {len(runs):,} runs"
    told = f"{count}, the oldest on the left. The newest has {newest[-1].text}."
    cells = [
        (run.created_at, run.host or "-", run.name, number_text(run.value), interval(run.ci95))
        for run in reversed(newest)
    ]
    table = Table(("created", "host", "record", label, "95 % interval"), cells, frozenset({label, "95 % interval"}))
    target = 1.0 if band else None
    return Chart(id, title, told, table, x, y=y, lines=lines, band=band, target=target, hosts=hosts)
