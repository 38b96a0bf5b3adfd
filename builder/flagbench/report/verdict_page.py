"""Verdicts, explanations, comparisons and run summaries as a person reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from flagbench.page import Block, Lines, Table, render
from flagbench.records.model import Metric, Record
from flagbench.terminal import brief, visible
from flagbench.verdict import Agreement, Comparison, VerifyResult
from flagbench.verdict.compare import ABSENT
from flagbench.verdict.conditions import shown
from flagbench.verdict.explain import Cause, Explanation
from flagbench.verdict.interval import common, estimate, session_of
from flagbench.verdict.result import Estimate, MetricResult, Ratio
from flagbench.verdict.subject import ending
from flagbench_core import __version__

NOTHING = "-"
"""Placeholder for an empty cell."""
_STYLES = {
    "REPRODUCED": "bold green",
    "ABOVE": "bold green",
    "FASTER": "bold green",
    "SAME": "bold green",
    "BELOW": "bold red",
    "SLOWER": "bold red",
    "INVALID": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "NOT_COMPARABLE": "bold yellow",
}


def verdict_table(
    records: Sequence[Record], result: VerifyResult | None, *, stream: TextIO | None = None, wide: bool = False
) -> str:
    """What was measured, beside what it is compared with, as text for `stream` (default stdout).

    `run` ends with this table, and `verify` shows it again: metrics, conditions, anomalies, conclusion. Without a
    result, where no claim is at hand, it is the metrics and how the run ended.
    """
    heading = [", ".join(r.record_id for r in records) or "no record"]
    if result is not None:
        chosen = "; chosen because the fewest conditions differ" if result.against.chosen else ""
        heading.append(f"compared with the {result.against.kind} {result.against.id}{chosen}")
    blocks: list[Block] = [
        Lines(tuple(heading)),
        _metric_table(records, result),
        Lines(_interval_notes(records, result)),
    ]
    if result is None:
        blocks.append(Lines(tuple(ending(r) for r in records if r.status.state != "ok")))
    else:
        blocks += _verdict_blocks(result)
    return render(blocks, stream, wide=wide)


def _verdict_blocks(result: VerifyResult) -> list[Block]:
    """What follows the metrics: conditions, anomalies, conclusion."""
    other = "published" if result.against.kind == "claim" else "baseline"
    differing = tuple((c.name, shown(c.here), shown(c.expected)) for c in result.differing)
    silent = [c.name for c in result.conditions if c.agreement is Agreement.NOT_PUBLISHED]
    return [
        Table(("condition that differs", "here", other), differing, cut=("here", other)),
        Lines((f"not published, so not compared: {', '.join(silent)}",) if silent else ()),
        Lines(_unknown(result)),
        Lines(tuple(f"anomaly of {a.field}: {a.note.strip()}" for a in result.anomalies)),
        Lines((*(visible(series.text) for series in result.series), *_self_reported(result))),
        Lines((result.conclusion,), _STYLES[result.verdict.value]),
    ]


def _unknown(result: VerifyResult) -> tuple[str, ...]:
    """What no rule was applied to: what only the record or this version has, and limits that nobody published."""
    if not result.not_compared:
        return ()
    names = visible(brief(", ".join(result.not_compared), 200))
    return (f"not checked, not in the record, in flagbench {__version__} or in any source: {names}",)


def _self_reported(result: VerifyResult) -> tuple[str, ...]:
    """Which records nothing but themselves speaks for."""
    if not result.self_reported:
        return ()
    return (f"self-reported, without a bundle of `reproduce` or a nonce of yours: {', '.join(result.self_reported)}",)


def comparison_table(comparison: Comparison, *, stream: TextIO | None = None, wide: bool = False) -> str:
    """Two records as text for `stream` (default stdout): what differs first, then each metric."""
    a, b = comparison.a, comparison.b
    conditions = tuple((c.name, shown(c.expected), shown(c.here)) for c in comparison.conditions)
    settings = tuple((path, setting_text(x), setting_text(y)) for path, x, y in comparison.config)
    metrics = tuple((m.name, _estimate(m.a), _estimate(m.b), m.unit, _ratio(m.ratio)) for m in comparison.metrics)
    columns, right = ("metric", "A", "B", "unit", "B/A"), frozenset({"A", "B", "B/A"})
    blocks = (
        Lines((f"A  {a.record_id}", f"B  {b.record_id}")),
        Lines(comparison.problems),
        Lines(() if conditions else ("no condition differs",)),
        Table(("condition that differs", "A", "B"), conditions, cut=("A", "B")),
        Table(("setting that differs", "A", "B"), settings, cut=("A", "B")),
        Table(columns, metrics, right, drop=("unit", "B", "A")),
        Lines(_comparison_notes(comparison)),
    )
    return render(blocks, stream, wide=wide)


def _comparison_notes(comparison: Comparison) -> tuple[str, ...]:
    """Which intervals a comparison shows: of A and B within a run, of B/A between runs."""
    ways: dict[str, dict[str, None]] = {}
    for metric in comparison.metrics:
        for label, found in (("A", metric.a), ("B", metric.b), ("B/A", metric.ratio)):
            if found is not None and found.ci_method is not None:
                ways.setdefault(found.ci_method, {})[label] = None
    return tuple(f"95 % interval of {', '.join(labels)}: {way}" for way, labels in ways.items())


def _metric_table(records: Sequence[Record], result: VerifyResult | None) -> Table:
    """Each metric of the claim or baseline, by the measured one that is compared with it; then the others."""
    held = () if result is None else result.metrics
    rows = [
        (
            metric.held_by,
            _estimate(metric.measured),
            metric.expected.text(),
            metric.unit,
            _relative(metric),
            _verdict(metric),
            "" if metric.held_by == metric.name else metric.name,
        )
        for metric in held
    ]
    names = {metric.held_by for metric in held}
    for name, found in _measured(records).items():
        if name not in names:
            text = estimate(found, session=session_of(records, found[0])).text()
            rows.append((name, text, NOTHING, found[0].unit, NOTHING, NOTHING, ""))
    other = "claim" if result is None else result.against.kind
    columns = ("metric", "measured", other, "unit", "ratio", "verdict", "compared with")
    count = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    drop = ("compared with", "unit", "ratio", other)
    cells = tuple(row[:count] for row in rows)
    return Table(columns[:count], cells, frozenset({"measured", other, "ratio"}), _STYLES, drop=drop)


def _measured(records: Sequence[Record]) -> dict[str, list[Metric]]:
    """The metrics that every record has in one unit and scope, in the first one's order."""
    found = {metric.name: common(records, metric.name) for record in records[:1] for metric in record.metrics}
    return {name: same for name, same in found.items() if len({(m.unit, m.scope) for m in same}) == 1}


