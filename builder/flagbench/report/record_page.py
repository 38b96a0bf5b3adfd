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
    """The digits that each id ends with; without an id that has none, or whose digits another one has too."""
    whole: dict[str, list[str]] = {}
    for record_id in dict.fromkeys(entry.record_id for entry in entries):
        short = record_id.rpartition("-")[2]
        if re.fullmatch(SHORT_ID, short):
            whole.setdefault(short, []).append(record_id)
    return {ids[0]: short for short, ids in whole.items() if len(ids) == 1}


def _row(entry: StoredRecord) -> list[str]:
    image = f"{entry.case}:{entry.stack}"
    summary = entry.summary
    if summary is None:
        state = state_of(entry).value
        return [entry.record_id, state, *["-"] * 4, image, "-", entry.created_at, state, "-"]
    ratio, speed, metric, duration = "-", "-", "-", "-"
    if summary.ratio is not None:
        ratio = f"{summary.ratio[0]:.3f}"
    if (found := speed_of(summary)) is not None:
        metric, speed = summary.gate or "-", found
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
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def record_page(record: Record, bundles: Sequence[StoredBundle]) -> list[Block]:
    """How one run ended, its metrics, conditions, checks, facts of training, and bundles."""
    status = record.status
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
        "takes": (took.text() or None) if (took := efficiency(record, price_here())) else None,
    }
    metrics = ("METRIC", "VALUE", "UNIT", "SCOPE", "95 % INTERVAL", "N", "NOTE")
    told = [(name, fact) for name, fact in facts.items() if fact is not None]
    drop, below = ("NOTE", "N", "SCOPE", "95 % INTERVAL"), ("UNIT",)
    conditions = [(name, shown(value)) for name, value in record.conditions.items()]
    kept = [(str(bundle.place.node), size_text(bundle.size), bundle.location) for bundle in bundles]
    names = [measurement.name for measurement in record.measurements]
    measured = {f"{name}{ending}" for name in names for ending in ("", "_mean", "_busbw")}
    by_name = {metric.name: metric for metric in record.metrics}
    absent = [*(record.quality.absent if record.quality is not None else {}).items()]
    checks = [(check.name, "ok" if check.ok else "FAILED", check.detail) for check in record.checks]
    return [
        Table(("RECORD", "VALUE"), told, wrap=("VALUE",)),
        Table(
            metrics,
            [_metric_row(metric) for metric in record.metrics if metric.name not in measured],
            wrap=("95 % INTERVAL", "NOTE"),
            drop=drop,
            below=below,
        ),
        _measurement_table(record, by_name),
        _lap_table(record),
        Table(("NOT MEASURED", "REASON"), absent, wrap=("REASON",)),
        Table(("CONDITION", "VALUE"), conditions, wrap=("VALUE",)),
        Table(("CHECK", "RESULT", "DETAIL"), checks, wrap=("DETAIL",)),
        Table(("TRAINING", "VALUE"), _training_rows(record), wrap=("VALUE",)),
        Table(("NODE", "SIZE", "BUNDLE"), kept, drop=("SIZE",)),
    ]


def _measurement_table(record: Record, metrics: Mapping[str, Metric]) -> Table:
    """A row for each measurement; the slowest device stands beside its rate where there are several devices."""
    columns = ("MEASUREMENT", "RATE", "UNIT", "95 % INTERVAL", "MEAN", "SPREAD", "STEADY", "SIZE")
    rows = [_measurement_row(measurement, metrics) for measurement in record.measurements]
    table = Table(columns, rows, drop=("SIZE", "MEAN", "95 % INTERVAL", "SPREAD", "STEADY"))
    devices = [slowest_of(record, measurement) for measurement in record.measurements]
    return with_slowest(table, devices, "SLOWEST DEVICE", place=3)


def _lap_table(record: Record) -> Table:
    """Of a soak, a row for each measurement: the device that became slowest, and its late rate over its early one."""
    rows = []
    for name, drifts in (lap_drifts([lap.rates for lap in record.laps]) or {}).items():
        rank = min(range(len(drifts)), key=drifts.__getitem__)
        device = f"rank {rank}" if len(drifts) > 1 else "-"
        rows.append((name, f"{drifts[rank]:.1%}", device))
    return Table((f"OVER {len(record.laps)} LAPS", "LATE / EARLY", "SLOWEST DEVICE"), rows)


def _measurement_row(one: Measurement, metrics: Mapping[str, Metric]) -> list[str]:
    """The rate of the middle device; of a collective, its bus bandwidth.

    `metrics`: those of the record, where the rate's interval and its mean over repeats and devices are.
    """
    metric = metrics.get(one.name if one.bus_rate is None else f"{one.name}_busbw")
    mean = metrics.get(f"{one.name}_mean")
    scale, unit = scale_of(one)
    size = " x ".join(map(str, one.shape)) if one.shape else f"{one.bytes} bytes"
    rate = one.rate if one.bus_rate is None else one.bus_rate
    if metric is not None and not math.isclose(metric.value, rate / scale, rel_tol=1e-6):
        # Where the mean is what is published, the metric and its interval are those of the mean.
        mean, metric = metric, None
    return [
        one.name,
        number_text(rate / scale),
        unit if one.bus_rate is None else f"{unit} on the bus",
        interval(None if metric is None else metric.ci95),
        "-" if mean is None else number_text(mean.value),
        f"{one.spread:.1%}",
        "yes" if one.steady else "no",
        size if one.tried is None else f"{size}, best of {one.tried}",
    ]


def _training_rows(record: Record) -> list[tuple[str, str]]:
    """What the case knows once training has ended, by name: a predicted bubble follows the measured one."""
    facts = (record.quality and record.quality.training) or {}
    return [(name, setting_text(_rounded(value))) for name, value in sorted(facts.items())]


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _metric_row(metric: Metric) -> list[str]:
    ends, note = "-", metric.note or ""
    if metric.ci_reason:
        note = f"no interval: {metric.ci_reason}; {note}".removesuffix("; ")
    if metric.ci95 is not None:
        low, high = metric.ci95
        method = f" ({metric.ci_method})" if metric.ci_method else ""
        ends = f"{number_text(low, 6)} to {number_text(high, 6)}{method}"
    count = str(metric.n) if metric.n is not None else "-"
    return [metric.name, number_text(metric.value, 6), metric.unit, metric.scope, ends, count, note]
