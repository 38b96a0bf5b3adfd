"""A verdict as a person reads it: the page that `run` ends with and `verify` prints, and a part of every report.

A verdict compares runs with a baseline: a published row (a claim), rows that are only cited, or an earlier run. The
page states it in a headline, shows the numbers and the conditions that it was decided by, and what to look at next.
Runs that have no verdict have the same page without the comparison. Other pages take their tables, texts and colours
of verdicts from here, too.
"""

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
from flagbench.verdict.conditions import DEVICE_MODEL, shown
from flagbench.verdict.early_end import EndedAs
from flagbench.verdict.efficiency import compute_efficiency
from flagbench.verdict.interval import collect_metric, compute_session_share, estimate
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
from flagbench.verdict.subject import describe_ending, describe_slow_devices
from flagbench_core import __version__
from flagbench_core.case_kinds import MEASURE, kind_of

NOTHING = "-"
"""The text of a cell without a value."""
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
"""The terminal's style of a verdict, of the outcome of a check, and of the end of a run that has no verdict."""
_SENTENCES = {
    Verdict.REPRODUCED: "{runs} {are} as fast as {baseline}",
    Verdict.ABOVE: "{runs} {are} faster than {baseline}",
    Verdict.BELOW: "{runs} {are} slower than {baseline}",
    Verdict.INCONCLUSIVE: "not decided whether {runs} {are} as fast as {baseline}",
    Verdict.NOT_COMPARABLE: "{runs} cannot be compared with {baseline}",
    Verdict.INVALID: "the numbers of {runs} cannot be used",
    Verdict.FASTER: "{runs} {are} faster than {baseline}",
    Verdict.SAME: "{runs} {are} as fast as {baseline}",
    Verdict.SLOWER: "{runs} {are} slower than {baseline}",
}
"""What each verdict says. The first six compare with a published row, the last three with another run."""
_MOST_NAMED_CONDITIONS = 3
"""Most conditions that a headline names; it counts the others."""
_SHORT_DIGEST = len("sha256:") + 12
"""Length of a digest on a narrow terminal: 12 digits, as `docker images` shows."""
_MOST_NAME_CHARACTERS = 200
"""Longest list of fields in a note, in characters: a record of a newer version can have many."""


def verdict_table(
    records: Sequence[Record], result: VerifyResult | None, *, stream: TextIO | None = None, wide: bool = False
) -> str:
    """Return `verdict_blocks` as text for `stream` (default stdout)."""
    return render(verdict_blocks(records, result, wide=wide), stream, wide=wide)


def verdict_blocks(
    records: Sequence[Record],
    result: VerifyResult | None,
    *,
    wide: bool = False,
    with_other_metrics: bool = True,
) -> list[Block]:
    """Return the page of a verdict: the headline, the numbers that decide it, and what they rest on.

    Args:
        records: the runs that the verdict is about.
        result: None if there is nothing to compare the runs with, or a run did not end well. The page then has the
            metrics, and how the runs ended.
        wide: whether to show every metric, note and anomaly.
        with_other_metrics: whether to show metrics that are compared with nothing.
    """
    if result is None:
        return _blocks_without_verdict(records, wide=wide, with_metrics=with_other_metrics)
    return _blocks_with_verdict(records, result, wide=wide, with_other_metrics=with_other_metrics)


def _blocks_without_verdict(records: Sequence[Record], *, wide: bool, with_metrics: bool) -> list[Block]:
    record_ids = ", ".join(record.record_id for record in records)
    metrics = _other_metrics(records, ())
    notes = list(_measured_notes(records))
    if not wide:
        without_means = _without_means(metrics)
        hidden = len(metrics.rows) - len(without_means.rows)
        metrics = without_means
        if hidden:
            notes.append(f"--wide shows {_counted(hidden, 'more metric', 'more metrics')}")
    failures: list[str] = []
    for record in records:
        if record.status.state != "ok":
            failures += _failure_lines(record)
    blocks: list[Block] = [Lines((record_ids or "no record",))]
    if with_metrics:
        blocks.append(metrics)
    blocks.append(Lines((*notes, *_efficiency_lines(records))))
    blocks.append(Lines(tuple(failures), "bold red"))
    return blocks


def _without_means(metrics: Table) -> Table:
    """Return the table without the means over repeats whose median is a row, too.

    Some publishers print the mean, so a record has it as well as the median of the same repeats.
    """
    names_of_means = {f"{row[0]}_mean" for row in metrics.rows}
    rows = [row for row in metrics.rows if row[0] not in names_of_means]
    return replace(metrics, rows=rows)


