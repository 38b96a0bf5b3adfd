"""`flagbench results`: the records in a store, listed, shown, exported and removed."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flagbench import complete
from flagbench.cli import results_push, results_remove, results_series
from flagbench.cli.options import JsonOption, StoreOption, WideOption
from flagbench.errors import FlagbenchError
from flagbench.files import reason, write_atomically
from flagbench.output import echo_json, echo_json_text, print_page, size_text
from flagbench.page import Lines, Table
from flagbench.records.bundles import StoredBundle
from flagbench.records.model import Metric, Record
from flagbench.records.named import STORED_HELP, note, stored_record
from flagbench.records.read import read_record
from flagbench.records.series import load_all
from flagbench.records.store import Store, StoredRecord, open_store
from flagbench.report.export import to_csv, to_markdown
from flagbench.report.results import State, select, state_of, with_verdicts
from flagbench.report.tables import setting_text
from flagbench.verdict.conditions import shown
from flagbench_core.exit_codes import ExitCode

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)

CaseOption = Annotated[str | None, typer.Option(help="Only this case.")]
StackOption = Annotated[str | None, typer.Option(help="Only this stack, by name or alias.")]
StateOption = Annotated[State | None, typer.Option(help="Only runs that ended in this state.")]
SinceOption = Annotated[
    str | None, typer.Option(metavar="AGE|DATE", help="Only records since an age (12h, 30d, 2w) or a date.")
]

Format = Literal["csv", "md", "jsonl"]

_SUMMARY = ("preset", "division", "state", "duration", "verdict", "claim")
_COLUMNS = ("record_id", "created_at", "case", "stack", *_SUMMARY)


@app.command("ls")
def list_records(
    case: CaseOption = None,
    stack: StackOption = None,
    state: StateOption = None,
    since: SinceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest.")] = 20,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List stored records, newest first, each with its verdict against the nearest claim of its case.

    Damaged records, and files in the store that are not records, are listed as such with the reason on stderr.
    They hide nothing: the exit code is 0.

    --json prints {"store": URL, "records": [...]}; a record has record_id, created_at, case, stack,
    location, preset, division, state, duration (seconds), verdict, claim, size (bytes) and metrics
    {name: value}. Of a damaged one, whose error says why, what is unknown is null and metrics is empty.
    """
    place = open_store(store)
    # A listing saves the index when it ends or is closed: before the verdicts are remembered, not after.
    with closing(select(place, case=case, stack=stack, state=state, since=since)) as found:
        listed = [*islice(found, min(limit, sys.maxsize))]
    entries = with_verdicts(place, listed)
    if json:
        echo_json({"store": place.url, "records": [_as_json(entry) for entry in entries]})
        return
    if not entries:
        print(f"no records in {place.url}")
        return
    columns = ("RECORD", "CREATED", "IMAGE", "PRESET", "STATE", "DURATION", "GATE", "VERDICT")
    drop = ("CREATED", "PRESET", "DURATION", "IMAGE", "GATE", "STATE", "VERDICT")
    print_page(Table(columns, [_row(entry) for entry in entries], drop=drop), wide=wide)
    for entry in entries:
        if entry.error is not None:
            note(entry.location, entry.error)


def _as_json(entry: StoredRecord) -> dict[str, Any]:
    summary = entry.summary
    return {
        **{name: getattr(entry, name) for name in ("record_id", "case", "stack", "created_at", "location")},
        **{name: getattr(summary, name, None) for name in _SUMMARY},
        "size": entry.blob.size,
        "metrics": {} if summary is None else summary.metrics,
        **({} if entry.error is None else {"error": entry.error}),
    }


def _row(entry: StoredRecord) -> list[str]:
    cells = [entry.record_id, entry.created_at, f"{entry.case}:{entry.stack}"]
    summary = entry.summary
    if summary is None:
        return [*cells, "-", state_of(entry).value, "-", "-", "-"]
    gate = summary.metrics.get(summary.gate or "")
    return [
        *cells,
        summary.preset,
        summary.state,
        "-" if summary.duration is None else _duration(summary.duration),
        "-" if gate is None else f"{summary.gate} {gate:.5g}",
        summary.verdict or "-",
    ]


def _duration(seconds: float) -> str:
    """Seconds as 12.5s, 4m05s or 3h07m."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


@app.command("export")
def export_records(
    format: Annotated[Format, typer.Option("--format", "-f", help="csv and md: a row each; jsonl: the records.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a file, whole or not at all.")
    ] = None,
    case: CaseOption = None,
    stack: StackOption = None,
    state: StateOption = None,
    since: SinceOption = None,
    series: Annotated[
        bool, typer.Option("--series", help="Of jsonl: add the series that these records are of, a line each.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Print stored records for other programs, newest first.

    csv and md have a row per record: what `results ls --json` says of it, and a column per metric. jsonl has the
    records themselves, a line each, and with --series also their series. Damaged ones are left out, with the reason
    on stderr, which also names the records of a series that are not exported.
    """
    if series and format != "jsonl":
        raise FlagbenchError(f"--series adds lines of jsonl, not of {format}", remedy="give --format jsonl")
    place = open_store(store)
    entries = list(select(place, case=case, stack=stack, state=state, since=since))
    if format == "jsonl":
        lines = _lines(place, entries)
        text = "".join([*lines, *(_series_lines(place, entries) if series else ())])
    else:
        text = _table(with_verdicts(place, entries), format)
    if out is None:
        if text:
            (echo_json_text if format == "jsonl" else print)(text.removesuffix("\n"))
        return
    try:
        write_atomically(out, text.encode("utf-8"))
    except OSError as error:
        raise FlagbenchError(
            f"--out {out} cannot be written: {reason(error)}",
            remedy="name a file in a folder that you can write to",
            code=ExitCode.NOT_STORED,
        ) from error


