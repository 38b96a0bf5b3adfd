"""The charts of a report: what each of them shows of records and verdicts, and the same numbers as a table.

`site`, the page of a certificate and the generated pictures of the docs make charts here; the template `charts.j2`
draws them. There are two kinds: a chart of rows has one value in each row and an x axis, and a chart of lines has an
x axis of steps or runs and a y axis of values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from flagbench.console.page import Table
from flagbench.console.terminal import brief, visible
from flagbench.manifests.device import DeviceModel
from flagbench.records.model import DeviceTelemetry, Measurement, Record, SlowestDevice
from flagbench.report.axes import (
    FOOT,
    HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Mark,
    left_of_chart,
    make_axis,
    make_step_axis,
    make_value_axis,
)
from flagbench.report.verdict_page import STYLES, with_slowest
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict.claim_limits import HIGH, LOW
from flagbench.verdict.disturbance import find_throttling
from flagbench.verdict.losses import LossCurve
from flagbench.verdict.result import Ratio, number_text
from flagbench_core.evidence.slow_devices import slowest_device

ROW_HEIGHT = 44
"""Height of a row of a chart of rows; `templates/charts.j2` has it, too."""
_SIDE_MARGIN = 10
"""Room to the left and the right of a row's text."""
_AXIS_MARGIN = 20
"""Room to the left and the right of the x axis of a chart of rows, so that the numbers at its ends fit."""
_LABEL_WIDTH = 7.9
"""Average width of a character of a row's label, at most."""
_VALUE_WIDTH = 9.3
"""Average width of a character of a row's value, which is bold, at most."""
_BAND_MARGIN = 1.5
"""An axis reaches this many times as far from 1 as the shaded band, so that there is space around the band."""

_MOST_STRETCHES = 60
"""Most stretches into which the steps of a run are summarised."""
_MOST_DOTS = 2000
"""A run with more steps has no dot for each step."""
_FEWEST_POINTS = 3
"""Fewest points of a chart; fewer are written as a `Note`."""
_CURVE_COLOURS = 4
"""The style sheet has colours `s0` to `s3` for the lines of a chart; a fifth line has the first colour again."""

MOST_RUNS = 200
"""Most runs in one chart; the newest are kept."""
_MOST_DATED_RUNS = 4
"""Up to this many runs, each has its date and host below its dot; of more runs, only the first and the last."""
_HALF_DATE_WIDTH = 44
"""Half the width of a date below a dot."""
_MOST_HOST_CHARACTERS = 12
"""Most characters of a host's name below a dot."""


@dataclass(frozen=True)
class ChartRow:
    """One row of a chart of rows: a value as a dot, and its interval as a line."""

    label: str
    """The text at the left of the row."""
    value: float
    text: str
    """The value as it is written at the right of the row."""
    ends: tuple[float, float] | None = None
    """The lower and the upper end of the interval; None for a value without an interval."""
    tone: str = "plain"
    """The class of the style sheet that colours the row."""


@dataclass(frozen=True)
class Line:
    """A line through points, or dots without a line, in a chart with two axes."""

    name: str
    """The name in the key of the chart."""
    points: tuple[tuple[float, float], ...]
    """The x and the y value of each point, in the units of the axes."""
    tone: str
    """The class of the style sheet that colours the line."""
    dots: bool = False
    """Whether the points are drawn as dots that no line connects."""
    intervals: tuple[tuple[float, float, float], ...] = ()
    """The x value, the lower and the upper end of each interval; a point need not have an interval."""
    titles: tuple[str, ...] = ()
    """A tooltip for each dot; empty if the dots have no tooltips."""