def _blocks_with_verdict(
    records: Sequence[Record], result: VerifyResult, *, wide: bool, with_other_metrics: bool
) -> list[Block]:
    blocks: list[Block] = [Lines((headline(result),), STYLES[result.style])]
    if not result.only_conditions_differ:  # the headline names the conditions
        blocks.append(Lines((result.reason, *_remedies(records))))
    if wide or result.verdict is not Verdict.INVALID:
        blocks += _compared_tables(result)
    other_metrics = _other_metrics(records, result.metrics)
    notes = (*_measured_notes(records), *_interval_notes(records, result), *_unchecked_notes(result))
    anomalies = anomaly_lines(result.anomalies)
    foot = [*_efficiency_lines(records), *_basis_lines(result), *_next_steps(records, result)]
    foot += [visible(series.text) for series in result.series]
    if wide:
        if with_other_metrics:
            blocks.append(other_metrics)
        blocks += (Lines(notes), Lines(anomalies))
    else:
        foot += _what_wide_adds(len(other_metrics.rows), len(notes), len(anomalies))
    blocks.append(Lines(tuple(foot)))
    return blocks


def _remedies(records: Sequence[Record]) -> list[str]:
    """Return what to do about the runs that did not end well, each remedy once."""
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
    """Return the tables of the metrics and of the conditions that differ, the one that decides the verdict first."""
    metrics = _metric_table(result)
    if result.verdict is Verdict.NOT_COMPARABLE:
        return _differing_table(result), metrics
    return metrics, _differing_table(result)


def anomaly_lines(anomalies: Sequence[Anomaly]) -> tuple[str, ...]:
    """Return a line for each anomaly of a published row: something odd in it, which is left as it was printed."""
    return tuple(f"anomaly of {anomaly.field}: {anomaly.note.strip()}" for anomaly in anomalies)


def _what_wide_adds(metrics: int, notes: int, anomalies: int) -> list[str]:
    """Return a line like `--wide shows 4 more metrics, 1 note`; no line if there is nothing more to show.

    The arguments are the numbers of metrics, notes and anomalies that only --wide shows.
    """
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


def _differing_table(result: VerifyResult) -> Table:
    """Return a table of the conditions that differ. Those that forbid the comparison are marked and stand first."""
    deciding = [condition.name for condition in result.forbidding]
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
    """Return the abbreviation of each digest among the conditions that differ."""
    abbreviations = {}
    for condition in result.differing:
        for text in (shown(condition.here), shown(condition.expected)):
            if text.startswith("sha256:"):
                abbreviations[text] = text[:_SHORT_DIGEST]
    return abbreviations


def headline(result: VerifyResult) -> str:
    """Return the verdict in one sentence."""
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
    """Return what the runs are compared with, such as `the published row ID` or `the baseline of 5 runs`."""
    baseline_runs = against.id.count(", ") + 1
    if baseline_runs > 1:
        return f"the baseline of {baseline_runs} runs"  # the foot of the page names them
    if against.kind == "claim":
        return f"the published row {against.id}"
    return f"the {against.kind} {against.id}"


def verdict_sentence(result: VerifyResult, runs: str, are: str, baseline: str) -> str:
    """Return a verdict as a sentence, with its qualifiers and the conditions that forbid a comparison.

    Args:
        runs: the words for the runs that the verdict is about, such as `these 3 runs`.
        are: the verb after `runs`: `is` or `are`.
        baseline: the words for what the runs are compared with.
    """
    outcome = result.outcome
    if result.qualifiers:
        outcome += f" ({', '.join(result.qualifiers)})"
    sentence = _SENTENCES[result.verdict].format(runs=runs, are=are, baseline=baseline)
    if result.forbidding:
        sentence += f": {_names_that_differ([condition.name for condition in result.forbidding])}"
    return f"{outcome}: {sentence}"


def _names_that_differ(names: Sequence[str]) -> str:
    """Return a clause like `devices differs`, or `devices, precision, tp and 2 more differ`."""
    if len(names) == 1:
        return f"{names[0]} differs"
    text = ", ".join(names[:_MOST_NAMED_CONDITIONS])
    if len(names) > _MOST_NAMED_CONDITIONS:
        text += f" and {len(names) - _MOST_NAMED_CONDITIONS} more"
    return f"{text} differ"