def _lines(place: Store, entries: Sequence[StoredRecord]) -> list[str]:
    """Each record as one line of JSON, byte for byte if it is stored so: a series has the sha256 of its records."""
    lines = []
    for entry, content in place.read_all(entries):
        try:
            if isinstance(content, FlagbenchError):
                raise content
            raw = read_record(content).raw
        except FlagbenchError as error:
            note(entry.location, entry.problem or error.message)
            continue
        text = content.decode("utf-8").removesuffix("\n")
        lines.append((text if "\n" not in text else _one_line(raw)) + "\n")
    return lines


def _series_lines(place: Store, entries: Sequence[StoredRecord]) -> Iterator[str]:
    """The series of these records, each as one line of JSON."""
    exported = {entry.record_id for entry in entries}
    for series_id, series in load_all(place):
        if isinstance(series, FlagbenchError):
            note(series_id, series.message)
            continue
        names = [run.record_id for run in series.runs if run.record_id is not None]
        if not exported.intersection(names):
            continue
        yield _one_line(series.to_dict()) + "\n"
        if lacking := [name for name in names if name not in exported]:
            note(f"series {series_id}", f"not exported: {', '.join(lacking)}")


def _one_line(document: dict[str, Any]) -> str:
    return json_module.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _table(entries: Sequence[StoredRecord], format: Format) -> str:
    for entry in entries:
        if entry.error is not None:
            note(entry.location, entry.error)
    good = [_as_json(entry) for entry in entries if entry.error is None]
    metrics = sorted({name for entry in good for name in entry["metrics"]})
    rows = [
        [*(entry[name] for name in _COLUMNS), *(entry["metrics"].get(name) for name in metrics)] for entry in good
    ]
    return (to_csv if format == "csv" else to_markdown)([*_COLUMNS, *metrics], rows)


@app.command("show")
def show_record(
    record: Annotated[
        str, typer.Argument(metavar="[RECORD]", autocompletion=complete.records, help=STORED_HELP)
    ] = "last",
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Show one record: how it ended, metrics with intervals, conditions, checks, facts of training, bundles.

    --json prints the record as it was stored, byte for byte.
    """
    place = open_store(store)
    content = stored_record(record, place)
    parsed = read_record(content)
    if json:
        echo_json_text(content.decode("utf-8").rstrip("\n"))
        return
    _show(parsed, place.bundles.find(parsed.record_id), wide)


app.command("push")(results_push.push)
app.command("rm")(results_remove.remove)
app.command("prune")(results_remove.prune)
app.command("series")(results_series.command)


def _show(record: Record, bundles: Sequence[StoredBundle], wide: bool) -> None:
    status = record.status
    facts = {
        "record": record.record_id,
        "image": f"{record.case}:{record.stack}",
        "preset": f"{record.preset}, {record.division} division",
        "created": record.created_at,
        "status": f"{status.state} (exit code {status.exit_code}, in phase {status.phase})",
        "reason": status.reason,
        "fix": status.remedy,
        "config": record.config_digest,
    }
    metrics = ("METRIC", "VALUE", "UNIT", "SCOPE", "95 % INTERVAL", "N", "NOTE")
    drop = ("NOTE", "N", "SCOPE", "95 % INTERVAL", "UNIT")
    conditions = [(name, shown(value)) for name, value in record.conditions.items()]
    kept = [(str(bundle.place.node), size_text(bundle.size), bundle.location) for bundle in bundles]
    checks = [(check.name, "ok" if check.ok else "FAILED", check.detail) for check in record.checks]
    print_page(
        Lines(tuple(f"{name:<8} {fact}" for name, fact in facts.items() if fact is not None)),
        Table(metrics, list(map(_metric_row, record.metrics)), cut=("NOTE",), drop=drop),
        Table(("CONDITION", "VALUE"), conditions, cut=("VALUE",)),
        Table(("CHECK", "RESULT", "DETAIL"), checks, cut=("DETAIL",)),
        Table(("TRAINING", "VALUE"), _training_rows(record), cut=("VALUE",)),
        Table(("NODE", "SIZE", "BUNDLE"), kept, drop=("SIZE",)),
        wide=wide,
    )


def _training_rows(record: Record) -> list[tuple[str, str]]:
    """What the case knows once training has ended, by name: a predicted bubble follows the measured one."""
    facts = (record.quality and record.quality.training) or {}
    return [(name, setting_text(_rounded(value))) for name, value in sorted(facts.items())]


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _metric_row(metric: Metric) -> list[str]:
    interval = "-"
    if metric.ci95 is not None:
        low, high = metric.ci95
        method = f" ({metric.ci_method})" if metric.ci_method else ""
        interval = f"{low:.6g} to {high:.6g}{method}"
    count = str(metric.n) if metric.n is not None else "-"
    return [metric.name, f"{metric.value:.6g}", metric.unit, metric.scope, interval, count, metric.note or ""]