@dataclass(frozen=True)
class Note:
    """A sentence in place of a chart with too few values."""

    title: str
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart of rows, which has `rows`, or a chart of lines, which has `y` and `lines`."""

    id: str
    """The name of the chart, by which a page refers to its parts."""
    title: str
    description: str
    """What the chart shows, in a few sentences below it."""
    table: Table
    """The same numbers as a table."""
    x: Axis
    rows: tuple[ChartRow, ...] = ()
    y: Axis | None = None
    lines: tuple[Line, ...] = ()
    band: tuple[float, float] | None = None
    """The lower and the upper end of a shaded range of values: on the x axis of rows, on the y axis of lines."""
    target: float | None = None
    """A value that is marked by a line, on the same axis as `band`."""
    hosts: tuple[tuple[float, str], ...] = ()
    """Names of hosts that are written below the numbers of the x axis, each after the x value it belongs to."""

    @property
    def left(self) -> float:
        """The x coordinate at which a chart of lines begins."""
        assert self.y is not None
        return left_of_chart(self.y)

    @property
    def height(self) -> int:
        """The height of the picture."""
        if self.y:
            return HEIGHT
        return ROW_HEIGHT * len(self.rows) + TOP + FOOT

    def path(self, line: Line) -> str:
        """The SVG path of a line, or of all its dots."""
        if line.dots:
            return "".join(self.dots(line))
        return "M" + "L".join(self._coordinates(line))

    def dots(self, line: Line) -> list[str]:
        """The SVG path of each dot: a stroke without length, which round caps make visible."""
        return [f"M{point}h0" for point in self._coordinates(line)]

    def _coordinates(self, line: Line) -> list[str]:
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
    """Return a chart of rows, or None if there are no rows.

    Args:
        label: the label of the x axis.
        shown: numbers that are on the x axis even if no row reaches them.
    """
    if not rows:
        return None
    numbers = [*_range_around_band(band), *shown]
    for row in rows:
        numbers.append(row.value)
        if row.ends is not None:
            numbers += row.ends
    x = make_axis(numbers, _AXIS_MARGIN, WIDTH - _AXIS_MARGIN, label)
    rows_that_fit = [_shorten_label(row) for row in rows]
    return Chart(id, title, description, table, x, tuple(rows_that_fit), band=band, target=target)


def _shorten_label(row: ChartRow) -> ChartRow:
    """Return the row with a label that fits beside its value."""
    value_width = _VALUE_WIDTH * (len(row.text) + 1)
    room = RIGHT - _SIDE_MARGIN - value_width
    return replace(row, label=brief(row.label, int(room / _LABEL_WIDTH)))


_CLASSES = {"bold green": "good", "bold red": "bad", "bold yellow": "doubt", "bold": "cited"}
"""The class of the style sheet for each style of the terminal."""
TONES = {outcome: _CLASSES[style] for outcome, style in STYLES.items()}
"""The class of the style sheet for each verdict, or outcome of a check."""


def ratio_row(label: str, ratio: Ratio, outcome: str) -> ChartRow:
    """Return the row of a ratio with its interval, in the colour of its verdict or of the outcome of its check."""
    return ChartRow(label, ratio.value, f"{ratio.value:.3f} {outcome}", ratio.ci95, TONES[outcome])


def ratio_chart(ratios: Mapping[str, tuple[Ratio, str]]) -> Chart | None:
    """Return a chart of ratios to a published value, with the band in which a verdict is REPRODUCED.

    Args:
        ratios: each ratio and its verdict, by the label of its row. Without any, the result is None.
    """
    rows = []
    cells = []
    for label, (ratio, verdict) in ratios.items():
        rows.append(ratio_row(label, ratio, verdict))
        ends = "-"
        if ratio.ci95 is not None:
            low, high = ratio.ci95
            ends = f"{low:.3f} to {high:.3f}"
        cells.append((label, f"{ratio.value:.3f}", ends, verdict))
    description = (
        f"1 is the published value. A line is a 95 % interval, the shaded band {LOW:.2f} to {HIGH:.2f}: "
        "the verdict is decided where a whole line lies inside the band or outside it."
    )
    columns = ("measured", "ratio", "95 % interval", "verdict")
    return row_chart(
        "ratio",
        "Speed against the published row",
        description,
        rows,
        Table(columns, cells, right=frozenset({"ratio", "95 % interval"})),
        label="ratio to the published value",
        band=(LOW, HIGH),
        target=1.0,
    )


def verdict_chart(result: VerifyResult) -> Chart | None:
    """Return a chart of the ratios of a verdict, the one that decides it first; None if it has no ratio.

    Only metrics that can be compared with the published row have a ratio. A verdict REFERENCE has no chart, because
    its row is only cited: no limits apply to it.
    """
    if result.verdict is Verdict.REFERENCE:
        return None
    ratios = {}
    for metric in sorted(result.metrics, key=lambda metric: metric.name != result.gate):
        if metric.comparable and metric.ratio is not None and metric.verdict is not None:
            ratios[metric.name] = (metric.ratio, metric.verdict.value)
    return ratio_chart(ratios)


def _range_around_band(band: tuple[float, float] | None) -> list[float]:
    """Return the numbers that an axis must cover to show a band with space around it; empty without a band."""
    if band is None:
        return []
    low, high = band
    return [1 + _BAND_MARGIN * (low - 1), 1 + _BAND_MARGIN * (high - 1)]


def interval_text(ends: tuple[float, float] | None) -> str:
    """Return an interval as text, such as `1,490 to 1,530`; `-` for None."""
    if ends is None:
        return "-"
    low, high = ends
    return f"{number_text(low)} to {number_text(high)}"


StepValues = Mapping[int, float]
"""A value for each step of a run, such as its loss."""


class _Stretch(NamedTuple):
    """A summary of the values of consecutive steps."""

    first_step: int
    last_step: int
    lowest: float
    median: float
    highest: float


def _divide_into_stretches(values: StepValues) -> list[_Stretch]:
    """Return the values in at most _MOST_STRETCHES stretches of nearly equal length."""
    steps = sorted(values)
    size = max(1, math.ceil(len(steps) / _MOST_STRETCHES))
    stretches = []
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        numbers = [values[step] for step in part]
        stretches.append(_Stretch(part[0], part[-1], min(numbers), median(numbers), max(numbers)))
    return stretches


def _chart_by_step(
    id: str, title: str, description: str, curves: Mapping[str, StepValues], label: str, unit: str = ""
) -> Chart | Note | None:
    """Return a chart of values by step, with a line for each run; if a single run is shown, also with dots.

    It is a Note if no run has enough values for a chart, and None if no run has a value.

    Args:
        curves: the values of each run, by its name.
        label: the label of the y axis.
        unit: the unit of the values in a Note.
    """
    curves = {name: values for name, values in curves.items() if values}
    if not curves:
        return None
    most_values = max(map(len, curves.values()))
    if most_values < _FEWEST_POINTS:
        return Note(title, _steps_in_words(curves, unit))
    if most_values > _MOST_STRETCHES:
        description += " The line is the median of each stretch of steps."
    lines = _curve_lines(curves)
    numbers = [0.0]  # the y axis begins at zero
    for line in lines:
        numbers += [y for _, y in line.points]
    y_axis = make_value_axis(numbers, label)
    first_step = min(map(min, curves.values()))
    last_step = max(map(max, curves.values()))
    x_axis = make_step_axis(first_step, last_step, left_of_chart(y_axis))
    return Chart(id, title, description, _curve_table(curves), x_axis, y=y_axis, lines=tuple(lines))


def _curve_lines(curves: Mapping[str, StepValues]) -> list[Line]:
    """Return a line of medians for each run; a single run also has its values as dots, unless there are too many."""
    lines = []
    for number, (name, values) in enumerate(curves.items()):
        points = []
        for stretch in _divide_into_stretches(values):
            middle = (stretch.first_step + stretch.last_step) / 2
            points.append((middle, stretch.median))
        if len(curves) == 1:
            name = "median"
        lines.append(Line(name, tuple(points), f"s{number % _CURVE_COLOURS}"))
    if len(curves) > 1:
        return lines
    (values,) = curves.values()
    if _MOST_STRETCHES < len(values) <= _MOST_DOTS:
        dots = Line("each step", tuple(values.items()), "faint", dots=True)
        lines.insert(0, dots)  # below the line
    return lines


def _curve_table(curves: Mapping[str, StepValues]) -> Table:
    """Return a table with a row for each stretch of steps; the runs are named only if there are several."""
    columns = ("run", "steps", "lowest", "median", "highest")
    rows = []
    for name, values in curves.items():
        for stretch in _divide_into_stretches(values):
            steps = f"{stretch.first_step} to {stretch.last_step}"
            if stretch.first_step == stretch.last_step:
                steps = f"{stretch.first_step}"
            numbers = map(number_text, (stretch.lowest, stretch.median, stretch.highest))
            rows.append((name, steps, *numbers))
    right = frozenset(columns[1:])
    if len(curves) == 1:
        return Table(columns[1:], [row[1:] for row in rows], right)
    return Table(columns, rows, right)


def _steps_in_words(curves: Mapping[str, StepValues], unit: str) -> str:
    """Return the values in a sentence for each run, such as `Step 5: 10,920 ms, step 6: 10,940 ms.`

    A sentence begins with the name of the run if there are several.
    """
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
    """Return a chart of the device time of each step of the window, from which the speed of a run is computed.

    It is None if the record has no step times.
    """
    window = record.window
    if window is None or not window.step_seconds:
        return None
    # A record has the times of at most 2000 steps; those of a longer window are evenly thinned.
    steps_per_time = window.steps / len(window.step_seconds)
    milliseconds = {}
    for number, seconds in enumerate(window.step_seconds):
        step = window.first_step + int(number * steps_per_time)
        milliseconds[step] = 1000 * seconds
    description = (
        f"Device time of the steps that the speed is computed from, on rank {window.rank or 0}, the slowest."
    )
    if window.step_median is not None:
        description += f" Median {number_text(1000 * window.step_median)} ms."
    if window.drift is not None:
        description += f" The second half takes {1 + window.drift:.3f} times as long as the first."
    return _chart_by_step("steps", "Step times over the window", description, {"": milliseconds}, "ms", "ms")


def clock_chart(record: Record) -> Chart | None:
    """Return a chart of each device's clock, and of how long it was throttled; None if no clock was recorded."""
    if record.telemetry is None:
        return None
    rows = []
    cells = []
    for device in record.telemetry.devices:
        clock = device.sm_clock_busy_mhz
        if clock is None:
            clock = device.sm_clock_mean_mhz  # the mean over the run, idle time included
        if clock is None:
            continue
        row = _clock_row(device, clock)
        rows.append(row)
        cells.append((f"{device.index}", number_text(clock), interval_text(row.ends), _throttle_reasons(device)))
    description = (
        "A dot is the mean while the device was busy; the line reaches from the lowest sample to the highest allowed."
    )
    columns = ("device", "MHz", "lowest to allowed", "throttled")
    table = Table(columns, cells, right=frozenset({"MHz", "lowest to allowed"}))
    return row_chart("clocks", "Clocks and throttling", description, rows, table, label="MHz", shown=(0.0,))


