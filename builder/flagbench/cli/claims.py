"""`flagbench claims lint`: what is published, checked against itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import catalog_get
from flagbench.catalog.model import Catalog
from flagbench.cli import complete
from flagbench.cli.options import JsonOption
from flagbench.cli.output import echo_json
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.terminal import brief

if TYPE_CHECKING:
    from flagbench.claims.lint import LintResult

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Check published rows, flagbench's own or a table of yours, against themselves."""


@app.command("lint")
def lint(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A table: CSV, YAML, JSON or Markdown; - for stdin. Default: flagbench's own claims.",
        ),
    ] = None,
    case: Annotated[
        str | None,
        typer.Option(
            metavar="CASE", autocompletion=complete.case_names, help="With FILE: the case of rows that name none."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check a table of results before it is published, or flagbench's own claims.

    With FILE, prints one line for each finding, `ROW: FIELD: RULE: what is wrong`, and exits 12 if there is one, 3 if
    FILE holds no table. --json prints {"file", "rows", "findings": [{"row", "line", "name", "field", "rule",
    "message"}], "unused_columns": [...], "unknown_devices": [...], "rows_without_case": N}.

    Without, checks every claim: its fields, its names, and that its utilisation follows from its throughput. Prints
    one line for each published utilisation, and exits 2 if one neither fits nor is named an anomaly. --json prints
    {"claims": N, "utilisations": [{"claim", "formula", "throughput", "devices", "printed", "computed", "fit",
    "anomaly", "problem"}]}.
    """
    if file is not None:
        _lint_table(file, case, as_json=json)
    elif case is not None:
        raise FlagbenchError("--case is for the rows of a table", remedy="name the FILE, or leave --case out")
    else:
        _lint_claims(as_json=json)


def _lint_table(file: str, case_name: str | None, *, as_json: bool) -> None:
    from flagbench.claims.lint import lint_content  # flagbench's own claims need no table
    from flagbench.files import TEXT_BYTES, expanded, read_input, read_stdin, reason

    catalog = load_catalog(claims=False)
    case = None if case_name is None else catalog_get(catalog.cases, case_name, kind="case")
    shown = "standard input" if file == "-" else brief(file)
    try:
        content = read_stdin(TEXT_BYTES) if file == "-" else read_input(expanded(Path(file)), TEXT_BYTES)
    except OSError as error:
        raise FlagbenchError(
            f"{shown} cannot be read: {reason(error)}", remedy="name a CSV, YAML or Markdown file", code=ExitCode.DATA
        ) from error
    result = lint_content(content, shown, catalog, case)
    if as_json:
        echo_json(
            {
                "file": file,
                "rows": result.rows,
                "findings": [finding.to_dict() for finding in result.findings],
                "unused_columns": list(result.unknown),
                "unknown_devices": list(result.unknown_devices),
                "rows_without_case": result.without_case,
            }
        )
    else:
        for finding in result.findings:
            print(finding)
    _print_notes(result, catalog)
    if result.findings:
        raise typer.Exit(int(ExitCode.INVALID))


def _print_notes(result: LintResult, catalog: Catalog) -> None:
    """On stderr: what was not checked, and how much was found."""
    if result.unknown:
        columns = ", ".join(brief(header, 40) for header in result.unknown)
        typer.echo(f"note: no rule uses these columns: {columns}", err=True)
    if result.without_case:
        typer.echo(
            f"note: {result.without_case} of {result.rows} rows name no known case, so most rules were not applied; "
            f"add a column case, or --case with one of {', '.join(catalog.cases)}",
            err=True,
        )
    if result.unknown_devices:
        names = ", ".join(brief(device, 40) for device in result.unknown_devices)
        typer.echo(f"note: no peak and no memory is known of these devices: {names}", err=True)
    count = len(result.findings)
    rows = f"{result.rows} row{'' if result.rows == 1 else 's'}"
    typer.echo(f"{rows}, {count or 'no'} finding{'' if count == 1 else 's'}", err=True)


def _lint_claims(*, as_json: bool) -> None:
    from flagbench.verify import reproductions

    catalog = load_catalog()
    found = reproductions(catalog)
    if as_json:
        echo_json({"claims": len(catalog.claims), "utilisations": [entry.to_dict() for entry in found]})
    else:
        for entry in found:
            print(f"{entry}, as its anomaly says" if entry.listed and not entry.problem else entry)
        print(f"{len(catalog.claims)} claims, {len(found)} utilisations computed again")
    problems = [entry.problem for entry in found if entry.problem]
    if problems:
        raise FlagbenchError(
            "; ".join(problems),
            remedy="compare the row with its source, then list the misfit as an anomaly or remove the anomaly",
        )
