"""`flagbench verify`: decides whether a record reproduces a published number, or is as fast as a baseline.

A claim is a published row that a case runs. The verdict is computed in flagbench/verdict; this module reads the runs,
chooses what to compare with, and prints the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated

import msgspec
import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, JunitOption, StoreOption, WideOption
from flagbench.console.output import check_outputs, echo_json, write_output
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import verify_nearest
from flagbench.history.priors import named_priors
from flagbench.manifests.load import load_catalog, load_catalog_without_claims
from flagbench.manifests.lookup import catalog_get
from flagbench.manifests.model import Catalog
from flagbench.price import check_price, price_here
from flagbench.records.model import Record
from flagbench.records.named import RECORD_HELP, SERIES_HELP, load_runs, require_one_stdin
from flagbench.records.runs_and_series import Runs
from flagbench.report import explanation_page, verdict_table
from flagbench.report.junit import junit_of_verdict
from flagbench.verdict import Verdict, VerifyResult, verify_baseline, verify_claim
from flagbench.verdict.efficiency import compute_efficiency
from flagbench.verdict.explain import Explanation, explain
from flagbench.verdict.interval import Terms
from flagbench.verdict.result import Against
from flagbench.verdict.series import look_level, with_future_dates, with_series
from flagbench.verdict.stats.faster_or_slower import WITHIN
from flagbench_core.case_kinds import MEASURE
from flagbench_core.exit_codes import ExitCode


def command(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECORD|SERIES",
            autocompletion=complete.runs,
            help=f"{RECORD_HELP} {SERIES_HELP} Default: last. Five runs or more give an interval between runs.",
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.claims,
            help="The claim to compare with. Default: the nearest claim of the record's case.",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RECORD|SERIES",
            autocompletion=complete.runs,
            help="Compare with another record or series instead, named the same way. May be repeated.",
        ),
    ] = None,
    within: Annotated[
        float,
        typer.Option(
            metavar="FRACTION",
            help="With --baseline: the change of speed that counts as the same; 0.02 is 2 %, up or down.",
        ),
    ] = WITHIN,
    why: Annotated[
        bool,
        typer.Option(
            "--explain", help="Say why the runs are slow: what took their time, its share of the gap, what to do."
        ),
    ] = False,
    junit: JunitOption = None,
    store: StoreOption = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether a record reproduces a published number, and why not.

    With --baseline it says whether the runs have become FASTER or SLOWER, or run the SAME. For a case without claims
    it says REFERENCE: the ratio to a row that is only cited, which decides nothing.

    Exits 0 for REPRODUCED, ABOVE, FASTER and SAME, 9 for BELOW and SLOWER, 10 NOT_COMPARABLE, 11 INCONCLUSIVE and
    REFERENCE, 12 INVALID and a run that crashed, ran out of memory, hung or was interrupted.

    --json prints {"schema", "exit_code", "verdict", "qualifiers", "reason", "gate", "against", "records",
    "metrics": [{"name", "held_by", "unit", "better", "measured", "slowest_device": {"rank", "value", "share"},
    "expected", "ratio", "difference", "comparable", "verdict", "reason"}], "conditions": [{"name", "here",
    "expected", "agreement"}], "anomalies": [{"id", "field", "note"}], "series", "not_compared", "findings",
    "efficiency": [{"part", "unit", "padding_included", "per_second", "joules_per_million", "joules_of",
    "joules_source", "joules_error", "price_per_million"}]}, for REFERENCE also "cited": [{"id", "source", "value",
    "unit", "ratio"}], the nearest row first, and with --explain "explanation". Of a run that did not end by itself
    the verdict is INVALID, and "ended": {"state", "exit_code"} says how it ended.
    """
    check_price()
    check_outputs({"--junit": junit})
    names = records or ["last"]
    baseline_names = baseline or []
    _check_options(claim, baseline_names, within)
    require_one_stdin([*names, *baseline_names])
    runs = load_runs(names, store)
    baseline_runs = None
    if baseline_names:
        baseline_runs = load_runs(baseline_names, store)
    judged = runs.to_verify()
    all_records = list(judged)
    if baseline_runs is not None:
        all_records += baseline_runs.records
    series = runs.summaries("runs")
    priors = named_priors([*names, *baseline_names], judged, all_records, store)
    terms = Terms(within, priors, look_level(series, len(judged)))
    result = _judge(judged, runs, claim, baseline_runs, terms)
    if baseline_runs is not None:
        series = [*series, *baseline_runs.summaries("baseline")]
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    result = with_future_dates(with_series(result, series), judged, now)
    explanation = None
    if why and judged:
        explanation = _explain_runs(judged, result, baseline_runs)
    if junit is not None:
        write_output(junit, junit_of_verdict(result))
    if as_json:
        document = result.to_dict()
        document["efficiency"] = msgspec.to_builtins([compute_efficiency(record, price_here()) for record in judged])
        if why:
            document["explanation"] = None
        if explanation is not None:
            document["explanation"] = msgspec.to_builtins(explanation.to_dict())
        echo_json(document)
    else:
        print(verdict_table(judged, result, wide=wide), end="")
        if explanation is not None:
            print(explanation_page(explanation, wide=wide), end="")
    raise typer.Exit(int(result.verdict.exit_code))