def _clock_row(device: DeviceTelemetry, clock: float) -> ChartRow:
    """Return the row of a device whose mean clock was `clock` MHz."""
    lowest = device.sm_clock_min_mhz or clock
    highest = device.sm_clock_max_mhz or clock
    ends = (min(clock, lowest), max(clock, highest))
    text = f"{number_text(clock)} MHz"
    tone = "s0"
    seconds_by_reason = find_throttling([device])
    if seconds_by_reason:
        text += f", throttled {max(seconds_by_reason.values()):.1f} s"
        tone = "bad"
    return ChartRow(f"device {device.index}", clock, text, ends, tone)


def _throttle_reasons(device: DeviceTelemetry) -> str:
    """Return for how long each reason lowered the clock, also a device's own power limit; `no` without reasons."""
    reasons = []
    for reason, seconds in find_throttling([device], at_own_limit=True).items():
        reasons.append(f"{reason} {seconds:.1f} s")
    return ", ".join(reasons) or "no"


def loss_chart(curves: Mapping[str, LossCurve]) -> Chart | Note | None:
    """Return a chart of the losses of runs by step; `curves` has them by the name of the run.

    It is a Note if there are too few losses for a chart, and None if there are none.
    """
    losses = {}
    for name, curve in curves.items():
        losses[visible(name)] = {step: loss for step, loss in curve.items() if loss is not None}
    return _chart_by_step("losses", "Loss by step", "The loss of each step.", losses, "loss")


