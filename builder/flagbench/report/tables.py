"""Verdicts, comparisons and run summaries as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from flagbench.page import Block, Lines, Table, render
from flagbench.record.model import Metric, Record
from flagbench.report.settings import setting_text
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


def verdict_table(
    records: Sequence[Record],
    result: VerifyResult | None,
    *,
    stream: TextIO | None = None,
    wide: bool = False,
    colour: bool | None = None,
) -> str:
    """What was measured, beside what it is held against, as text for `stream` (default stdout).

    `run` ends with this table, and `verify` shows it again: metrics, conditions, anomalies, conclusion. Without a
    result, where no claim is at hand, it is the metrics and how the run ended.
    """
    blocks: list[Block] = [Lines((", ".join(r.record_id for r in records), *_held_against(result)))]
    rows = [*_held_rows(result), *_other_rows(records, result)]
    if rows:
        blocks.append(_metric_table(rows, "claim" if result is None else result.against.kind.value))
    blocks.append(Lines(_interval_notes(records)))
    if result is None:
        blocks.append(Lines(tuple(map(_ending, (r for r in records if r.status.state != "ok")))))
    else:
        blocks += _verdict_blocks(result)
    return render([b for b in blocks if b != Lines(())], stream, wide=wide, colour=colour)


def _held_against(result: VerifyResult | None) -> tuple[str, ...]:
    if result is None:
        return ()
    against = result.against
    chosen = "; it was chosen, as the one with the fewest differing conditions" if against.chosen else ""
    return (f"held against the {against.kind.value} {against.id}{chosen}",)


def _verdict_blocks(result: VerifyResult) -> list[Block]:
    """What follows the metrics: conditions, anomalies, conclusion."""
    blocks: list[Block] = []
    if result.differing:
        differing = tuple((c.name, shown(c.here), shown(c.expected)) for c in result.differing)
        columns = ("condition that differs", "here", result.against.column)
        blocks.append(Table(columns, differing, cut=columns[1:]))
    if silent := [c.name for c in result.conditions if c.agreement is Agreement.NOT_PUBLISHED]:
        blocks.append(Lines((f"not published, so not compared: {', '.join(silent)}",)))
    if result.anomalies:
        blocks.append(Lines(tuple(f"anomaly of {a.field}: {a.note.strip()}" for a in result.anomalies)))
    return [*blocks, _conclusion(result)]


def comparison_table(comparison: Comparison, *, stream: TextIO | None = None, wide: bool = False) -> str:
    """Two records as text for `stream` (default stdout): what differs first, then each metric."""
    a, b = comparison.a, comparison.b
    blocks: list[Block] = [Lines((f"A  {a.record_id}", f"B  {b.record_id}"))]
    if comparison.problems:
        blocks.append(Lines(comparison.problems))
    if comparison.conditions:
        rows = tuple((c.name, shown(c.expected), shown(c.here)) for c in comparison.conditions)
        blocks.append(Table(("condition that differs", "A", "B"), rows, cut=("A", "B")))
    else:
        blocks.append(Lines(("no condition differs",)))
    if comparison.config:
        settings = tuple((path, setting_text(x), setting_text(y)) for path, x, y in comparison.config)
        blocks.append(Table(("setting that differs", "A", "B"), settings, cut=("A", "B")))
    metrics = tuple((m.name, _estimate(m.a), _estimate(m.b), m.unit, _ratio(m.ratio)) for m in comparison.metrics)
    if metrics:
        columns = ("metric", "A", "B", "unit", "B/A")
        blocks.append(Table(columns, metrics, frozenset({"A", "B", "B/A"}), drop=("unit", "B", "A")))
    return render(blocks, stream, wide=wide)


def _metric_table(rows: Sequence[tuple[str, ...]], other: str) -> Table:
    columns = ["metric", "measured", other, "unit", "ratio", "verdict", "held against"]
    count = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    drop = ("held against", "unit", "ratio", other)
    cells = tuple(row[:count] for row in rows)
    return Table(tuple(columns[:count]), cells, frozenset({"measured", other, "ratio"}), _STYLES, drop=drop)


def _held_rows(result: VerifyResult | None) -> Iterable[tuple[str, ...]]:
    """A row for each metric of the claim or baseline, by the name of the measured one that is held against it."""
    for metric in () if result is None else result.metrics:
        yield (
            metric.held_by,
            _estimate(metric.measured),
            _expected(metric),
            metric.unit,
            _relative(metric),
            _verdict(metric),
            "" if metric.held_by == metric.name else metric.name,
        )


def _other_rows(records: Sequence[Record], result: VerifyResult | None) -> Iterable[tuple[str, ...]]:
    """A row for each other metric that every record has in one unit."""
    held = {metric.held_by for metric in result.metrics} if result is not None else set()
    for name, found in _measured(records).items():
        if name not in held:
            yield name, estimate_text(estimate(found)), ABSENT, found[0].unit, ABSENT, ABSENT, ""


def _measured(records: Sequence[Record]) -> dict[str, list[Metric]]:
    """The metrics that every record has in one unit and scope, in the first one's order."""
    found: dict[str, list[Metric]] = {}
    for metric in records[0].metrics:
        same = [m for m in (r.metric(metric.name) for r in records) if m is not None]
        if len(same) == len(records) and len({(m.unit, m.scope) for m in same}) == 1:
            found[metric.name] = same
    return found


def _interval_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """How the intervals were found: each way once, with the metrics that have it."""
    ways: dict[str, list[str]] = {}
    for name, metrics in _measured(records).items():
        if (interval := estimate(metrics).interval) is not None:
            ways.setdefault(interval.method, []).append(name)
    return tuple(f"95 % interval of {', '.join(names)}: {way}" for way, names in ways.items())


def _ending(record: Record) -> str:
    why = f": {record.status.reason}" if record.status.reason else ""
    return f"the run ended as {record.status.state} in {record.status.phase}{why}"


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
