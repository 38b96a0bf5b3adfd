"""`flagbench compare`: two records side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.cli import complete
from flagbench.cli.records import RECORD_HELP, StoreOption, WideOption, load_record


def command(
    a: Annotated[str, typer.Argument(metavar="A", autocompletion=complete.records, help=RECORD_HELP)],
    b: Annotated[
        str,
        typer.Argument(metavar="B", autocompletion=complete.records, help="The other record, named the same way."),
    ],
    store: StoreOption = None,
    wide: WideOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Show what differs between two records of a case, and the ratio B/A of every metric."""
    from flagbench.cli.output import echo_json
    from flagbench.errors import FlagbenchError
    from flagbench.verify import compare_records

    if a == b == "-":
        raise FlagbenchError(
            "standard input (-) is named more than once", remedy="write the records to files and name those"
        )
    comparison = compare_records(load_record(a, store), load_record(b, store))
    if as_json:
        echo_json(comparison.to_dict())
    else:
        from flagbench.report import comparison_table

        typer.echo(comparison_table(comparison, wide=wide), nl=False)