def roof_chart(record: Record, device: DeviceModel | None) -> Chart | None:
    """Return a chart of the measured rates as shares of the device's published peaks.

    Measurements without a published peak are left out (`rate_charts` shows them); without any other, it is None.
    """
    rows = []
    cells = []
    slowest_devices = []
    for measurement in record.measurements:
        peak = _published_peak(measurement, device)
        if not peak:
            continue
        shown_as = scale_of(measurement)
        peak_text = f"{number_text(peak / shown_as.divisor)} {shown_as.unit}"
        share = measurement.rate / peak
        rates = measurement.devices or (measurement.rate,)
        ends = (min(rates) / peak, max(rates) / peak)
        rows.append(ChartRow(measurement.name, share, f"{share:.0%} of {peak_text}", ends))
        cells.append((measurement.name, f"{share:.1%}", peak_text))
        slowest_devices.append(slowest_of(record, measurement))
    description = "1 is the peak of the datasheet. A line reaches from the slowest device to the fastest."
    table = Table(("measured", "share", "peak"), cells, frozenset({"share", "peak"}))
    table = with_slowest(table, slowest_devices, "slowest device", place=3)
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


class Scale(NamedTuple):
    """How a rate is shown: divided by `divisor`, in `unit`."""

    divisor: float
    unit: str