def _reference_headline(result: VerifyResult) -> str:
    """Return the headline of runs that are compared with rows that are only cited, which give no verdict.

    It is like `REFERENCE 0.96 of 12,473 tokens/s (cited, no verdict)`; qualifiers follow in the brackets.
    """
    notes = "; ".join(("cited, no verdict", *result.qualifiers))
    return f"{result.verdict.value} {_share_of_cited(result.cited[0])} ({notes})"


def _share_of_cited(row: CitedRow) -> str:
    """Return the ratio to a cited row and the number in it, such as `0.96 of 12,473 tokens/s`.

    The ratio to a time is that of speeds: `1.39 times as fast as 0.8341 s`.
    """
    published = f"{four_digits(row.value)} {row.unit}"
    if row.ratio is None:
        return f"{NOTHING} of {published}"
    if row.unit == "s":
        return f"{row.ratio.value:.2f} times as fast as {published}"
    return f"{row.ratio.value:.2f} of {published}"


def _failure_lines(record: Record) -> list[str]:
    """Return how a failed run ended, and what to do."""
    lines = [f"error: {describe_ending(record)}"]
    if record.status.remedy is not None:
        lines.append(f"fix: {record.status.remedy}")
    return lines


def _measured_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return notes on what a case measured: slow devices, measurements that were not steady, and absent ones."""
    notes: list[str] = []
    for record in records:
        notes += describe_slow_devices(record)
        unsteady = [measurement.name for measurement in record.measurements if not measurement.steady]
        if unsteady:
            notes.append(f"not steady, the median of what was measured in time: {', '.join(unsteady)}")
        if record.quality is not None:
            notes += _absent_notes(record.quality.absent)
    return tuple(map(visible, notes))


def _absent_notes(absent: Mapping[str, str]) -> list[str]:
    """Return a note for each reason why something was not measured.

    A collective is measured with several sizes, which end its names; it is named once, without a size.
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in absent.items():
        names = names_by_reason.setdefault(reason, [])
        without_size = re.sub(r"_\d+$", "", name)
        if without_size not in names:
            names.append(without_size)
    return [f"not measured: {', '.join(names)} ({reason})" for reason, names in names_by_reason.items()]


def _efficiency_lines(records: Sequence[Record]) -> list[str]:
    """Return the energy and the price of the runs, each text once."""
    lines: list[str] = []
    for record in records:
        energy_and_price = compute_efficiency(record, price_here())
        if energy_and_price is None:
            continue
        text = energy_and_price.text()
        if text and text not in lines:
            lines.append(text)
    return lines


def _basis_lines(result: VerifyResult) -> list[str]:
    """Return the ids of the records, and what they are compared with: the chosen claim, or the cited rows."""
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


def _next_steps(records: Sequence[Record], result: VerifyResult) -> list[str]:
    """Return what to run next if no published row is for this device, or if each metric has a row of its own."""
    against = result.against
    measures_device = any(kind_of(record.config or {}) == MEASURE for record in records)
    if against.chosen and measures_device:
        return [f"each metric has a row of its own: `flagbench expect {records[0].case}`, then --claim ROW"]
    if result.verdict is not Verdict.NOT_COMPARABLE or against.kind != "claim":
        return []
    if all(condition.name != DEVICE_MODEL for condition in result.forbidding):
        return []
    expect = f"`flagbench expect {records[0].case}` shows what is published for a device"
    return [f"no published row fits: {expect}; --baseline RECORD compares with a run of yours"]


def _unchecked_notes(result: VerifyResult) -> list[str]:
    """Return notes on the conditions that the publisher does not state, and the fields without a rule."""
    notes = []
    not_published = []
    for condition in result.conditions:
        if condition.agreement is Agreement.NOT_PUBLISHED:
            not_published.append(condition.name)
    if not_published:
        notes.append(f"not published, so not compared: {', '.join(not_published)}")
    if result.not_compared:
        names = visible(brief(", ".join(result.not_compared), _MOST_NAME_CHARACTERS))
        notes.append(f"not checked, not in the record, in flagbench {__version__} or in any source: {names}")
    return notes


