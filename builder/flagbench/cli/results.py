"""`flagbench results`: the records in a store, listed and shown."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flagbench.cli.complete import records as complete_records
from flagbench.cli.records import STORED_HELP, JsonOption, StoreOption, WideOption, note, stored_record

if TYPE_CHECKING:
    from flagbench.record.model import Metric, Record
    from flagbench.stores import Store, StoredRecord

app = typer.Typer(
    help="List and show stored records.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.command("ls")
def list_records(
    case: Annotated[str | None, typer.Option(help="Only this case.")] = None,
    stack: Annotated[str | None, typer.Option(help="Only this stack, by name or alias.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 20,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List stored records, newest first.

    Damaged records, and files in the store that are not records, are listed as such with the reason on stderr.
    They hide nothing: the exit code is 0.

    --json prints {"store": URL, "records": [...]}; a record has record_id, created_at, case, stack,
    location, preset, division, state and metrics {name: value}. Of a damaged one, whose error says
    why, preset, division and state are null and metrics is empty.
    """
    from flagbench.catalog.load import load_catalog
    from flagbench.catalog.lookup import catalog_get, get_stack
    from flagbench.cli.output import echo, echo_json, echo_table
    from flagbench.stores import open_store

    # A misspelt name would otherwise look like an empty store.
    catalog = load_catalog()
    case_name = catalog_get(catalog.cases, case, kind="case").name if case else None
    stack_name = get_stack(stack, catalog).name if stack else None
    place = open_store(store)
    newest = islice(place.list(case_name, stack_name), min(limit, sys.maxsize))
    entries = [_entry(place, found) for found in newest]
    if json:
        echo_json({"store": place.url, "records": entries})
        return
    if not entries:
        echo(f"no records in {place.url}")
        return
    gates = {known.name: known.gate for known in catalog.cases.values()}
    columns = ["record", "created", "image", "preset", "state", "gate"]
    rows = [_row(entry, gates.get(entry["case"])) for entry in entries]
    echo_table(columns, rows, drop=("created", "preset", "image", "state", "gate"), wide=wide)
    for entry in entries:
        if "error" in entry:
            note(entry["location"], entry["error"])


def _entry(place: Store, found: StoredRecord) -> dict[str, Any]:
    from flagbench.errors import FlagbenchError
    from flagbench.record.read import read_record

    entry: dict[str, Any] = {**vars(found), "preset": None, "division": None, "state": None, "metrics": {}}
    problem = entry.pop("problem")
    try:
        record = read_record(place.read(found))
    except FlagbenchError as error:
        return {**entry, "error": problem or error.message}
    entry.update(preset=record.preset, division=record.division, state=record.status.state)
    entry["metrics"] = {metric.name: metric.value for metric in record.metrics}
    return entry


def _row(entry: dict[str, Any], gate: str | None) -> list[str]:
    image = f"{entry['case']}:{entry['stack']}"
    value = entry["metrics"].get(gate)
    shown = f"{gate} {value:.5g}" if value is not None else "-"
    return [
        entry["record_id"],
        entry["created_at"],
        image,
        entry["preset"] or "-",
        entry["state"] or "damaged",
        shown,
    ]


@app.command("show")
def show_record(
    record: Annotated[
        str, typer.Argument(metavar="[RECORD]", autocompletion=complete_records, help=STORED_HELP)
    ] = "last",
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Show one record: how it ended, its metrics with their intervals, its conditions and checks.

    --json prints the record as it was stored, byte for byte.
    """
    from flagbench.cli.output import echo_json_text
    from flagbench.record.read import read_record
    from flagbench.stores import open_store

    content = stored_record(record, open_store(store))
    parsed = read_record(content)
    if json:
        echo_json_text(content.decode("utf-8").rstrip("\n"))
        return
    _show(parsed, wide)


def _show(record: Record, wide: bool) -> None:
    from flagbench.cli.output import echo, echo_table
    from flagbench.terminal import visible
    from flagbench.verify.conditions import shown

    status = record.status
    ended = f"{status.state} (exit code {status.exit_code}, in phase {status.phase})"
    facts = {
        "record": record.record_id,
        "image": f"{record.case}:{record.stack}",
        "preset": f"{record.preset}, {record.division} division",
        "created": record.created_at,
        "status": ended,
        "reason": status.reason,
        "fix": status.remedy,
        "config": record.config_digest,
    }
    for name, fact in facts.items():
        if fact is not None:
            echo(f"{name:<8} {visible(fact)}")
    if record.metrics:
        echo()
        columns = ["metric", "value", "unit", "scope", "95 % interval", "n", "note"]
        drop = ("note", "n", "scope", "95 % interval", "unit")
        echo_table(columns, [_metric_row(metric) for metric in record.metrics], cut=("note",), drop=drop, wide=wide)
    if record.conditions:
        echo()
        rows = [[name, shown(value)] for name, value in record.conditions.items()]
        echo_table(["condition", "value"], rows, cut=("value",), wide=wide)
    if record.checks:
        echo()
        rows = [[check.name, "ok" if check.ok else "FAILED", check.detail] for check in record.checks]
        echo_table(["check", "result", "detail"], rows, cut=("detail",), wide=wide)


def _metric_row(metric: Metric) -> list[str]:
    interval = "-"
    if metric.ci95 is not None:
        low, high = metric.ci95
        method = f" ({metric.ci_method})" if metric.ci_method else ""
        interval = f"{low:.6g} to {high:.6g}{method}"
    count = str(metric.n) if metric.n is not None else "-"
    return [metric.name, f"{metric.value:.6g}", metric.unit, metric.scope, interval, count, metric.note or ""]
