"""`flagbench verify`: does a record reproduce a published number, or hold against a baseline."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import catalog_get
from flagbench.cli import complete
from flagbench.cli.options import JsonOption, StoreOption, WideOption
from flagbench.cli.output import echo_json
from flagbench.cli.records import RECORD_HELP, require_one_stdin
from flagbench.cli.series import SERIES_HELP, Runs, load_runs
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Record
from flagbench.report import verdict_table
from flagbench.verify import Verdict, VerifyResult, choose_claim, verify_baseline, verify_claim
from flagbench.verify.provenance import with_provenance
from flagbench.verify.result import Against


def command(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECORD|SERIES]...",
            autocompletion=complete.runs,
            help=f"{RECORD_HELP} {SERIES_HELP} Default: last. Five runs or more give an interval between runs.",
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
            metavar="RECORD|SERIES",
            autocompletion=complete.runs,
            help="Hold it against another record or series instead, named the same way.",
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
    require_one_stdin([*names, *([] if baseline is None else [baseline])])
    runs = load_runs(names, store)
    base = None if baseline is None else load_runs([baseline], store)
    held = runs.to_verify()
    result = with_provenance(
        _verified(held, runs, claim, base),
        held,
        [*runs.summaries("runs"), *(base.summaries("baseline") if base else ())],
        runs.in_series,
    )
    if as_json:
        echo_json(result.to_dict())
    else:
        print(verdict_table(held, result, wide=wide), end="")
    raise typer.Exit(int(result.verdict.exit_code))


def _verified(records: list[Record], runs: Runs, claim: str | None, baseline: Runs | None) -> VerifyResult:
    """The verdict on the records, before what is known of their series."""
    catalog = load_catalog()
    named = records[0].case if records else runs.series[0].document.request.case
    case = catalog_get(catalog.cases, named, kind="case")
    if baseline is not None and baseline.problems:
        raise FlagbenchError(
            f"the baseline cannot be used: {'; '.join(baseline.problems)}",
            remedy="give a series as `flagbench run --repeat` stored it",
            code=ExitCode.DATA,
        )
    if not records:
        against = Against("claim", claim or "") if baseline is None else Against("baseline", "")
        return VerifyResult(Verdict.INVALID, (), "", case.gate, against, (), (), ())
    if baseline is not None:
        any_seed = runs.own_seeds or baseline.own_seeds
        return verify_baseline(records, baseline.to_verify(), case, any_seed=any_seed)
    if claim is not None:
        return verify_claim(records, catalog_get(catalog.claims, claim, kind="claim"), case)
    return verify_claim(records, choose_claim(records[0], case, catalog.claims.values()), case, chosen=True)
