"""Prints the series of `flagbench run --repeat` and `--interleave` when they have ended.

Each series has its verdict and a table of its runs. `cli/run.py` calls `show`, and `verdict_of` for a single run.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from flagbench.console.output import echo_json, echo_json_text, print_error, print_page
from flagbench.console.page import Table
from flagbench.console.stdio import NotPrinted
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import has_claims, verify_nearest
from flagbench.manifests.model import Case, Catalog
from flagbench.records.runs_and_series import Runs
from flagbench.records.series import Series
from flagbench.records.series_document import SeriesRun
from flagbench.report import verdict_table
from flagbench.runs.series import Side
from flagbench.verdict import verify_claim
from flagbench.verdict.interval import Terms
from flagbench.verdict.series import look_level, with_series


def show(
    sides: Sequence[Side], catalog: Catalog, claim: str | None, store: str | None, *, wide: bool, as_json: bool
) -> None:
    """Print each series with its verdict, or as JSON: one document, or a list of two.

    A series or a record that could not be stored is printed in both formats, because it is nowhere else. If stdout
    cannot be written to, that raises NotPrinted; if everything is stored, it is only reported on stderr.
    """
    ended = [side for side in sides if side.writer is not None and side.series is not None]
    try:
        if as_json:
            _print_documents(ended)
        else:
            _print_tables(ended, catalog, claim, wide=wide)
            if len(ended) == 2:
                print(_next_command(ended, store))
        sys.stdout.flush()
    except NotPrinted as error:
        if any(side.unstored or not side.stored for side in ended):
            raise
        print_error(str(error), "the records and the series are kept; `flagbench verify last`")


def _print_documents(sides: Sequence[Side]) -> None:
    """Print the series as JSON: one document, or a list of two; nothing if no series is left."""
    documents = [_document(side) for side in sides]
    if len(documents) == 1:
        echo_json(documents[0])
    elif documents:
        echo_json(documents)


def _document(side: Side) -> dict[str, Any]:
    """The series document, with `unstored` for the records that could not be stored."""
    assert side.writer is not None
    document = dict(side.writer.series.to_dict())
    if side.unstored:
        document["unstored"] = [json.loads(content) for content in side.unstored]
    return document


def _print_tables(sides: Sequence[Side], catalog: Catalog, claim: str | None, *, wide: bool) -> None:
    """Print the verdict and the table of each series, then the JSON of what could not be stored."""
    for number, side in enumerate(sides):
        series = side.series
        if series is None:
            continue
        if number:
            print()
        case = catalog.cases[series.document.request.case]
        print(verdict_of(Runs([*series.records], [series]), case, catalog, claim, wide=wide))
        print_page(_run_table(series), wide=wide)
        for content in side.unstored:
            echo_json_text(content.decode("utf-8", "replace").rstrip("\n"))
        if not side.stored:
            echo_json_text(json.dumps(series.document.to_dict(), ensure_ascii=False))


def _run_table(series: Series) -> Table:
    """The runs of a series, in order."""
    document = series.document
    columns: tuple[str, ...] = ("run", "state", "exit", "seconds", "seed", "record", "reason")
    rows = [_run_row(run) for run in document.runs]
    has_reasons = any(row[-1] for row in rows)
    if not has_reasons:
        columns = columns[:-1]
        rows = [row[:-1] for row in rows]
    title = f"series {document.series_id} of {document.request.image or document.request.case}"
    numbers = frozenset({"run", "exit", "seconds", "seed"})
    return Table(columns, rows, numbers, wrap=("reason",), drop=("seed", "exit"), title=title)


def _run_row(run: SeriesRun) -> tuple[str, ...]:
    """The cells of a run, in the order of the columns of `_run_table`."""
    exit_code = seconds = reason = ""
    if run.exit_code is not None:
        exit_code = str(run.exit_code)
    if run.seconds is not None:
        seconds = f"{run.seconds:.1f}"
    if run.state != "ok":
        reason = run.reason or ""
    state = run.state.replace("_", " ")
    return str(run.run), state, exit_code, seconds, str(run.seed), run.record_id or "", reason


def verdict_of(runs: Runs, case: Case, catalog: Catalog, claim: str | None, *, wide: bool) -> str:
    """The page of `flagbench verify` for all runs together, or the reason why there is no verdict.

    `claim`: the id of the published row to compare with; by default the nearest one.
    """
    try:
        records = runs.to_verify()
        all_ok = all(record.status.state == "ok" for record in records)
        if not records or not all_ok:
            return verdict_table(records, None, wide=wide)
        terms = Terms(level=look_level(runs.summaries("runs"), len(records)))
        if claim is None:
            result = verify_nearest(records, catalog, terms)
        else:
            result = verify_claim(records, catalog.claims[claim], case, terms=terms)
    except FlagbenchError as error:
        return f"no verdict: {error.message}\n"
    if result is None and has_claims(case.name, catalog):
        hint = (
            "no verdict: no published row is of this device and shape\n"
            f"`flagbench expect {case.name}` shows the rows of a device, `flagbench reproduce ROW` runs one in "
            "its shape, `flagbench report last` draws this run beside the published peaks\n"
        )
        return verdict_table(records, None, wide=wide) + hint
    if result is not None:
        result = with_series(result, runs.summaries("runs"))
    return verdict_table(records, result, wide=wide)


def _next_command(sides: Sequence[Side], store: str | None) -> str:
    """The line that names the command with which the second series is compared with the first."""
    series_a, series_b = (side.writer.series.series_id for side in sides if side.writer is not None)
    command = ["flagbench", "verify", series_b, "--baseline", series_a]
    if store is not None:
        command += ["--store", store]
    return f"\nB against A: {shlex.join(command)}"
