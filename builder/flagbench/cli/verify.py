"""`flagbench verify`: does a record reproduce a published number, or hold against a baseline."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import catalog_get
from flagbench.cli import complete
from flagbench.cli.options import StoreOption, WideOption
from flagbench.cli.output import echo_json
from flagbench.cli.records import RECORD_HELP, load_record
from flagbench.errors import FlagbenchError
from flagbench.record.model import Record
from flagbench.report import verdict_table
from flagbench.verify import VerifyResult, choose_claim, verify_baseline, verify_claim


def command(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECORD]...",
            autocompletion=complete.records,
            help=f"{RECORD_HELP} Default: last. Five runs or more give an interval between runs.",
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.claims,
            help="The claim to hold it against. Default: the nearest claim of the record's case.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RECORD",
            autocompletion=complete.records,
            help="Hold it against another record instead, named the same way.",
        ),
    ] = None,
    store: StoreOption = None,
    wide: WideOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say whether a record reproduces a published number, and why not.

    Exits 0 for REPRODUCED and ABOVE, 9 BELOW, 10 NOT_COMPARABLE, 11 INCONCLUSIVE, 12 INVALID.
    """
    names = records or ["last"]
    if claim is not None and baseline is not None:
        raise FlagbenchError(
            "a record is held against a claim or against a baseline, not both",
            remedy="give --claim or --baseline, and call verify again for the other",
        )
    # Standard input can be read once: a second `-` would be an empty record.
    if [*names, baseline].count("-") > 1:
        raise FlagbenchError(
            "standard input (-) is named more than once", remedy="write the records to files and name those"
        )
    runs = [load_record(name, store) for name in names]
    result = _verified(runs, claim, baseline, store)
    if as_json:
        echo_json(result.to_dict())
    else:
        typer.echo(verdict_table(runs, result, wide=wide), nl=False)
    raise typer.Exit(int(result.verdict.exit_code))


def _verified(records: list[Record], claim: str | None, baseline: str | None, store_url: str | None) -> VerifyResult:
    catalog = load_catalog()
    case = catalog_get(catalog.cases, records[0].case, kind="case")
    if baseline is not None:
        return verify_baseline(records, load_record(baseline, store_url), case)
    if claim is not None:
        return verify_claim(records, catalog_get(catalog.claims, claim, kind="claim"), case)
    nearest = choose_claim(records[0], case, catalog.claims.values())
    return verify_claim(records, nearest, case, chosen=True)
