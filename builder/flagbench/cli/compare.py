"""`flagbench compare`: shows how two records and their losses differ."""

from __future__ import annotations

from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, StoreOption, WideOption
from flagbench.console.output import echo_json
from flagbench.history.priors import named_priors
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import catalog_get
from flagbench.records.named import RECORD_HELP, load_records
from flagbench.report import comparison_table
from flagbench.verdict import compare_records, judge_speed
from flagbench.verdict.interval import Terms


def command(
    name_a: Annotated[str, typer.Argument(metavar="A", autocompletion=complete.records, help=RECORD_HELP)],
    name_b: Annotated[
        str,
        typer.Argument(metavar="B", autocompletion=complete.records, help="The other record, named the same way."),
    ],
    store: StoreOption = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show how two records of a case differ: verdict, conditions, settings, metrics (B/A), losses.

    The verdict is that of `flagbench verify B --baseline A`: FASTER, SLOWER, SAME, INCONCLUSIVE or NOT_COMPARABLE. It
    does not change the exit code.

    The interval of A or of B covers the variation between the steps of that run. The interval of B/A also covers the
    spread between runs. The last lines name the methods.

    If both have losses, the output says whether these are aligned by the rule published for Llama2-70B, and at which
    step they part. By that rule, the mean of |B - A| / |A| over all steps of A from the 21st on is less than 2 %.

    Exits 12 if a record is INVALID by the checks of `flagbench verify`, and 11 if one has no evidence. An invalid
    record has no ratios.

    --json prints an object with
    schema,
    exit_code,
    a and b (the ids of the records),
    case,
    conditions (a list of name, a, b, agreement),
    config (a list of path, a, b),
    gate,
    metrics (a list of name, unit, a, b, ratio),
    losses (outcome, reason, and errors with steps, missing, mean, largest, largest_step, parts_at),
    problems,
    verdict and
    reason.
    The last two are null if there is no verdict.
    """
    names = [name_a, name_b]
    record_a, record_b = load_records(names, store)
    case = catalog_get(load_catalog_without_claims().cases, record_a.case, kind="case")
    # As in `flagbench verify B --baseline A`: the spread between runs is that of B's configuration, from earlier runs
    # in the store. Neither of the two compared records counts as an earlier run.
    priors = named_priors(names=names, records=[record_b], compared=[record_b, record_a], store_url=store)
    terms = Terms(priors=priors)
    comparison = compare_records(a=record_a, b=record_b, case=case, terms=terms)
    speed = judge_speed(comparison, case, terms)
    if as_json:
        verdict = None
        reason = None
        if speed is not None:
            verdict = speed.verdict.value
            reason = speed.reason
        echo_json(comparison.to_dict() | {"verdict": verdict, "reason": reason})
    else:
        print(comparison_table(comparison, speed, wide=wide), end="")
    raise typer.Exit(int(comparison.exit_code))
