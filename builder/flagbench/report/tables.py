"""Verdicts, comparisons and run summaries as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from flagbench.record.model import Record
from flagbench.report.page import Block, Lines, Table, render
from flagbench.verify import Agreement, Comparison, Estimate, MetricResult, Ratio, VerifyResult, numbers
from flagbench.verify.conditions import shown
from flagbench.verify.interval import estimate
from flagbench.verify.result import estimate_text, ratio_text

ABSENT = "-"
_STYLES = {
    "REPRODUCED": "bold green",
    "ABOVE": "bold green",
    "BELOW": "bold red",
    "INVALID": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "NOT_COMPARABLE": "bold yellow",
}


def verdict_table(result: VerifyResult, *, stream: TextIO | None = None) -> str:
    """A verification as text for `stream` (default stdout): metrics, conditions, anomalies, conclusion."""
    against = result.against
    chosen = "; it was chosen, as the one with the fewest differing conditions" if against.chosen else ""
    records = ", ".join(result.record_ids)
    blocks: list[Block] = [Lines((records, f"held against the {against.kind.value} {against.id}{chosen}"))]
    if result.metrics:
        blocks.append(_metric_table(result))
        blocks.append(Lines(_interval_notes(result.metrics)))
    if result.differing:
        rows = tuple((c.name, shown(c.here), shown(c.expected)) for c in result.differing)
        blocks.append(Table(("condition that differs", "here", against.column), rows))
    if silent := [c.name for c in result.conditions if c.agreement is Agreement.NOT_PUBLISHED]:
        blocks.append(Lines((f"not published, so not compared: {', '.join(silent)}",)))
    if result.anomalies:
        blocks.append(Lines(tuple(f"anomaly of {a.field}: {a.note.strip()}" for a in result.anomalies)))
    blocks.append(_conclusion(result))
    return render([b for b in blocks if b != Lines(())], stream)


def run_summary(record: Record, result: VerifyResult | None, *, stream: TextIO | None = None) -> str:
    """What `flagbench run` ends with: every measured metric, beside the claim where one is at hand."""
    rows = []
    held = {} if result is None else {m.held_by: m for m in result.metrics}
    for metric in record.metrics:
        line = held.get(metric.name)
        rows.append(
            (
                metric.name,
                estimate_text(estimate([metric])),
                metric.unit,
                ABSENT if line is None else _expected(line),
                ABSENT if line is None else _verdict(line),
            )
        )
    other = "claim" if result is None else result.against.kind.value
    columns = ("metric", "measured", "unit", other, "verdict")
    blocks: list[Block] = []
    if rows:
        blocks.append(Table(columns, tuple(rows), frozenset({"measured", other}), _STYLES))
    if record.status.state != "ok":
        why = f": {record.status.reason}" if record.status.reason else ""
        blocks.append(Lines((f"the run ended as {record.status.state} in {record.status.phase}{why}",)))
    if result is not None:
        blocks.append(Lines((f"held against the {result.against.kind.value} {result.against.id}",)))
        blocks.append(_conclusion(result))
    return render(blocks, stream)


def comparison_table(comparison: Comparison, *, stream: TextIO | None = None) -> str:
    """Two records as text for `stream` (default stdout): what differs first, then each metric."""
    a, b = comparison.a, comparison.b
    blocks: list[Block] = [Lines((f"A  {a.record_id}", f"B  {b.record_id}"))]
    if comparison.problems:
        blocks.append(Lines(comparison.problems))
    if comparison.conditions:
        rows = tuple((c.name, shown(c.expected), shown(c.here)) for c in comparison.conditions)
        blocks.append(Table(("condition that differs", "A", "B"), rows))
    else:
        blocks.append(Lines(("no condition differs",)))
    if comparison.config:
        settings = tuple((path, _setting(x), _setting(y)) for path, x, y in comparison.config)
        blocks.append(Table(("setting that differs", "A", "B"), settings))
    metrics = tuple((m.name, _estimate(m.a), _estimate(m.b), m.unit, _ratio(m.ratio)) for m in comparison.metrics)
    if metrics:
        blocks.append(Table(("metric", "A", "B", "unit", "B/A"), metrics, right=frozenset({"A", "B", "B/A"})))
    return render(blocks, stream)


def _metric_table(result: VerifyResult) -> Table:
    other = result.against.kind.value
    columns = ("metric", "measured", other, "unit", "ratio", "verdict")
    rows = tuple(
        (
            m.name if m.held_by == m.name else f"{m.name} (by {m.held_by})",
            _estimate(m.measured),
            _expected(m),
            m.unit,
            _relative(m),
            _verdict(m),
        )
        for m in result.metrics
    )
    return Table(columns, rows, frozenset({"measured", other, "ratio"}), _STYLES)


def _interval_notes(metrics: Sequence[MetricResult]) -> tuple[str, ...]:
    """How the intervals were found: each way once, with the metrics that have it."""
    ways: dict[str, list[str]] = {}
    for metric in metrics:
        if metric.measured is not None and metric.measured.interval is not None:
            ways.setdefault(metric.measured.interval.method, []).append(metric.held_by)
    return tuple(f"95 % interval of {', '.join(names)}: {way}" for way, names in ways.items())


def _conclusion(result: VerifyResult) -> Lines:
    return Lines((result.conclusion,), _STYLES[result.verdict.value])


def _expected(metric: MetricResult) -> str:
    if metric.expected.runs:
        return estimate_text(metric.expected)
    return numbers.published(metric.expected.value)


def _verdict(metric: MetricResult) -> str:
    if metric.verdict is not None:
        return metric.verdict.value
    if metric.measured is None:
        return ABSENT
    return "comparable" if metric.comparable else "not comparable"


def _relative(metric: MetricResult) -> str:
    """The ratio, or the signed difference of a metric that has none, an accuracy."""
    if metric.ratio is None and metric.difference is not None:
        return f"{metric.difference:+.3g}"
    return _ratio(metric.ratio)


def _estimate(value: Estimate | None) -> str:
    return ABSENT if value is None else estimate_text(value)


def _ratio(value: Ratio | None) -> str:
    return ABSENT if value is None else ratio_text(value)


def _setting(value: object) -> str:
    return ABSENT if value is None else str(value)
