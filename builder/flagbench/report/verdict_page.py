"""A verdict, or a run without one, as a person reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from flagbench.console.page import Block, Lines, Table, render, without_empty_columns
from flagbench.console.terminal import brief, visible
from flagbench.manifests.rows import Anomaly
from flagbench.price import price_here
from flagbench.records.model import Metric, Record, SlowestDevice
from flagbench.verdict import Agreement, Verdict, VerifyResult
from flagbench.verdict.compare import ABSENT
from flagbench.verdict.conditions import DEVICE_MODEL, describe, shown
from flagbench.verdict.early_end import EndedAs
from flagbench.verdict.efficiency import efficiency
from flagbench.verdict.interval import common, estimate, session_of
from flagbench.verdict.result import (
    Against,
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
_NAMED_CONDITIONS = 3
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
        return _blocks_without_verdict(records, wide=wide, others=others)
    return _blocks_with_verdict(records, result, wide=wide, others=others)


def _blocks_without_verdict(records: Sequence[Record], *, wide: bool, others: bool) -> list[Block]:
    record_ids = ", ".join(record.record_id for record in records)
    metrics = _other_metrics(records, ())
    notes = list(_measured_notes(records))
    if not wide:
        metrics, hidden = _without_means(metrics)
        if hidden:
            notes.append(f"--wide shows {_counted(hidden, 'more metric', 'more metrics')}")
    failures: list[str] = []
    for record in records:
        if record.status.state != "ok":
            failures += _failure_lines(record)
    blocks: list[Block] = [Lines((record_ids or "no record",))]
    if others:
        blocks.append(metrics)
    blocks.append(Lines((*notes, *_efficiency(records))))
    blocks.append(Lines(tuple(failures), "bold red"))
    return blocks


def _without_means(metrics: Table) -> tuple[Table, int]:
    """The table without the means whose median is a row too, and the number of rows left out.

    Some publishers print a mean over repeats, so a record has it beside the median of the same repeats.
    """
    names_of_means = {f"{row[0]}_mean" for row in metrics.rows}
    rows = [row for row in metrics.rows if row[0] not in names_of_means]
    return replace(metrics, rows=rows), len(metrics.rows) - len(rows)


def _blocks_with_verdict(records: Sequence[Record], result: VerifyResult, *, wide: bool, others: bool) -> list[Block]:
    blocks: list[Block] = [Lines((headline(result),), STYLES[result.style])]
    if not is_in_headline(result):
        blocks.append(Lines((result.reason, *_remedies(records))))
    if wide or result.verdict is not Verdict.INVALID:
        blocks += _compared_tables(result)
    other_metrics = _other_metrics(records, result.metrics)
    notes = (*_measured_notes(records), *_interval_notes(records, result), *_not_checked(result))
    anomalies = anomaly_lines(result.anomalies)
    foot = [*_efficiency(records), *_basis_lines(result), *_where_to_look(records, result)]
    foot += [visible(series.text) for series in result.series]
    if wide:
        if others:
            blocks.append(other_metrics)
        blocks += (Lines(notes), Lines(anomalies))
    else:
        foot += _what_wide_adds(len(other_metrics.rows), len(notes), len(anomalies))
    blocks.append(Lines(tuple(foot)))
    return blocks


def _remedies(records: Sequence[Record]) -> list[str]:
    """What to do about the runs that did not end well, each remedy once."""
    remedies: list[str] = []
    for record in records:
        remedy = record.status.remedy
        if record.status.state == "ok" or not remedy:
            continue
        line = f"fix: {remedy}"
        if line not in remedies:
            remedies.append(line)
    return remedies


def _compared_tables(result: VerifyResult) -> tuple[Table, Table]:
    """The metrics and the conditions that differ; where these forbid a comparison, they stand first."""
    metrics = _metric_table(result)
    if result.verdict is Verdict.NOT_COMPARABLE:
        return _differing_table(result, _forbidding_conditions(result)), metrics
    return metrics, _differing_table(result, ())


def anomaly_lines(anomalies: Sequence[Anomaly]) -> tuple[str, ...]:
    """The anomalies of a published row, a line each."""
    return tuple(f"anomaly of {anomaly.field}: {anomaly.note.strip()}" for anomaly in anomalies)


def _what_wide_adds(metrics: int, notes: int, anomalies: int) -> list[str]:
    """`--wide shows 4 more metrics, 1 note`; no line where there is nothing more to show."""
    parts = []
    if metrics:
        parts.append(_counted(metrics, "more metric", "more metrics"))
    if notes:
        parts.append(_counted(notes, "note", "notes"))
    if anomalies:
        parts.append(_counted(anomalies, "anomaly of the row", "anomalies of the row"))
    if not parts:
        return []
    return [f"--wide shows {', '.join(parts)}"]


def _counted(count: int, singular: str, plural: str) -> str:
    if count == 1:
        return f"1 {singular}"
    return f"{count} {plural}"


def _forbidding_conditions(result: VerifyResult) -> list[str]:
    """The conditions that the reason of a verdict names because they differ."""
    names = {describe(condition, side=result.against.side): condition.name for condition in result.differing}
    return [names[clause] for clause in result.reason.split("; ") if clause in names]


def is_in_headline(result: VerifyResult) -> bool:
    """Whether the reason of a verdict is only that conditions differ, which the headline says already."""
    return len(_forbidding_conditions(result)) == len(result.reason.split("; "))


def _differing_table(result: VerifyResult, deciding: Sequence[str]) -> Table:
    """The conditions that differ; those that forbid the comparison, in `deciding`, are marked and stand first."""
    expected_column = "published"
    if result.against.kind == "baseline":
        expected_column = "baseline"
    rows = []
    for condition in sorted(result.differing, key=lambda condition: condition.name not in deciding):
        cells = [condition.name, shown(condition.here), shown(condition.expected)]
        if condition.name in deciding:
            cells.insert(1, "yes")
        elif deciding:
            cells.insert(1, "")
        rows.append(cells)
    columns = ["condition that differs", "here", expected_column]
    if deciding:
        columns.insert(1, "decides")
    return Table(columns, rows, wrap=("here", expected_column), short=_short_digests(result))


def _short_digests(result: VerifyResult) -> dict[str, str]:
    """The digests among the conditions that differ, each with its abbreviation."""
    short = {}
    for condition in result.differing:
        for text in (shown(condition.here), shown(condition.expected)):
            if text.startswith("sha256:"):
                short[text] = text[:_DIGEST]
    return short


def headline(result: VerifyResult) -> str:
    """The verdict in one sentence."""
    if result.verdict is Verdict.REFERENCE:
        return _reference_headline(result)
    count = len(result.records)
    baseline = _baseline_text(result.against)
    if count == 0:
        return verdict_sentence(result, "the series", "is", baseline)
    if count == 1:
        return verdict_sentence(result, "this run", "is", baseline)
    return verdict_sentence(result, f"these {count} runs", "are", baseline)


def _baseline_text(against: Against) -> str:
    """What the runs are compared with: `the published row ID`, or a baseline, by its number of runs if several."""
    several = against.id.count(", ")
    if several:
        return f"the baseline of {several + 1} runs"  # the foot of the page names them
    if against.kind == "claim":
        return f"the published row {against.id}"
    return f"the {against.kind} {against.id}"


def verdict_sentence(result: VerifyResult, runs: str, are: str, baseline: str) -> str:
    """The verdict on `runs` beside `baseline`, with its qualifiers and the conditions that forbid a comparison."""
    outcome = result.outcome
    if result.qualifiers:
        outcome += f" ({', '.join(result.qualifiers)})"
    sentence = _SENTENCES[result.verdict].format(runs=runs, are=are, other=baseline)
    forbidding = _forbidding_conditions(result)
    if result.verdict is Verdict.NOT_COMPARABLE and forbidding:
        sentence += f": {_names_that_differ(forbidding)}"
    return f"{outcome}: {sentence}"


def _names_that_differ(names: Sequence[str]) -> str:
    """`devices differs`, or `devices, precision, tp and 2 more differ`."""
    if len(names) == 1:
        return f"{names[0]} differs"
    text = ", ".join(names[:_NAMED_CONDITIONS])
    if len(names) > _NAMED_CONDITIONS:
        text += f" and {len(names) - _NAMED_CONDITIONS} more"
    return f"{text} differ"


def _reference_headline(result: VerifyResult) -> str:
    """`REFERENCE 0.96 of 12,473 tokens/s (cited, no verdict)`; qualifiers follow in the brackets."""
    notes = "; ".join(("cited, no verdict", *result.qualifiers))
    return f"{result.verdict.value} {_share_of_cited(result.cited[0])} ({notes})"


def _share_of_cited(row: CitedRow) -> str:
    """`0.96 of 12,473 tokens/s`."""
    published = f"{four_digits(row.value)} {row.unit}"
    if row.ratio is None:
        return f"{NOTHING} of {published}"
    return f"{row.ratio.value:.2f} of {published}"


def _failure_lines(record: Record) -> list[str]:
    """How a failed run ended, and what to do."""
    lines = [f"error: {ending(record)}"]
    if record.status.remedy is not None:
        lines.append(f"fix: {record.status.remedy}")
    return lines


def _measured_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """For a case that measures: devices that are slow, what was not steady, and what is absent, with the reasons."""
    notes: list[str] = []
    for record in records:
        notes += slow_devices(record)
        unsteady = [measurement.name for measurement in record.measurements if not measurement.steady]
        if unsteady:
            notes.append(f"not steady, the median of what was measured in time: {', '.join(unsteady)}")
        if record.quality is not None:
            notes += _absent_notes(record.quality.absent)
    return tuple(map(visible, notes))


def _absent_notes(absent: Mapping[str, str]) -> list[str]:
    """The reasons why something was not measured, each once. A collective is named once, not by size."""
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in absent.items():
        names = names_by_reason.setdefault(reason, [])
        without_size = re.sub(r"_\d+$", "", name)
        if without_size not in names:
            names.append(without_size)
    return [f"not measured: {', '.join(names)} ({reason})" for reason, names in names_by_reason.items()]


def _efficiency(records: Sequence[Record]) -> list[str]:
    """The energy and the price of the runs, each text once."""
    lines: list[str] = []
    for record in records:
        spent = efficiency(record, price_here())
        if spent is None:
            continue
        text = spent.text()
        if text and text not in lines:
            lines.append(text)
    return lines


def _basis_lines(result: VerifyResult) -> list[str]:
    """The records of the verdict, and what they are compared with: the claim that was chosen, or the cited rows."""
    against = result.against
    record_ids = ", ".join(result.records) or "none"
    records = f"records {record_ids}"
    if len(result.records) == 1:
        records = f"record {record_ids}"
    if against.kind == "cited row":
        lines = [records]
        for row in result.cited:
            lines.append(f"cited row {row.id}, {_share_of_cited(row)}: {row.source}")
        return lines
    if against.chosen:
        records += f"; {against.id} is the nearest claim (fewest differing conditions)"
    if ", " in against.id:
        return [records, f"baseline {against.id}"]
    return [records]


def _where_to_look(records: Sequence[Record], result: VerifyResult) -> list[str]:
    """What to run next where no published row is for this device, or each metric has a row of its own."""
    against = result.against
    if against.chosen and any(kind_of(record.config or {}) == MEASURE for record in records):
        return [f"each metric has a row of its own: `flagbench expect {records[0].case}`, then --claim ROW"]
    if result.verdict is not Verdict.NOT_COMPARABLE or against.kind != "claim":
        return []
    if DEVICE_MODEL not in _forbidding_conditions(result):
        return []
    expect = f"`flagbench expect {records[0].case}` shows what is published for a device"
    return [f"no published row fits: {expect}; --baseline RECORD compares with a run of yours"]


def _not_checked(result: VerifyResult) -> list[str]:
    """The conditions that the publisher does not state, and the fields that no rule was applied to."""
    notes = []
    not_published = [
        condition.name for condition in result.conditions if condition.agreement is Agreement.NOT_PUBLISHED
    ]
    if not_published:
        notes.append(f"not published, so not compared: {', '.join(not_published)}")
    if result.not_compared:
        names = visible(brief(", ".join(result.not_compared), 200))
        notes.append(f"not checked, not in the record, in flagbench {__version__} or in any source: {names}")
    return notes


def _metric_table(result: VerifyResult) -> Table:
    """Each metric of the claim or baseline, that of the verdict first, beside the measured one compared with it."""
    expected_column = result.against.kind
    columns = (
        *("metric", "measured", expected_column, "unit", "ratio", "verdict"),
        *("slowest device", "measured as"),
    )
    rows: list[tuple[str, ...]] = []
    for metric in sorted(result.metrics, key=lambda metric: metric.name != result.gate):
        measured_as = metric.held_by
        if metric.held_by == metric.name:
            measured_as = ""
        rows.append(
            (
                metric.name,
                estimate_text(metric.measured),
                metric.expected.text(),
                metric.unit,
                _ratio_or_difference(metric),
                _verdict_text(metric),
                slowest_text(metric.slowest_device),
                measured_as,
            )
        )
    right = frozenset({"measured", expected_column, "ratio"})
    below = ("measured as", "unit", "slowest device", "baseline", "measured", "ratio")
    return without_empty_columns(Table(columns, rows, right, below=below))


def _other_metrics(records: Sequence[Record], compared: Sequence[MetricResult]) -> Table:
    """What else was measured."""
    heading = "metric"
    if compared:
        heading = "other metric"
    compared_names = {metric.held_by for metric in compared}
    rows: list[tuple[str, str, str]] = []
    devices = []
    for name, metrics in _common_metrics(records).items():
        if name in compared_names:
            continue
        measured = estimate(metrics, session=session_of(records, metrics[0]))
        rows.append((name, measured.text(), metrics[0].unit))
        devices.append(slowest_device(metrics))
    table = Table((heading, "measured", "unit"), rows, frozenset({"measured"}))
    return with_slowest(table, devices, "slowest device", place=3)


def with_slowest(table: Table, devices: Sequence[SlowestDevice | None], name: str, place: int) -> Table:
    """The table with a further column `name`, at index `place`: the slowest device of each row.

    The table itself where no row is of several devices.
    """
    if not any(devices):
        return table
    rows = []
    for row, device in zip(table.rows, devices, strict=True):
        rows.append((*row[:place], slowest_text(device), *row[place:]))
    columns = (*table.columns[:place], name, *table.columns[place:])
    return replace(table, columns=columns, rows=rows, below=(name, *table.below))


def _common_metrics(records: Sequence[Record]) -> dict[str, list[Metric]]:
    """The metrics that all records have in the same unit and scope, in the order of the first record."""
    if not records:
        return {}
    metrics_by_name = {}
    for metric in records[0].metrics:
        metrics = common(records, metric.name)
        units_and_scopes = {(metric.unit, metric.scope) for metric in metrics}
        if len(units_and_scopes) == 1:
            metrics_by_name[metric.name] = metrics
    return metrics_by_name


def _interval_notes(records: Sequence[Record], result: VerifyResult) -> list[str]:
    """How the intervals were found: each method once, with the metrics that have it."""
    compared = {metric.held_by: metric.measured for metric in result.metrics}
    names_by_method: dict[str, list[str]] = {}
    for name, metrics in _common_metrics(records).items():
        measured = compared.get(name)
        if measured is None:
            measured = estimate(metrics, session=session_of(records, metrics[0]))
        if measured.ci_method is not None:
            names_by_method.setdefault(measured.ci_method, []).append(name)
    return [f"95 % interval of {', '.join(names)}: {method}" for method, names in names_by_method.items()]


def _verdict_text(metric: MetricResult) -> str:
    if metric.verdict not in (None, Verdict.NOT_COMPARABLE):
        return str(metric.verdict.value)
    if metric.measured is None:
        return NOTHING
    if metric.comparable:
        return "comparable"
    return "not comparable"


def _ratio_or_difference(metric: MetricResult) -> str:
    """The ratio, or the signed difference of a metric that has none, an accuracy."""
    if metric.ratio is None and metric.difference is not None:
        return f"{round(metric.difference, 6):+.3g}"
    return ratio_text(metric.ratio)


def estimate_text(estimate: Estimate | None) -> str:
    """`1510 [1490, 1530]`; `-` for none."""
    if estimate is None:
        return NOTHING
    return estimate.text()


def ratio_text(ratio: Ratio | None) -> str:
    """`0.777 [0.767, 0.788]`; `-` for none."""
    if ratio is None:
        return NOTHING
    return str(ratio)


def setting_text(value: object) -> str:
    """A configuration value as a person writes it: `true`, `none`, `0.1`, `a, b`; `-` for an absent one.

    Text that would read as something else is quoted: "true" is not true.
    """
    if value is ABSENT:
        return NOTHING
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        if _misleading(value):
            return json.dumps(value, ensure_ascii=False)
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(_nested, value)) or "(empty)"
    if isinstance(value, dict):
        settings = [f"{name}: {_nested(setting)}" for name, setting in value.items()]
        return ", ".join(settings) or "(empty)"
    return str(value)


def _nested(value: object) -> str:
    """A value inside a list: brackets keep together what belongs together."""
    text = setting_text(value)
    if isinstance(value, list | tuple | dict) and value:
        return f"({text})"
    return text


def _misleading(text: str) -> bool:
    if text.strip() != text or text in ("", NOTHING, "none", "true", "false", "(empty)"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True