def _metric_table(result: VerifyResult) -> Table:
    """Return a table of each metric of the claim or baseline and the measured one; the one that decides comes first.

    Its last column names the measured metric if that has another name than the published one.
    """
    expected_column = result.against.kind
    columns = (
        "metric",
        "measured",
        expected_column,
        "unit",
        "ratio",
        "verdict",
        "slowest device",
        "measured as",
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
    """Return a table of the metrics that are not among the compared ones."""
    heading = "metric"
    if compared:
        heading = "other metric"
    compared_names = {metric.held_by for metric in compared}
    rows: list[tuple[str, str, str]] = []
    slowest_devices = []
    for name, metrics in _common_metrics(records).items():
        if name in compared_names:
            continue
        measured = estimate(metrics, session=compute_session_share(records, metrics[0]))
        rows.append((name, measured.text(), metrics[0].unit))
        slowest_devices.append(slowest_device(metrics))
    columns = (heading, "measured", "unit")
    table = Table(columns, rows, frozenset({"measured"}))
    return with_slowest(table, slowest_devices, "slowest device", place=len(columns))


def with_slowest(table: Table, devices: Sequence[SlowestDevice | None], name: str, place: int) -> Table:
    """Return the table with a further column that names the slowest device of each row.

    If no row was measured on several devices, the table has no such column.

    Args:
        devices: the slowest device of each row; None for a row of a single device.
        name: the name of the new column.
        place: its index.
    """
    if not any(devices):
        return table
    rows = []
    for row, device in zip(table.rows, devices, strict=True):
        rows.append((*row[:place], slowest_text(device), *row[place:]))
    columns = (*table.columns[:place], name, *table.columns[place:])
    return replace(table, columns=columns, rows=rows, below=(name, *table.below))


def _common_metrics(records: Sequence[Record]) -> dict[str, list[Metric]]:
    """Return the metrics of all records by name, in the order of the first record.

    Only metrics that every record has, in the same unit and scope, are in it.
    """
    if not records:
        return {}
    metrics_by_name = {}
    for metric in records[0].metrics:
        metrics = collect_metric(records, metric.name)
        units_and_scopes = {(metric.unit, metric.scope) for metric in metrics}
        if len(units_and_scopes) == 1:
            metrics_by_name[metric.name] = metrics
    return metrics_by_name


def _interval_notes(records: Sequence[Record], result: VerifyResult) -> list[str]:
    """Return how the intervals were computed: a note for each method, with the metrics it was used for."""
    compared = {metric.held_by: metric.measured for metric in result.metrics}
    names_by_method: dict[str, list[str]] = {}
    for name, metrics in _common_metrics(records).items():
        measured = compared.get(name)
        if measured is None:
            measured = estimate(metrics, session=compute_session_share(records, metrics[0]))
        if measured.ci_method is not None:
            names_by_method.setdefault(measured.ci_method, []).append(name)
    return [f"95 % interval of {', '.join(names)}: {method}" for method, names in names_by_method.items()]


def _verdict_text(metric: MetricResult) -> str:
    """Return the verdict on one metric; without a verdict, whether it can be compared, or `-` if not measured."""
    if metric.verdict not in (None, Verdict.NOT_COMPARABLE):
        return str(metric.verdict.value)
    if metric.measured is None:
        return NOTHING
    if metric.comparable:
        return "comparable"
    return "not comparable"


def _ratio_or_difference(metric: MetricResult) -> str:
    """Return the ratio; for a metric that has no ratio, such as an accuracy, the signed difference."""
    if metric.ratio is None and metric.difference is not None:
        difference = round(metric.difference, 6)  # a rounding error is shown as 0
        return f"{difference:+.3g}"
    return ratio_text(metric.ratio)


def estimate_text(estimate: Estimate | None) -> str:
    """Return a number with its interval, such as `1510 [1490, 1530]`; `-` for None."""
    if estimate is None:
        return NOTHING
    return estimate.text()


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval, such as `0.777 [0.767, 0.788]`; `-` for None."""
    if ratio is None:
        return NOTHING
    return str(ratio)


def setting_text(value: object) -> str:
    """Return a configuration value as a person writes it: `true`, `none`, `0.1`, `a, b`; `-` for an absent one.

    Text that would read as something else is quoted: "true" is not true.
    """
    if value is ABSENT:
        return NOTHING
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        if _reads_as_another_value(value):
            return json.dumps(value, ensure_ascii=False)
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(_nested_setting_text, value)) or "(empty)"
    if isinstance(value, dict):
        settings = [f"{name}: {_nested_setting_text(setting)}" for name, setting in value.items()]
        return ", ".join(settings) or "(empty)"
    return str(value)


def _nested_setting_text(value: object) -> str:
    """Return the text of a value inside a list or an object: one with several parts is put in brackets."""
    text = setting_text(value)
    if isinstance(value, list | tuple | dict) and value:
        return f"({text})"
    return text


def _reads_as_another_value(text: str) -> bool:
    """Return whether `setting_text` of a string would look like a number, a word with a meaning, or nothing."""
    if text.strip() != text or text in ("", NOTHING, "none", "true", "false", "(empty)"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True