_TERAFLOPS = Scale(1e12, "TFLOP/s")
_GIGABYTES = Scale(1e9, "GB/s")


def rate_charts(record: Record, device: DeviceModel | None) -> list[Chart | None]:
    """Return the charts of the measured rates that have no published peak: one of FLOP/s and one of bytes/s.

    A chart is None if there is no such rate.
    """
    matmuls = _rate_chart(record, device, _TERAFLOPS, "products", "Matrix products")
    copies = _rate_chart(record, device, _GIGABYTES, "copies", "Memory, copies and collectives")
    return [matmuls, copies]


def _rate_chart(record: Record, device: DeviceModel | None, scale: Scale, id: str, title: str) -> Chart | None:
    """Return the chart of the rates that `scale` is for; None if there is none."""
    rows = []
    cells = []
    slowest_devices = []
    for measurement in record.measurements:
        if scale_of(measurement) != scale or _published_peak(measurement, device):
            continue
        rate = measurement.rate / scale.divisor
        if measurement.bus_rate is not None:
            rate = measurement.bus_rate / scale.divisor
        rows.append(ChartRow(measurement.name, rate, f"{number_text(rate)} {scale.unit}"))
        cells.append((measurement.name, number_text(rate)))
        slowest_devices.append(slowest_of(record, measurement))
    description = f"{scale.unit} of one device; the datasheet has no peak for these."
    if scale is _GIGABYTES:
        description += " A collective's rate is that on the bus."
    table = Table(("measured", scale.unit), cells, frozenset({scale.unit}))
    table = with_slowest(table, slowest_devices, "slowest device", place=2)
    return row_chart(id, title, description, rows, table, label=scale.unit, shown=(0.0,))


def scale_of(measurement: Measurement) -> Scale:
    """Return how the rate of a measurement is shown: in TFLOP/s or in GB/s."""
    if measurement.unit == "FLOP/s":
        return _TERAFLOPS
    return _GIGABYTES


def slowest_of(record: Record, measurement: Measurement) -> SlowestDevice | None:
    """Return the slowest device of a measurement, with its rate in the unit of `scale_of`.

    It is None if a single device was measured, or a collective. A measurement of more than 64 devices does not list
    their rates; the metric of the same name has the slowest device.
    """
    divisor = scale_of(measurement).divisor
    slowest = slowest_device([rate / divisor for rate in measurement.devices])
    if slowest is not None:
        return SlowestDevice(**slowest)
    metric = record.metric(measurement.name)
    if metric is None:
        return None
    return metric.slowest_device


def _published_peak(measurement: Measurement, device: DeviceModel | None) -> float | None:
    """Return the published peak of the measured operation, in FLOP/s or bytes/s; None if there is none."""
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
    """The time at which its record was made, such as 2026-11-26T10:55:00Z."""
    name: str
    """The id of its record."""
    value: float
    """The number that the chart shows, such as the speed."""
    ci95: tuple[float, float] | None = None
    """The 95 % interval of the value."""
    host: str | None = None
    """The name of the host; None if the record does not have it."""

    @property
    def text(self) -> str:
        """The run in a few words, such as `675.1 on node-17, 2026-11-26 10:55`."""
        up_to_minutes = len("2026-11-26T10:55")
        created = self.created_at[:up_to_minutes].replace("T", " ")
        if self.host is None:
            return f"{number_text(self.value)}, {created}"
        return f"{number_text(self.value)} on {visible(self.host)}, {created}"


