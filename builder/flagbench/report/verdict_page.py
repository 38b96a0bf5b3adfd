"""Verdicts, explanations, comparisons and run summaries as a person reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

from flagbench.console.page import Block, Lines, Table, render
from flagbench.console.terminal import brief, visible
from flagbench.price import price_here
from flagbench.records.model import Metric, Record, SlowestDevice
from flagbench.verdict import Agreement, Comparison, Verdict, VerifyResult
from flagbench.verdict.compare import ABSENT
from flagbench.verdict.conditions import DEVICE_MODEL, describe, shown
from flagbench.verdict.early_end import EndedAs
from flagbench.verdict.efficiency import efficiency
from flagbench.verdict.explain import Cause, Explanation
from flagbench.verdict.interval import common, estimate, session_of
from flagbench.verdict.losses import FIRST_STEP, LIMIT, LossComparison, percent
from flagbench.verdict.result import (
    CitedRow,
    Estimate,
    MetricResult,
    Ratio,
    four_digits,
    slowest_device,
    slowest_text,
)
from flagbench.verdict.subject import ending, slow_devices
from flagbench_core import __version__
from flagbench_core.evidence.section import MEASURE, kind_of

NOTHING = "-"
"""Placeholder for an empty cell."""
STYLES = {
    "REPRODUCED": "bold green",
    "ABOVE": "bold green",
    "FASTER": "bold green",
    "SAME": "bold green",
    "BELOW": "bold red",
    "SLOWER": "bold red",
    "INVALID": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "NOT_COMPARABLE": "bold yellow",
    "PASS": "bold green",
    "FAIL": "bold red",
    "REFERENCE": "bold",
    "NOT_KNOWN": "bold",
    EndedAs.FAILED.value: "bold red",
    EndedAs.OUT_OF_MEMORY.value: "bold red",
    EndedAs.TIMEOUT.value: "bold red",
    EndedAs.INTERRUPTED.value: "bold yellow",
}
"""How a verdict, the outcome of a check, or the end of a run that has no verdict is printed."""
_SENTENCES = {
    Verdict.REPRODUCED: "{runs} {are} as fast as {other}",
    Verdict.ABOVE: "{runs} {are} faster than {other}",
    Verdict.BELOW: "{runs} {are} slower than {other}",
    Verdict.INCONCLUSIVE: "not decided whether {runs} {are} as fast as {other}",
    Verdict.NOT_COMPARABLE: "{runs} cannot be compared with {other}",
    Verdict.INVALID: "the numbers of {runs} cannot be used",
    Verdict.FASTER: "{runs} {are} faster than {other}",
    Verdict.SAME: "{runs} {are} as fast as {other}",
    Verdict.SLOWER: "{runs} {are} slower than {other}",
}
_NAMED = 3
"""Most conditions that a headline names."""
_DIGEST = len("sha256:") + 12
"""Characters of a digest on a narrow terminal."""


def verdict_table(
    records: Sequence[Record], result: VerifyResult | None, *, stream: TextIO | None = None, wide: bool = False
) -> str:
    """`verdict_blocks` as text for `stream` (default stdout)."""
    return render(verdict_blocks(records, result, wide=wide), stream, wide=wide)


def verdict_blocks(
    records: Sequence[Record], result: VerifyResult | None, *, wide: bool = False, others: bool = True
) -> list[Block]:
    """The verdict and the numbers that decide it, then what they rest on.

    `run` ends with this page, and `verify` shows it again. With `wide` it has every metric, note and anomaly. Without
    a result, where there is no claim or a run did not end well, it has the metrics, and how the run ended.
    `others`: whether metrics that are compared with nothing are shown.
    """
    if result is None:
        heading = Lines((", ".join(r.record_id for r in records) or "no record",))
        failed = tuple(line for r in records if r.status.state != "ok" for line in _error(r))
        metrics, notes = _other_metrics(records, ()), _measured_notes(records)
        # A publisher's mean stands beside our median of the same repeats.
        medians = {f"{row[0]}_mean" for row in metrics.rows}
        if means := [] if wide else [row for row in metrics.rows if row[0] in medians]:
            metrics = replace(metrics, rows=[row for row in metrics.rows if row not in means])
            notes = (*notes, f"--wide shows {_counted(len(means), 'more metric')}")
        shown_metrics = [metrics] if others else []
        return [heading, *shown_metrics, Lines((*notes, *_efficiency(records))), Lines(failed, "bold red")]
    uncompared = _uncompared(result)
    blocks: list[Block] = [Lines((_headline(result),), STYLES[result.style])]
    if not _is_in_headline(result):
        remedies = {f"fix: {r.status.remedy}": None for r in records if r.status.state != "ok" and r.status.remedy}
        blocks.append(Lines((result.reason, *remedies)))
    if wide or result.verdict is not Verdict.INVALID:
        conditions = _differing_table(result, uncompared if result.verdict is Verdict.NOT_COMPARABLE else ())
        metrics = _metric_table(result)
        blocks += (conditions, metrics) if result.verdict is Verdict.NOT_COMPARABLE else (metrics, conditions)
    more = _other_metrics(records, result.metrics)
    remarks = (*_measured_notes(records), *_interval_notes(records, result), *_not_checked(result))
    anomalies = tuple(f"anomaly of {a.field}: {a.note.strip()}" for a in result.anomalies)
    foot = [
        *_efficiency(records),
        *_held(result),
        *_elsewhere(records, result, uncompared),
        *(visible(series.text) for series in result.series),
    ]
    if wide:
        blocks += [more] if others else []
        blocks += (Lines(remarks), Lines(anomalies))
    else:
        counts = {"more metric": len(more.rows), "note": len(remarks), "anomaly of the row": len(anomalies)}
        named = ", ".join(f"{_counted(count, what)}" for what, count in counts.items() if count)
        foot += [f"--wide shows {named}"] if named else []
    return [*blocks, Lines(tuple(foot))]


def _uncompared(result: VerifyResult) -> list[str]:
    """The conditions that the reason of a verdict names because they differ."""
    described = {describe(c, other=result.against.side): c.name for c in result.differing}
    return [described[reason] for reason in result.reason.split("; ") if reason in described]


def _is_in_headline(result: VerifyResult) -> bool:
    """Whether the reason of a verdict is only that conditions differ, which the headline says."""
    return len(_uncompared(result)) == len(result.reason.split("; "))


def _differing_table(result: VerifyResult, deciding: Sequence[str]) -> Table:
    """The conditions that differ; those that forbid the comparison, in `deciding`, are marked and stand first."""
    other = "baseline" if result.against.kind == "baseline" else "published"
    decide = [condition for condition in result.differing if condition.name in deciding]
    rest = [condition for condition in result.differing if condition.name not in deciding]
    short = {}
    for condition in result.differing:
        for digest in (shown(condition.here), shown(condition.expected)):
            if digest.startswith("sha256:"):
                short[digest] = digest[:_DIGEST]
    if not decide:
        rows = [(c.name, shown(c.here), shown(c.expected)) for c in rest]
        return Table(("condition that differs", "here", other), rows, wrap=("here", other), short=short)
    marked = [(c.name, "yes", shown(c.here), shown(c.expected)) for c in decide]
    marked += [(c.name, "", shown(c.here), shown(c.expected)) for c in rest]
    return Table(("condition that differs", "decides", "here", other), marked, wrap=("here", other), short=short)


def _headline(result: VerifyResult) -> str:
    """The verdict in one sentence."""
    if result.verdict is Verdict.REFERENCE:
        return _reference_headline(result)
    count, against = len(result.records), result.against
    runs = {0: "the series", 1: "this run"}.get(count, f"these {count} runs")
    other = f"the {'published row' if against.kind == 'claim' else against.kind} {against.id}"
    if several := against.id.count(", "):  # of a baseline; the foot names them
        other = f"the baseline of {several + 1} runs"
    return _verdict_sentence(result, runs, "is" if count < 2 else "are", other)


def _verdict_sentence(result: VerifyResult, runs: str, are: str, other: str) -> str:
    """The verdict on `runs` beside `other`, with its qualifiers and the conditions that forbid a comparison."""
    text = _SENTENCES[result.verdict].format(runs=runs, are=are, other=other)
    differing = _uncompared(result)
    if result.verdict is Verdict.NOT_COMPARABLE and differing:
        more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        text += f": {', '.join(differing[:_NAMED])}{more} {'differ' if len(differing) > 1 else 'differs'}"
    qualified = f" ({', '.join(result.qualifiers)})" if result.qualifiers else ""
    return f"{result.outcome}{qualified}: {text}"


def _reference_headline(result: VerifyResult) -> str:
    """`REFERENCE 0.96 of 12,473 tokens/s (cited, no verdict)`; qualifiers follow in the brackets."""
    notes = "; ".join(("cited, no verdict", *result.qualifiers))
    return f"{result.verdict.value} {_of_cited(result.cited[0])} ({notes})"


def _of_cited(row: CitedRow) -> str:
    """`0.96 of 12,473 tokens/s`."""
    ratio = NOTHING if row.ratio is None else f"{row.ratio.value:.2f}"
    return f"{ratio} of {four_digits(row.value)} {row.unit}"


def _error(record: Record) -> tuple[str, ...]:
    """How a run that did not end well ended, and what to do."""
    remedy = record.status.remedy
    return (f"error: {ending(record)}", *([] if remedy is None else [f"fix: {remedy}"]))


def _measured_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """Of a case that measures: which devices are slow, what was not steady, and what is absent, with the reasons."""
    found = []
    for record in records:
        found += slow_devices(record)
        if unsteady := [each.name for each in record.measurements if not each.steady]:
            found.append(f"not steady, the median of what was measured in time: {', '.join(unsteady)}")
        reasons: dict[str, list[str]] = {}
        for name, reason in (record.quality.absent if record.quality is not None else {}).items():
            reasons.setdefault(reason, []).append(
                re.sub(r"_\d+$", "", name)
            )  # a collective is named once, not by size
        found += [f"not measured: {', '.join(dict.fromkeys(names))} ({reason})" for reason, names in reasons.items()]
    return tuple(visible(line) for line in found)


def _efficiency(records: Sequence[Record]) -> tuple[str, ...]:
    """What the runs took, each text once."""
    found = [each.text() for record in records if (each := efficiency(record, price_here()))]
    return tuple(text for text in dict.fromkeys(found) if text)


def _held(result: VerifyResult) -> tuple[str, ...]:
    """Which records the verdict is on, and why on this claim or beside these cited rows."""
    against = result.against
    held = f"{'record' if len(result.records) == 1 else 'records'} {', '.join(result.records) or 'none'}"
    if against.kind == "cited row":
        lines = [held]
        for row in result.cited:
            lines.append(f"cited row {row.id}, {_of_cited(row)}: {row.source}")
        return tuple(lines)
    if against.chosen:
        held += f"; {against.id} is the nearest claim (fewest differing conditions)"
    if ", " in against.id:
        return held, f"baseline {against.id}"
    return (held,)


def _elsewhere(records: Sequence[Record], result: VerifyResult, uncompared: Sequence[str]) -> tuple[str, ...]:
    """Where to look when no published row is of this device, or rows are of other metrics."""
    if result.against.chosen and any(kind_of(record.config or {}) == MEASURE for record in records):
        return (f"each metric has a row of its own: `flagbench expect {records[0].case}`, then --claim ROW",)
    if (
        result.verdict is not Verdict.NOT_COMPARABLE
        or result.against.kind != "claim"
        or DEVICE_MODEL not in uncompared
    ):
        return ()
    case = records[0].case
    expect = f"`flagbench expect {case}` shows what is published for a device"
    return (f"no published row fits: {expect}; --baseline RECORD compares with a run of yours",)


def _counted(count: int, what: str) -> str:
    """`1 note`, `2 notes`, `2 anomalies of the row`."""
    if count == 1:
        return f"1 {what}"
    return f"{count} {what.replace('anomaly', 'anomalies') if 'anomaly' in what else what + 's'}"


def _not_checked(result: VerifyResult) -> tuple[str, ...]:
    """The conditions that the publisher does not state, and what no rule was applied to."""
    found = []
    if silent := [c.name for c in result.conditions if c.agreement is Agreement.NOT_PUBLISHED]:
        found.append(f"not published, so not compared: {', '.join(silent)}")
    if result.not_compared:
        names = visible(brief(", ".join(result.not_compared), 200))
        found.append(f"not checked, not in the record, in flagbench {__version__} or in any source: {names}")
    return tuple(found)


def comparison_table(
    comparison: Comparison, speed: VerifyResult | None, *, stream: TextIO | None = None, wide: bool = False
) -> str:
    """Two records as text for `stream` (default stdout): the verdict, what differs, then each metric.

    `speed`: the verdict on B with A as the baseline.
    """
    a, b = comparison.a, comparison.b
    conditions = tuple((c.name, shown(c.expected), shown(c.here)) for c in comparison.conditions)
    settings = tuple((path, setting_text(x), setting_text(y)) for path, x, y in comparison.config)
    metrics = tuple((m.name, _estimate(m.a), _estimate(m.b), m.unit, _ratio(m.ratio)) for m in comparison.metrics)
    columns, right = ("metric", "A", "B", "unit", "B/A"), frozenset({"A", "B", "B/A"})
    blocks = (
        *_speed_blocks(comparison, speed),
        Lines((f"A  {a.record_id}", f"B  {b.record_id}")),
        Table(("condition that differs", "A", "B"), conditions, wrap=("A", "B")),
        Table(("setting that differs", "A", "B"), settings, wrap=("A", "B")),
        Table(columns, metrics, right, drop=("unit", "B", "A")),
        Lines(_comparison_notes(comparison)),
        Lines(_loss_notes(comparison.losses)),
    )
    return render(blocks, stream, wide=wide)


def _speed_blocks(comparison: Comparison, speed: VerifyResult | None) -> list[Block]:
    """The verdict on B with A as the baseline, in the words of `verify`, or why there is none."""
    if comparison.problems:
        return [Lines(comparison.problems, "bold")]
    if speed is None:
        return [Lines(("A and B are one record",), "bold")]
    headline = _verdict_sentence(speed, "B", "is", "the baseline A")
    blocks: list[Block] = [Lines((headline,), STYLES[speed.style])]
    if not _is_in_headline(speed):
        blocks.append(Lines((speed.reason,)))
    return blocks


def _comparison_notes(comparison: Comparison) -> tuple[str, ...]:
    """Whether nothing differs, and which intervals are shown: of A and B within a run, of B/A between runs."""
    notes = []
    if not comparison.conditions and not comparison.config:
        notes.append("no condition and no setting differs")
    ways: dict[str, dict[str, None]] = {}
    for metric in comparison.metrics:
        for label, found in (("A", metric.a), ("B", metric.b), ("B/A", metric.ratio)):
            if found is not None and found.ci_method is not None:
                ways.setdefault(found.ci_method, {})[label] = None
    for way, labels in ways.items():
        notes.append(f"95 % interval of {', '.join(labels)}: {way}")
    return tuple(notes)


def _loss_notes(losses: LossComparison | None) -> tuple[str, ...]:
    """Whether two runs have the same losses, and where these part."""
    if losses is None:
        return ()
    rule = f"mean of |B - A| / |A| from step {FIRST_STEP} on less than {percent(LIMIT)}"
    notes = [f"losses {losses.outcome.value}: {losses.reason}", f"rule, as published for Llama2-70B: {rule}"]
    if losses.errors.largest is not None:
        notes.append(f"largest error {percent(losses.errors.largest)}, at step {losses.errors.largest_step}")
    if losses.errors.parts_at is not None:
        step = losses.errors.parts_at
        notes.append(f"the losses part at step {step}: all errors from there on exceed {percent(LIMIT)}")
    return tuple(notes)


def _metric_table(result: VerifyResult) -> Table:
    """Each metric of the claim or baseline, that of the verdict first, beside the measured one compared with it."""
    other = result.against.kind
    columns: tuple[str, ...] = (
        *("metric", "measured", other, "unit", "ratio", "verdict"),
        *("slowest device", "measured as"),
    )
    rows: list[tuple[str, ...]] = [
        (
            metric.name,
            _estimate(metric.measured),
            metric.expected.text(),
            metric.unit,
            _relative(metric),
            _verdict(metric),
            slowest_text(metric.slowest_device),
            "" if metric.held_by == metric.name else metric.held_by,
        )
        for metric in sorted(result.metrics, key=lambda metric: metric.name != result.gate)
    ]
    filled = [place for place in range(len(columns)) if any(row[place] not in ("", NOTHING) for row in rows)]
    columns, *cells = (tuple(row[place] for place in filled) for row in (columns, *rows))
    right = frozenset({"measured", other, "ratio"})
    below = ("measured as", "unit", "slowest device", "baseline", "measured", "ratio")
    return Table(columns, cells, right, below=below)


def _other_metrics(records: Sequence[Record], held: Sequence[MetricResult]) -> Table:
    """What else was measured."""
    names = {metric.held_by for metric in held}
    first = "other metric" if held else "metric"
    rows, devices = [], []
    for name, found in _measured(records).items():
        if name not in names:
            value = estimate(found, session=session_of(records, found[0])).text()
            rows.append((name, value, found[0].unit))
            devices.append(slowest_device(found))
    table = Table((first, "measured", "unit"), rows, frozenset({"measured"}))
    return with_slowest(table, devices, "slowest device", place=3)


def with_slowest(table: Table, devices: Sequence[SlowestDevice | None], name: str, place: int) -> Table:
    """A table with a column `name` before the one of that place: the slowest device of each row.

    The table itself where no row is of several devices.
    """
    if not any(devices):
        return table
    rows = [
        (*row[:place], slowest_text(device), *row[place:]) for row, device in zip(table.rows, devices, strict=True)
    ]
    columns = (*table.columns[:place], name, *table.columns[place:])
    return replace(table, columns=columns, rows=rows, below=(name, *table.below))


def _measured(records: Sequence[Record]) -> dict[str, list[Metric]]:
    """The metrics that every record has in one unit and scope, in the first one's order."""
    found = {metric.name: common(records, metric.name) for record in records[:1] for metric in record.metrics}
    return {name: same for name, same in found.items() if len({(m.unit, m.scope) for m in same}) == 1}


