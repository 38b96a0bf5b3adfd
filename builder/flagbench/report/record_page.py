"""Stored records as a person reads them: `results ls` lists one in each row, and `results show` has a page of one.

A record holds the results of one run. The report has the same page of a record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flagbench.console.output import size_text
from flagbench.console.page import Block, Table
from flagbench.history.selection import outcome_of, speed_of, state_of
from flagbench.price import price_here
from flagbench.records.bundles import StoredBundle
from flagbench.records.index import Summary
from flagbench.records.model import Measurement, Metric, Record
from flagbench.records.scalars import SHORT_ID
from flagbench.records.store import StoredRecord
from flagbench.report.charts import interval_text, scale_of, slowest_of
from flagbench.report.verdict_page import NOTHING, setting_text, with_slowest
from flagbench.verdict.conditions import shown
from flagbench.verdict.efficiency import compute_efficiency
from flagbench.verdict.result import number_text
from flagbench_core.evidence.drift import lap_drifts

_COLUMNS = (
    "RECORD",
    "VERDICT",
    "RATIO",
    "SPEED",
    "HOST",
    "METRIC",
    "IMAGE",
    "PRESET",
    "CREATED",
    "STATE",
    "DURATION",
)
"""The columns of the listing."""
_DIGITS = 6
"""Significant digits of the numbers on the page of one record."""
_ROUNDING = 1e-6
"""Relative difference up to which two numbers of a record are the same, written with different rounding."""


def listing(entries: Sequence[StoredRecord]) -> Table:
    """Return a table of stored records with a row for each."""
    drop = ("DURATION", "STATE", "PRESET", "METRIC", "CREATED", "IMAGE", "HOST")
    rows = []
    for entry in entries:
        if entry.summary is None:
            rows.append(_unreadable_row(entry))
        else:
            rows.append(_row(entry, entry.summary))
    return Table(_COLUMNS, rows, frozenset({"RATIO"}), short=_short_ids(entries), drop=drop)


def _short_ids(entries: Sequence[StoredRecord]) -> dict[str, str]:
    """Return the abbreviation of each id: the random digits at its end.

    An id without such digits has no abbreviation, and neither have ids with the same digits.
    """
    record_ids: dict[str, set[str]] = {}
    for entry in entries:
        short = entry.record_id.rpartition("-")[2]
        if re.fullmatch(SHORT_ID, short):
            record_ids.setdefault(short, set()).add(entry.record_id)
    short_ids = {}
    for short, ids in record_ids.items():
        if len(ids) == 1:
            short_ids[ids.pop()] = short
    return short_ids


def _unreadable_row(entry: StoredRecord) -> list[str]:
    """Return the row of a record that is damaged or could not be read, in the order of _COLUMNS."""
    state = state_of(entry).value
    cells = dict.fromkeys(_COLUMNS, NOTHING)
    cells |= {
        "RECORD": entry.record_id,
        "VERDICT": state,
        "IMAGE": f"{entry.case}:{entry.stack}",
        "CREATED": entry.created_at,
        "STATE": state,
    }
    return list(cells.values())


def _row(entry: StoredRecord, summary: Summary) -> list[str]:
    """Return the row of a record that was read, in the order of _COLUMNS."""
    ratio = NOTHING
    if summary.ratio is not None:
        ratio = f"{summary.ratio[0]:.3f}"
    speed = speed_of(summary)
    metric = NOTHING
    if speed is not None:
        metric = summary.gate or NOTHING
    duration = NOTHING
    if summary.duration is not None:
        duration = _duration_text(summary.duration)
    return [
        entry.record_id,
        outcome_of(entry) or NOTHING,
        ratio,
        speed or NOTHING,
        summary.host or NOTHING,
        metric,
        f"{entry.case}:{entry.stack}",
        summary.preset,
        entry.created_at,
        summary.state,
        duration,
    ]


def _duration_text(duration: float) -> str:
    """Return a number of seconds as `12.5s`, `4m05s` or `3h07m`."""
    if duration < 60:
        return f"{duration:.1f}s"
    minutes, seconds = divmod(round(duration), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02}s"
    return f"{minutes // 60}h{minutes % 60:02}m"


def record_page(record: Record, bundles: Sequence[StoredBundle]) -> list[Block]:
    """Return the tables of one record: how its run ended, its metrics, conditions, checks and facts of training.

    `bundles` are those of its run: archives of files that a node kept. The last table lists them.
    """
    return [
        _facts_table(record),
        _metric_table(record),
        _measurement_table(record),
        lap_table(record),
        _absent_table(record),
        _condition_table(record),
        _check_table(record),
        Table(("TRAINING", "VALUE"), _training_rows(record), wrap=("VALUE",)),
        _bundle_table(bundles),
    ]


def _facts_table(record: Record) -> Table:
    """Return a table of what was run, when and where, how it ended, and its energy and price."""
    status = record.status
    energy_and_price = compute_efficiency(record, price_here())
    facts = {
        "id": record.record_id,
        "image": f"{record.case}:{record.stack}",
        "preset": record.preset,
        "created": record.created_at,
        "host": record.system.host,
        "status": f"{status.state} (exit code {status.exit_code}, in phase {status.phase})",
        "reason": status.reason,
        "fix": status.remedy,
        "config": record.config_digest,
    }
    if energy_and_price is not None:
        facts["takes"] = energy_and_price.text() or None
    rows = [(name, fact) for name, fact in facts.items() if fact is not None]
    return Table(("RECORD", "VALUE"), rows, wrap=("VALUE",))


def _metric_table(record: Record) -> Table:
    """Return a table of the metrics, except those that are in the table of measurements."""
    measured_names = set()
    for measurement in record.measurements:
        measured_names |= {measurement.name, f"{measurement.name}_mean", f"{measurement.name}_busbw"}
    rows = [_metric_row(metric) for metric in record.metrics if metric.name not in measured_names]
    return Table(
        ("METRIC", "VALUE", "UNIT", "SCOPE", "95 % INTERVAL", "N", "NOTE"),
        rows,
        wrap=("95 % INTERVAL", "NOTE"),
        drop=("NOTE", "N", "SCOPE", "95 % INTERVAL"),
        below=("UNIT",),
    )


def _absent_table(record: Record) -> Table:
    rows: list[tuple[str, str]] = []
    if record.quality is not None:
        rows += record.quality.absent.items()
    return Table(("NOT MEASURED", "REASON"), rows, wrap=("REASON",))


def _condition_table(record: Record) -> Table:
    rows = [(name, shown(condition)) for name, condition in record.conditions.items()]
    return Table(("CONDITION", "VALUE"), rows, wrap=("VALUE",))


def _check_table(record: Record) -> Table:
    rows = []
    for check in record.checks:
        outcome = "FAILED"
        if check.ok:
            outcome = "ok"
        rows.append((check.name, outcome, check.detail))
    return Table(("CHECK", "RESULT", "DETAIL"), rows, wrap=("DETAIL",))


def _bundle_table(bundles: Sequence[StoredBundle]) -> Table:
    rows = []
    for bundle in bundles:
        rows.append((str(bundle.place.node), size_text(bundle.size), bundle.location))
    return Table(("NODE", "SIZE", "BUNDLE"), rows, drop=("SIZE",))


def _measurement_table(record: Record) -> Table:
    """Return a table with a row for each measurement; if there are several devices, with a column for the slowest."""
    metrics = {metric.name: metric for metric in record.metrics}
    rows = []
    slowest_devices = []
    for measurement in record.measurements:
        rows.append(_measurement_row(measurement, metrics))
        slowest_devices.append(slowest_of(record, measurement))
    columns = ("MEASUREMENT", "RATE", "UNIT", "95 % INTERVAL", "MEAN", "SPREAD", "STEADY", "SIZE")
    table = Table(columns, rows, drop=("SIZE", "MEAN", "95 % INTERVAL", "SPREAD", "STEADY"))
    return with_slowest(table, slowest_devices, "SLOWEST DEVICE", place=columns.index("UNIT") + 1)


def lap_table(record: Record) -> Table:
    """Return a table of a soak, which measures in several laps whether a device becomes slower.

    A row is a measurement: the device that became slowest, and its rate in the late laps over that in the early ones.
    """
    rows = []
    drifts_by_name = lap_drifts([lap.rates for lap in record.laps]) or {}
    for name, drifts in drifts_by_name.items():
        slowest = min(drifts)
        device = NOTHING
        if len(drifts) > 1:
            device = f"rank {drifts.index(slowest)}"
        rows.append((name, f"{slowest:.1%}", device))
    return Table((f"OVER {len(record.laps)} LAPS", "LATE / EARLY", "SLOWEST DEVICE"), rows)


def _measurement_row(measurement: Measurement, metrics: Mapping[str, Metric]) -> list[str]:
    """Return the row of a measurement, with the rate of the middle device; of a collective, its bus bandwidth.

    Args:
        metrics: the record's metrics by name, which have the interval of the rate, and its mean over all repeats.
    """
    shown_as = scale_of(measurement)
    unit = shown_as.unit
    rate = measurement.rate
    metric = metrics.get(measurement.name)
    if measurement.bus_rate is not None:
        unit = f"{shown_as.unit} on the bus"
        rate = measurement.bus_rate
        metric = metrics.get(f"{measurement.name}_busbw")
    shown_rate = rate / shown_as.divisor
    mean = metrics.get(f"{measurement.name}_mean")
    if metric is not None and not math.isclose(metric.value, shown_rate, rel_tol=_ROUNDING):
        # The metric is not the median rate: for this case the mean is published, so the metric is the mean.
        mean = metric
        metric = None
    ends = NOTHING
    if metric is not None:
        ends = interval_text(metric.ci95)
    mean_text = NOTHING
    if mean is not None:
        mean_text = number_text(mean.value)
    steady = "no"
    if measurement.steady:
        steady = "yes"
    return [
        measurement.name,
        number_text(shown_rate),
        unit,
        ends,
        mean_text,
        f"{measurement.spread:.1%}",
        steady,
        _size_text(measurement),
    ]


def _size_text(measurement: Measurement) -> str:
    """Return the shape of a matmul, such as `8192 x 8192 x 8192, best of 12`, or the size of a copy in bytes."""
    size = f"{measurement.bytes} bytes"
    if measurement.shape:
        size = " x ".join(map(str, measurement.shape))
    if measurement.tried is None:
        return size
    return f"{size}, best of {measurement.tried}"


def _training_rows(record: Record) -> list[tuple[str, str]]:
    """Return the facts that the case reports after training, each with its name, sorted by the names.

    So the predicted bubble of a pipeline follows the measured one.
    """
    if record.quality is None or record.quality.training is None:
        return []
    return [(name, setting_text(_round(fact))) for name, fact in sorted(record.quality.training.items())]


def _round(fact: Any) -> Any:
    """Return a number, or a list of numbers, with _DIGITS digits; anything else as it is."""
    if isinstance(fact, list):
        return [_round(number) for number in fact]
    if isinstance(fact, float):
        return float(f"{fact:.{_DIGITS}g}")
    return fact


def _metric_row(metric: Metric) -> list[str]:
    note = metric.note or ""
    if metric.ci_reason:
        note = f"no interval: {metric.ci_reason}; {note}".removesuffix("; ")
    ends = NOTHING
    if metric.ci95 is not None:
        low, high = metric.ci95
        ends = f"{number_text(low, _DIGITS)} to {number_text(high, _DIGITS)}"
        if metric.ci_method:
            ends += f" ({metric.ci_method})"
    count = NOTHING
    if metric.n is not None:
        count = str(metric.n)
    value = number_text(metric.value, _DIGITS)
    return [metric.name, value, metric.unit, metric.scope, ends, count, note]
