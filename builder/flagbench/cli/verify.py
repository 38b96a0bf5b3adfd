"""`flagbench verify`: does a record reproduce a published number, or hold against a baseline."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import catalog_get
from flagbench.cli import complete
from flagbench.cli.options import JsonOption, StoreOption, WideOption
from flagbench.cli.output import echo_json
from flagbench.cli.records import RECORD_HELP, load_records
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
    as_json: JsonOption = False,
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
    runs = load_records(names if baseline is None else [*names, baseline], store)
    base = None if baseline is None else runs.pop()
    result = _verified(runs, claim, base)
    if as_json:
        echo_json(result.to_dict())
    else:
        print(verdict_table(runs, result, wide=wide), end="")
    raise typer.Exit(int(result.verdict.exit_code))


def _verified(records: list[Record], claim: str | None, baseline: Record | None) -> VerifyResult:
    catalog = load_catalog()
    case = catalog_get(catalog.cases, records[0].case, kind="case")
    if baseline is not None:
        return verify_baseline(records, baseline, case)
    if claim is not None:
        return verify_claim(records, catalog_get(catalog.claims, claim, kind="claim"), case)
    return verify_claim(records, choose_claim(records[0], case, catalog.claims.values()), case, chosen=True)