def _interval_notes(records: Sequence[Record], result: VerifyResult) -> tuple[str, ...]:
    """How the intervals were found: each way once, with the metrics that have it."""
    ways: dict[str, list[str]] = {}
    held = {metric.held_by: metric.measured for metric in result.metrics if metric.measured}
    for name, found in _measured(records).items():
        measured = held.get(name) or estimate(found, session=session_of(records, found[0]))
        if (method := measured.ci_method) is not None:
            ways.setdefault(method, []).append(name)
    return tuple(f"95 % interval of {', '.join(names)}: {way}" for way, names in ways.items())


def _verdict(metric: MetricResult) -> str:
    if metric.verdict not in (None, Verdict.NOT_COMPARABLE):
        return str(metric.verdict.value)
    if metric.measured is None:
        return NOTHING
    return "comparable" if metric.comparable else "not comparable"


def _relative(metric: MetricResult) -> str:
    """The ratio, or the signed difference of a metric that has none, an accuracy."""
    if metric.ratio is None and metric.difference is not None:
        return f"{round(metric.difference, 6):+.3g}"
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


def explanation_page(explanation: Explanation, *, wide: bool = False) -> str:
    """`explanation_blocks` as text, after an empty line."""
    return "\n" + render(explanation_blocks(explanation), wide=wide)