def _interval_notes(records: Sequence[Record], result: VerifyResult | None) -> tuple[str, ...]:
    """How the intervals were found: each way once, with the metrics that have it."""
    ways: dict[str, list[str]] = {}
    held = {metric.held_by: metric.measured for metric in (result.metrics if result else ()) if metric.measured}
    for name, found in _measured(records).items():
        measured = held.get(name) or estimate(found, session=session_of(records, found[0]))
        if (method := measured.ci_method) is not None:
            ways.setdefault(method, []).append(name)
    return tuple(f"95 % interval of {', '.join(names)}: {way}" for way, names in ways.items())


def _verdict(metric: MetricResult) -> str:
    if metric.verdict is not None:
        return metric.verdict.value
    if metric.measured is None:
        return NOTHING
    return "comparable" if metric.comparable else "not comparable"


def _relative(metric: MetricResult) -> str:
    """The ratio, or the signed difference of a metric that has none, an accuracy."""
    if metric.ratio is None and metric.difference is not None:
        return f"{metric.difference:+.3g}"
    return _ratio(metric.ratio)


def _estimate(value: Estimate | None) -> str:
    return NOTHING if value is None else value.text()


def _ratio(value: Ratio | None) -> str:
    return NOTHING if value is None else str(value)


def setting_text(value: object) -> str:
    """A configuration value as a person writes it: `true`, `none`, `0.1`, `a, b`; `-` for one that is not there.

    A text that would read as something else is quoted: "true" is not true.
    """
    if value is ABSENT:
        return NOTHING
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if _misleading(value) else value
    if isinstance(value, list | tuple):
        return ", ".join(map(_nested, value)) or "(empty)"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_nested(item)}" for name, item in value.items()) or "(empty)"
    return str(value)


def _nested(value: object) -> str:
    """A value inside a list: brackets keep together what belongs together."""
    text = setting_text(value)
    return f"({text})" if isinstance(value, list | tuple | dict) and value else text


def _misleading(text: str) -> bool:
    if text.strip() != text or text in ("", NOTHING, "none", "true", "false", "(empty)"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def explanation_page(explanation: Explanation, *, stream: TextIO | None = None, wide: bool = False) -> str:
    """An explanation as text for `stream` (default stdout), after an empty line: the causes, then what to do."""
    causes = explanation.causes
    rows = tuple((cause.title, _share(cause, cause.gap), _share(cause, cause.time), cause.seen) for cause in causes)
    blocks: list[Block] = [
        Lines((_explanation_heading(explanation),)),
        Table(("cause", "of the gap", "of the time", "seen"), rows, frozenset({"of the gap", "of the time"})),
        Lines(tuple(f"{cause.title}: {cause.action}" for cause in causes)),
    ]
    return "\n" + render(blocks, stream, wide=wide)


def _explanation_heading(explanation: Explanation) -> str:
    """One line: the gap, and how much of it has no known cause."""
    if explanation.gap is None or explanation.ratio is None:
        return f"where the time went: {explanation.reason}"
    if explanation.reason is not None:
        return explanation.reason
    left = explanation.unexplained or 0.0
    return (
        f"{explanation.metric} is at {explanation.ratio:.3f}, so {explanation.gap:.1%} of its time is lost: "
        f"{1 - left:.0%} of that was measured, {left:.0%} is unexplained"
    )


def _share(cause: Cause, share: float | None) -> str:
    if share is None:
        return "-"
    return f"{'at most ' if cause.at_most else ''}{share:.0%}"