def run_chart(
    runs: Sequence[Run], title: str, label: str, *, band: tuple[float, float] | None = None, id: str = "runs"
) -> Chart | Note | None:
    """Return a chart of runs from the oldest to the newest, which is marked.

    It is a Note if there are too few runs for a chart, and None if there is one or none.

    Args:
        label: the name and unit of the runs' values, for the y axis.
        band: the lower and the upper limit of a ratio, if the values are ratios to a published value.
    """
    oldest_first = sorted(runs, key=lambda run: (run.created_at, run.name))
    shown = oldest_first[-MOST_RUNS:]
    if len(shown) < 2:
        return None
    if len(shown) < _FEWEST_POINTS:
        return Note(title, f"{len(shown)} runs, {label}: {'; '.join(run.text for run in shown)}.")
    numbered = list(enumerate(shown, start=1))
    lines = (_run_line("earlier runs", "s0", numbered[:-1]), _run_line("newest run", "new", numbered[-1:]))
    y_axis = make_value_axis(_numbers_on_axis(shown, band), label)
    dated = numbered
    if len(shown) > _MOST_DATED_RUNS:
        dated = [numbered[0], numbered[-1]]
    count = f"{len(runs)} runs"
    if len(runs) > len(shown):
        count = f"The newest {len(shown)} of {len(runs):,} runs"
    target = None
    if band is not None:
        target = 1.0
    return Chart(
        id,
        title,
        f"{count}, the oldest on the left. The newest has {shown[-1].text}.",
        _run_table(shown, label),
        _run_axis(dated, len(shown), left_of_chart(y_axis)),
        y=y_axis,
        lines=lines,
        band=band,
        target=target,
        hosts=_host_names(dated),
    )


def _numbers_on_axis(runs: Sequence[Run], band: tuple[float, float] | None) -> list[float]:
    """Return the numbers that the y axis of a chart of runs covers; without a band, zero is one of them."""
    numbers = _range_around_band(band)
    if band is None:
        numbers.append(0.0)
    for run in runs:
        numbers.append(run.value)
        if run.ci95 is not None:
            numbers += run.ci95
    return numbers


def _run_axis(dated: Sequence[tuple[int, Run]], count: int, left: float) -> Axis:
    """Return the x axis of `count` runs, with the days of some of them; `left` is where the chart begins."""
    days = []
    for number, run in dated:
        day = run.created_at[: len("2026-11-26")]
        days.append(Mark(number, day))
    return Axis(1, count, left + _HALF_DATE_WIDTH, RIGHT - _HALF_DATE_WIDTH, "", tuple(days))


def _host_names(dated: Sequence[tuple[int, Run]]) -> tuple[tuple[float, str], ...]:
    """Return the number and the host of each run whose host is known, shortened to fit below its dot."""
    hosts = []
    for number, run in dated:
        if run.host is not None:
            hosts.append((number, brief(visible(run.host), _MOST_HOST_CHARACTERS)))
    return tuple(hosts)


def _run_line(name: str, tone: str, numbered: Sequence[tuple[int, Run]]) -> Line:
    """Return runs as dots; the x value of each is its number, counted from the oldest run."""
    points: list[tuple[float, float]] = []
    intervals: list[tuple[float, float, float]] = []
    titles = []
    for number, run in numbered:
        points.append((number, run.value))
        titles.append(run.text)
        if run.ci95 is not None:
            intervals.append((number, *run.ci95))
    return Line(name, tuple(points), tone, dots=True, intervals=tuple(intervals), titles=tuple(titles))


def _run_table(runs: Sequence[Run], label: str) -> Table:
    """Return a table with a row for each run, the newest first."""
    rows = []
    for run in reversed(runs):
        rows.append((run.created_at, run.host or "-", run.name, number_text(run.value), interval_text(run.ci95)))
    columns = ("created", "host", "record", label, "95 % interval")
    return Table(columns, rows, frozenset({label, "95 % interval"}))