def explanation_blocks(explanation: Explanation) -> list[Block]:
    """The causes, then what to do."""
    causes = explanation.causes
    rows = tuple((cause.title, _share(cause, cause.gap), _share(cause, cause.time), cause.seen) for cause in causes)
    return [
        Lines((_explanation_heading(explanation),)),
        Table(
            ("cause", "of the gap", "of the time", "seen"),
            rows,
            frozenset({"of the gap", "of the time"}),
            wrap=("seen",),
        ),
        Lines(tuple(f"{cause.title}: {cause.action}" for cause in causes)),
        *_machine(explanation),
    ]


def _machine(explanation: Explanation) -> Sequence[Block]:
    """What the runs' roofs say of their machine, or how to learn it of a slow run."""
    machine = explanation.machine
    if machine is None:
        told = "run with --roofs to tell a slow machine from slow software"
        return [Lines((told,))] if explanation.gap and explanation.reason is None else []
    cells = []
    for roof in machine.roofs:
        expected, ratio, by = NOTHING, NOTHING, "nothing is published"
        if roof.expected and roof.ratio and roof.source:
            expected, ratio, by = f"{roof.expected:.4g}", f"{roof.ratio:.2f}", roof.source
        cells.append((roof.metric, f"{roof.here:.4g}", expected, roof.unit, ratio, by))
    columns = ("without the model", "here", "expected", "unit", "ratio", "by")
    table = Table(columns, cells, frozenset({"here", "expected", "ratio"}), wrap=("by",))
    devices = [roof.slowest_device for roof in machine.roofs]
    return [with_slowest(table, devices, "slowest device", place=5), Lines((machine.reason,))]


def _explanation_heading(explanation: Explanation) -> str:
    """One line: the gap, and how much of it has no known cause."""
    if explanation.reason is not None or explanation.gap is None or explanation.ratio is None:
        return f"where the time went: {explanation.reason}"
    left = explanation.unexplained or 0.0
    return (
        f"{explanation.metric} is at {explanation.ratio:.3f}, so {explanation.gap:.1%} of its time is lost: "
        f"{1 - left:.0%} of that was measured, {left:.0%} is unexplained"
    )


def _share(cause: Cause, share: float | None) -> str:
    if share is None:
        return "-"
    return f"{'at most ' if cause.at_most else ''}{share:.0%}"