def _explain_runs(records: list[Record], result: VerifyResult, baseline: Runs | None) -> Explanation:
    """Explain why the runs of a verdict are slow."""
    catalog = load_catalog(claims_of="roofs")
    case = catalog_get(catalog.cases, records[0].case, kind="case")
    baseline_records: Sequence[Record] = ()
    if baseline is not None:
        baseline_records = baseline.to_verify()
    return explain(records, result, case, baseline_records, [*catalog.claims.values()])


def _check_options(claim: str | None, baseline: list[str], within: float) -> None:
    """Raise FlagbenchError (USAGE) for options that contradict each other."""
    if claim is not None and baseline:
        raise FlagbenchError(
            "give either a claim or a baseline to compare with, not both",
            remedy="give --claim or --baseline, and call verify again for the other",
        )
    if not 0 < within < 1:
        raise FlagbenchError(
            f"--within must be a fraction between 0 and 1, not {within:g}",
            remedy="give 0.02 for 2 %, and more where smaller changes do not matter",
        )
    if within != WITHIN and not baseline:
        raise FlagbenchError(
            "--within is the tolerance of a comparison with a baseline, and no --baseline is given",
            remedy="add --baseline RECORD, or leave --within out: the limits of a claim are fixed",
        )


def _load_needed_manifests(case: str, claim: str | None, baseline: Runs | None) -> Catalog:
    """The catalog with the claims that a verdict may need: reading fewer of them saves time.

    All are read if the claim is not one of the case, since the error then suggests similar names.
    """
    if baseline is not None:
        return load_catalog_without_claims()
    if claim is None or claim.startswith(f"{case}/"):
        return load_catalog(claims_of=case)
    return load_catalog()


def _case_name(records: list[Record], runs: Runs) -> str:
    """The case of the records; without records, that of the first series."""
    if records:
        return records[0].case
    return runs.series[0].document.request.case


def _judge(records: list[Record], runs: Runs, claim: str | None, baseline: Runs | None, terms: Terms) -> VerifyResult:
    """The verdict on the records, without the summaries of their series.

    `records` is empty if no run of a series left a record that can be compared.
    """
    case_name = _case_name(records, runs)
    catalog = _load_needed_manifests(case_name, claim, baseline)
    case = catalog_get(catalog.cases, case_name, kind="case")
    if baseline is not None and baseline.problems:
        raise FlagbenchError(
            f"the baseline cannot be used: {'; '.join(baseline.problems)}",
            remedy="give a series as `flagbench run --repeat` stored it",
            code=ExitCode.DATA,
        )
    if not records:
        against = Against("claim", claim or "")
        if baseline is not None:
            against = Against("baseline", "")
        return VerifyResult(Verdict.INVALID, (), "", case.gate, against, (), (), ())
    if baseline is not None:
        any_seed = runs.own_seeds or baseline.own_seeds
        return verify_baseline(records, baseline.to_verify(), case, any_seed=any_seed, terms=terms)
    if claim is not None:
        return verify_claim(records, catalog_get(catalog.claims, claim, kind="claim"), case, terms=terms)
    result = verify_nearest(records, catalog, terms)
    if result is None:
        message = f"there is no claim of the case {case.name}"
        if case.kind == MEASURE:
            message = f"{message} on this device and of this shape"
        raise FlagbenchError(
            message,
            remedy=f"`flagbench expect {case.name}` shows what is published for a device, "
            "`flagbench report RECORD` the record in charts, --baseline RECORD compares it with another one",
        )
    return result
