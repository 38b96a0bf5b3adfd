"""Stored records as a person reads them: a row each in a listing, or one as a page."""

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
from flagbench.records.model import Measurement, Metric, Record
from flagbench.records.scalars import SHORT_ID
from flagbench.records.store import StoredRecord
from flagbench.report.charts import interval, scale_of, slowest_of
from flagbench.report.verdict_page import setting_text, with_slowest
from flagbench.verdict.conditions import shown
from flagbench.verdict.efficiency import efficiency
from flagbench.verdict.result import number_text
from flagbench_core.evidence.drift import lap_drifts


def listing(entries: Sequence[StoredRecord]) -> Table:
    """Stored records, a row each."""
    columns = (
        *("RECORD", "VERDICT", "RATIO", "SPEED", "HOST", "METRIC", "IMAGE"),
        *("PRESET", "CREATED", "STATE", "DURATION"),
    )
    drop = ("DURATION", "STATE", "PRESET", "METRIC", "CREATED", "IMAGE", "HOST")
    rows = [_row(entry) for entry in entries]
    return Table(columns, rows, frozenset({"RATIO"}), short=_short_ids(entries), drop=drop)


def _short_ids(entries: Sequence[StoredRecord]) -> dict[str, str]:
    """By id, the digits at its end, which abbreviate it; without ids whose digits are missing or not unique."""
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


def _row(entry: StoredRecord) -> list[str]:
    image = f"{entry.case}:{entry.stack}"
    summary = entry.summary
    if summary is None:
        state = state_of(entry).value
        return [entry.record_id, state, *["-"] * 4, image, "-", entry.created_at, state, "-"]
    ratio, speed, metric, duration = "-", "-", "-", "-"
    if summary.ratio is not None:
        ratio = f"{summary.ratio[0]:.3f}"
    gate_speed = speed_of(summary)
    if gate_speed is not None:
        metric, speed = summary.gate or "-", gate_speed
    if summary.duration is not None:
        duration = _duration(summary.duration)
    return [
        *(entry.record_id, outcome_of(entry) or "-", ratio, speed, summary.host or "-", metric, image),
        *(summary.preset, entry.created_at, summary.state, duration),
    ]


def _duration(seconds: float) -> str:
    """Seconds as 12.5s, 4m05s or 3h07m."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    return f"{minutes // 60}h{minutes % 60:02}m"


def record_page(record: Record, bundles: Sequence[StoredBundle]) -> list[Block]:
    """How one run ended, its metrics, conditions, checks, facts of training, and bundles."""
    return [
        _facts_table(record),
        _metric_table(record),
        _measurement_table(record),
        _lap_table(record),
        _absent_table(record),
        _condition_table(record),
        _check_table(record),
        Table(("TRAINING", "VALUE"), _training_rows(record), wrap=("VALUE",)),
        _bundle_table(bundles),
    ]


def _facts_table(record: Record) -> Table:
    """What was run, when and where, how it ended, and its energy and price."""
    status = record.status
    spent = efficiency(record, price_here())
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
    if spent is not None:
        facts["takes"] = spent.text() or None
    rows = [(name, fact) for name, fact in facts.items() if fact is not None]
    return Table(("RECORD", "VALUE"), rows, wrap=("VALUE",))


def _metric_table(record: Record) -> Table:
    """The metrics, except those that the table of measurements has."""
    of_measurements = set()
    for measurement in record.measurements:
        of_measurements |= {measurement.name, f"{measurement.name}_mean", f"{measurement.name}_busbw"}
    rows = [_metric_row(metric) for metric in record.metrics if metric.name not in of_measurements]
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
    """A row for each measurement; the slowest device stands beside its rate where there are several devices."""
    metrics = {metric.name: metric for metric in record.metrics}
    rows, devices = [], []
    for measurement in record.measurements:
        rows.append(_measurement_row(measurement, metrics))
        devices.append(slowest_of(record, measurement))
    columns = ("MEASUREMENT", "RATE", "UNIT", "95 % INTERVAL", "MEAN", "SPREAD", "STEADY", "SIZE")
    table = Table(columns, rows, drop=("SIZE", "MEAN", "95 % INTERVAL", "SPREAD", "STEADY"))
    return with_slowest(table, devices, "SLOWEST DEVICE", place=3)


def _lap_table(record: Record) -> Table:
    """Of a soak, a row for each measurement: the device that became slowest, and its late rate over its early one."""
    rows = []
    drifts_by_name = lap_drifts([lap.rates for lap in record.laps]) or {}
    for name, drifts in drifts_by_name.items():
        slowest = min(drifts)
        device = "-"
        if len(drifts) > 1:
            device = f"rank {drifts.index(slowest)}"
        rows.append((name, f"{slowest:.1%}", device))
    return Table((f"OVER {len(record.laps)} LAPS", "LATE / EARLY", "SLOWEST DEVICE"), rows)


def _measurement_row(measurement: Measurement, metrics: Mapping[str, Metric]) -> list[str]:
    """The rate of the middle device; of a collective, its bus bandwidth.

    `metrics`: those of the record, where the rate's interval and its mean over repeats and devices are.
    """
    name = measurement.name
    scale, unit = scale_of(measurement)
    rate, metric = measurement.rate, metrics.get(name)
    if measurement.bus_rate is not None:
        rate, metric = measurement.bus_rate, metrics.get(f"{name}_busbw")
        unit = f"{unit} on the bus"
    mean = metrics.get(f"{name}_mean")
    if metric is not None and not math.isclose(metric.value, rate / scale, rel_tol=1e-6):
        # Where the mean is what is published, the metric and its interval are those of the mean.
        mean, metric = metric, None
    interval_text, mean_text, steady = "-", "-", "no"
    if metric is not None:
        interval_text = interval(metric.ci95)
    if mean is not None:
        mean_text = number_text(mean.value)
    if measurement.steady:
        steady = "yes"
    return [
        *(name, number_text(rate / scale), unit, interval_text, mean_text),
        *(f"{measurement.spread:.1%}", steady, _size_of(measurement)),
    ]


def _size_of(measurement: Measurement) -> str:
    """`8192 x 8192 x 8192, best of 12`, or bytes."""
    size = f"{measurement.bytes} bytes"
    if measurement.shape:
        size = " x ".join(map(str, measurement.shape))
    if measurement.tried is None:
        return size
    return f"{size}, best of {measurement.tried}"


def _training_rows(record: Record) -> list[tuple[str, str]]:
    """Facts that the case reports after training, by name, so that the predicted bubble follows the measured one."""
    if record.quality is None or record.quality.training is None:
        return []
    return [(name, setting_text(_rounded(fact))) for name, fact in sorted(record.quality.training.items())]


def _rounded(fact: Any) -> Any:
    """A number, or the numbers of a list, to six digits."""
    if isinstance(fact, list):
        return [_rounded(number) for number in fact]
    if isinstance(fact, float):
        return float(f"{fact:.6g}")
    return fact


def _metric_row(metric: Metric) -> list[str]:
    ends, count, note = "-", "-", metric.note or ""
    if metric.ci_reason:
        note = f"no interval: {metric.ci_reason}; {note}".removesuffix("; ")
    if metric.ci95 is not None:
        low, high = metric.ci95
        ends = f"{number_text(low, 6)} to {number_text(high, 6)}"
        if metric.ci_method:
            ends += f" ({metric.ci_method})"
    if metric.n is not None:
        count = str(metric.n)
    return [metric.name, number_text(metric.value, 6), metric.unit, metric.scope, ends, count, note]
