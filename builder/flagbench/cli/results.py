"""`flagbench results`: lists, shows, exports and removes the records in a store, and stores those that wait.

A record is the JSON of one run. A series is several runs of one configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli import results_remove
from flagbench.cli.options import JsonOption, StoreOption, WideOption
from flagbench.console.output import echo_json, echo_json_text, print_error, print_note, print_page
from flagbench.console.page import Table
from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.history.selection import State, names, select
from flagbench.history.verdicts import with_verdicts
from flagbench.price import check_price
from flagbench.records.named import RECORD_HELP, is_path, named_series, note, stored_record
from flagbench.records.push import NotSent, push
from flagbench.records.read import read_content, read_record
from flagbench.records.series import load_all, load_series
from flagbench.records.series_document import SeriesDocument
from flagbench.records.store import open_store
from flagbench.report.export import Format, as_json, record_lines, series_lines, summary_rows
from flagbench.report.record_page import listing, record_page
from flagbench.system.files import reason, write_atomically
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)

CaseOption = Annotated[str | None, typer.Option(help="Only this case.")]
StackOption = Annotated[str | None, typer.Option(help="Only this stack, by name or alias.")]
StateOption = Annotated[State | None, typer.Option(help="Only runs that ended in this state.")]
SinceOption = Annotated[
    str | None, typer.Option(metavar="AGE|DATE", help="Only records since an age (12h, 30d, 2w) or a date.")
]


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
    location, host (of node 0), preset, division, state, exit_code, reason, duration (seconds), verdict, claim,
    size (bytes) and metrics {name: value}. Of a damaged one, whose error says why, what is unknown is null and
    metrics is empty.
    """
    place = open_store(store)
    # The listing saves its index of the store when it is closed: before the verdicts are saved there, too.
    with closing(select(place, case=case, stack=stack, state=state, since=since)) as matching:
        # One more than are shown, to know whether there are more; islice accepts no number above sys.maxsize.
        listed = [*islice(matching, min(limit, sys.maxsize - 1) + 1)]
    entries = with_verdicts(place, listed[:limit])
    if len(listed) > limit:
        total = ""
        if not state and not since:  # otherwise all records would have to be read to count them
            total = f" of {place.count(case, *names(case, stack)[1]):,}"
        print_note(f"flagbench: the newest {limit:,}{total} records; --limit N shows more")
    if json:
        echo_json({"store": place.url, "records": [as_json(entry) for entry in entries]})
        return
    if not entries:
        message = f"no records in {place.url}"
        if place.missing:
            message += ", which does not exist"
        print(message)
        return
    print_page(listing(entries), wide=wide)
    for entry in entries:
        if entry.error is not None:
            note(entry.location, entry.error)


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
        lines = [*record_lines(place, entries)]
        if series:
            lines += series_lines(place, entries)
        text = "".join(lines)
    else:
        text = summary_rows(with_verdicts(place, entries), format)
    if out is None:
        text = text.removesuffix("\n")
        if text and format == "jsonl":
            echo_json_text(text)
        elif text:
            print(text)
        return
    try:
        write_atomically(out, text.encode("utf-8"))
    except OSError as error:
        raise FlagbenchError(
            f"--out {out} cannot be written: {reason(error)}",
            remedy="name a file in a folder that you can write to",
            code=ExitCode.NOT_STORED,
        ) from error


@app.command("show")
def show_record(
    record: Annotated[
        str, typer.Argument(metavar="RECORD", autocompletion=complete.records, help=RECORD_HELP)
    ] = "last",
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Show one record: how it ended, metrics with intervals, conditions, checks, facts of training, bundles.

    --json prints the record as it was stored, byte for byte; on a terminal, with invisible characters escaped.
    """
    check_price()
    place = open_store(store)
    if is_path(record):
        file = None  # stdin
        if record != "-":
            file = Path(record)
        content, name = read_content(file)
    else:
        content = stored_record(record, place)
        name = "the record"
    parsed = read_record(content, name)
    if json:
        echo_json_text(content.decode("utf-8").rstrip("\n"))
        return
    print_page(*record_page(parsed, place.bundles.find(parsed.record_id)), wide=wide)


app.command("rm")(results_remove.command)


@app.command("push")
def push_records(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="OUT|FILE",
            help="Folders of --out, or records; by default what runs of this user could not store.",
        ),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Store records and bundles that runs could not store, each where it was meant to go, or files of --out.

    --store names another place for all of them. One that is stored already, with the same bytes, is no error. What
    fails stays where it is; the others are stored.

    --json prints {"stored": [{record_id, location}], "bundles": [{record_id, location}],
    "failed": [{name, error}]}.
    """
    sent: dict[str, list[dict[str, str]]] = {"stored": [], "bundles": []}
    failed: list[NotSent] = []
    for push_result in push(files or (), store_url=store):
        if isinstance(push_result, NotSent):
            failed.append(push_result)
            continue
        key = "stored"
        subject = f"record {push_result.record_id}"
        if push_result.bundle:
            key = "bundles"
            subject = f"bundle of {push_result.record_id}"
        sent[key].append({"record_id": push_result.record_id, "location": push_result.location})
        if not json:
            typer.echo(visible(f"{subject} kept in {push_result.location}"), err=True)
    # Many records may fail for one reason, which is printed once.
    reasons = dict.fromkeys((failure.error.message, failure.error.remedy) for failure in failed)
    for message, remedy in reasons:
        print_error(message, remedy)
    if json:
        errors = [{"name": failure.name, "error": redact(failure.error.message)} for failure in failed]
        echo_json({**sent, "failed": errors})
    elif not (any(sent.values()) or failed):
        typer.echo("nothing is waiting to be stored", err=True)
    if failed:
        raise typer.Exit(int(failed[0].error.code))


@app.command("series")
def list_series(
    series: Annotated[
        str | None,
        typer.Argument(metavar="SERIES", autocompletion=complete.series, help="Print this one, as JSON."),
    ] = None,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List the series that `flagbench run --repeat` stored, or print one, which `flagbench verify` takes as a file.

    One that has not ended, or was killed, is listed too. Damaged ones are reported on stderr.

    --json prints {"store": URL, "series": [...]}, each as it is stored.
    """
    place = open_store(store)
    if series is not None:
        echo_json(load_series(place, named_series(series, place) or series).to_dict())
        return
    readable: list[SeriesDocument] = []
    damaged: list[tuple[str, FlagbenchError]] = []
    for series_id, loaded in load_all(place):
        if isinstance(loaded, FlagbenchError):
            damaged.append((series_id, loaded))
        else:
            readable.append(loaded)
    if json:
        echo_json({"store": place.url, "series": [document.to_dict() for document in readable]})
    elif readable:
        columns = ("SERIES", "STARTED", "IMAGE", "RUNS", "OK", "STATE")
        rows = [_series_row(document) for document in readable]
        print_page(Table(columns, rows, drop=("STARTED", "IMAGE", "STATE")), wide=wide)
    else:
        print(f"no series in {place.url}")
    for series_id, error in damaged:
        note(series_id, error.message)


def _series_row(series: SeriesDocument) -> Sequence[str]:
    """The row of a series, with the columns SERIES, STARTED, IMAGE, RUNS, OK and STATE."""
    request = series.request
    image = request.image or f"{request.case}:{request.stack}"
    count_ok = sum(run.state == "ok" for run in series.runs)
    state = "ended"
    if series.ended_at is None:
        state = "not ended"
    return series.series_id, series.started_at, image, str(series.requested), str(count_ok), state
