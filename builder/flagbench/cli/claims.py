"""`flagbench claims lint`: what is published, checked against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench.cli.options import JsonOption
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.output import echo_json
from flagbench.terminal import brief
from flagbench_core.exit_codes import ExitCode

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def group() -> None:
    """Check published rows, flagbench's own or a table of yours, against themselves."""


@app.command("lint")
def lint(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A table as CSV, or a claims file (.yaml); - reads CSV from stdin. Default: flagbench's own claims.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check a table of results before it is published, or flagbench's own claims.

    With FILE, prints one line for each finding, `ROW: FIELD: RULE: what is wrong`, and exits 12 if there is one, 3 if
    FILE cannot be read. --json prints {"file", "rows", "findings": [{"row", "line", "name", "field", "rule",
    "message"}], "unknown_devices": [...]}.

    Without, checks every claim: its fields, its names, that a run of it can have its conditions, and that its
    utilisation follows from its throughput. Prints one line for each published utilisation, and exits 2 if one
    neither fits nor is named an anomaly. Also reads the catalogue. --json prints {"claims": N, "utilisations":
    [{"claim", "formula", "throughput", "devices", "printed", "computed", "fit", "anomaly", "problem"}], "catalogue":
    N}.
    """
    if file is None:
        _lint_claims(as_json=json)
    else:
        _lint_table(file, as_json=json)


def _lint_table(file: Path, *, as_json: bool) -> None:
    from flagbench.claims.lint import lint_file  # flagbench's own claims need no table

    result = lint_file(file, load_catalog(claims=False))
    if as_json:
        echo_json(
            {
                "file": str(file),
                "rows": result.rows,
                "findings": [finding.to_dict() for finding in result.findings],
                "unknown_devices": list(result.unknown_devices),
            }
        )
    else:
        for finding in result.findings:
            print(finding)
    if result.unknown_devices:
        names = ", ".join(brief(device, 40) for device in result.unknown_devices)
        typer.echo(
            f"note: no manifest in devices/ has these names, so peak and memory are unknown: {names}", err=True
        )
    count = len(result.findings)
    rows = f"{result.rows} row{'' if result.rows == 1 else 's'}"
    typer.echo(f"{rows}, {count or 'no'} finding{'' if count == 1 else 's'}", err=True)
    if result.findings:
        raise typer.Exit(int(ExitCode.INVALID))


def _lint_claims(*, as_json: bool) -> None:
    from flagbench.manifests.catalogue import read_cases, read_catalogue
    from flagbench.manifests.utilisation import reproductions
    from flagbench.verdict.derivation import contradicted

    catalog = load_catalog()
    wrong = [
        f"{claim.path.name}: {claim.id}: conditions.{name} is {stated!r}, and a run of the row has {given!r}"
        for claim in catalog.claims.values()
        for name, (stated, given) in contradicted(claim, catalog.cases[claim.case]).items()
    ]
    if wrong:
        raise FlagbenchError(
            "\n  ".join(wrong),
            remedy="compare the rows with their source, then write what a run has, or change run.set",
        )
    found, sources = reproductions(catalog), read_catalogue(catalog)
    read_cases(catalog)
    cited = sum(len(source.rows) for source in sources)
    if as_json:
        utilisations = [entry.to_dict() for entry in found]
        echo_json({"claims": len(catalog.claims), "utilisations": utilisations, "catalogue": cited})
    else:
        for entry in found:
            print(f"{entry}, as its anomaly says" if entry.listed and not entry.problem else entry)
        more = f"{cited} rows of {len(sources)} sources in the catalogue"
        print(f"{len(catalog.claims)} claims, {len(found)} utilisations computed again; {more}")
    problems = [entry.problem for entry in found if entry.problem]
    if problems:
        raise FlagbenchError(
            "; ".join(problems),
            remedy="compare the row with its source, then list the misfit as an anomaly or remove the anomaly",
        )
