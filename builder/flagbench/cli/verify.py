"""`flagbench verify`: does a record reproduce a published number, or hold against a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flagbench.cli import complete

if TYPE_CHECKING:
    from flagbench.record.model import Record
    from flagbench.verify import VerifyResult

RECORD_HELP = "A file, - for standard input, the id of a stored record, or last for the newest stored one."


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
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where records are kept. Default: FLAGBENCH_STORE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say whether a record reproduces a published number, and why not.

    Exits 0 for REPRODUCED and ABOVE, 9 BELOW, 10 NOT_COMPARABLE, 11 INCONCLUSIVE, 12 INVALID.
    """
    from flagbench.cli.output import echo_json
    from flagbench.errors import FlagbenchError

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
    result = _verified([load_record(name, store) for name in names], claim, baseline, store)
    if as_json:
        echo_json(result.to_dict())
    else:
        from flagbench.report import verdict_table

        typer.echo(verdict_table(result), nl=False)
    raise typer.Exit(int(result.verdict.exit_code))


def load_record(name: str, store_url: str | None) -> Record:
    """The record a person named: `-`, `last`, a file, or an id in the store.

    Raises:
        FlagbenchError: there is no such record, or it is not valid.
    """
    import sys
    from pathlib import Path

    from flagbench.errors import ExitCode, FlagbenchError
    from flagbench.record.read import read_record

    if name == "-":
        return read_record(sys.stdin.buffer.read())
    path = Path(name)
    if name != "last" and (path.is_file() or path.suffix == ".json" or len(path.parts) > 1):
        return read_record(path)
    from flagbench.stores import open_store

    store = open_store(store_url)
    if name != "last":
        return read_record(store.get(name))
    newest = store.last()
    if newest is None:
        raise FlagbenchError(
            f"the store {store.url} holds no record",
            remedy="run a case first (`flagbench run distilbert:cpu --preset tiny`), or name the file of a record",
            code=ExitCode.DATA,
        )
    return read_record(store.get(newest.record_id))


def _verified(records: list[Record], claim: str | None, baseline: str | None, store_url: str | None) -> VerifyResult:
    from flagbench.catalog.load import load_catalog
    from flagbench.catalog.lookup import catalog_get
    from flagbench.verify import choose_claim, verify_baseline, verify_claim

    catalog = load_catalog()
    case = catalog_get(catalog.cases, records[0].case, kind="case")
    if baseline is not None:
        return verify_baseline(records, load_record(baseline, store_url), case)
    if claim is not None:
        return verify_claim(records, catalog_get(catalog.claims, claim, kind="claim"), case)
    nearest = choose_claim(records[0], case, catalog.claims.values())
    return verify_claim(records, nearest, case, chosen=True)
