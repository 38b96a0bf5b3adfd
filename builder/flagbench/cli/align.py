"""`flagbench align`: are two loss curves the same by the published rule, and where do they diverge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, StoreOption, WideOption
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import catalog_get
from flagbench.output import echo_json
from flagbench.records.named import RECORD_HELP, is_path, load_records, require_one_stdin
from flagbench.records.read import read_content
from flagbench.report.alignment import alignment_table
from flagbench.verdict.align import FROM_STEP, WITHIN, Curve, align_curves, read_curve, record_curve

A_HELP = (
    f"The curve to check. {RECORD_HELP} Instead of a record, a file may have a curve: CSV with the columns step and "
    "loss, or JSON lines with these fields; steps are counted from 1."
)


def command(
    a: Annotated[str, typer.Argument(metavar="A", autocompletion=complete.records, help=A_HELP)],
    b: Annotated[
        str,
        typer.Argument(metavar="B", autocompletion=complete.records, help="The reference, named the same way."),
    ],
    from_step: Annotated[
        int, typer.Option(metavar="STEP", min=1, help="First step that counts; the published rule has 21.")
    ] = FROM_STEP,
    to_step: Annotated[
        int | None,
        typer.Option(metavar="STEP", min=1, help="Last step that counts. Default: the last of the reference."),
    ] = None,
    within: Annotated[
        float,
        typer.Option(
            metavar="FRACTION", help="Bound of the mean relative error; the published rule has 0.02, which is 2 %."
        ),
    ] = WITHIN,
    store: StoreOption = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether two loss curves are aligned by the published rule, and where they diverge.

    The rule, published for Llama2-70B: the mean of |A - B| / |B| over all steps from the 21st on is less than 2 %.
    If A lacks some of these steps of B, the result is INCONCLUSIVE.

    Exits 0 for ALIGNED, 9 DIVERGED, 10 NOT_COMPARABLE, 11 INCONCLUSIVE, 12 INVALID. --json prints {"schema",
    "exit_code", "published_rule", "verdict", "reason", "a", "b", "case", "from_step", "to_step", "within",
    "compared", "missing", "mean_error", "largest_error", "largest_error_step", "diverges_from", "conditions"}.
    """
    require_one_stdin([a, b])
    left, right = _load(a, store), _load(b, store)
    case, record = None, left.record or right.record
    if record is not None:
        case = catalog_get(load_catalog(claims=False).cases, record.case, kind="case")
    result = align_curves(left, right, case, from_step=from_step, to_step=to_step, within=within)
    if as_json:
        echo_json(result.to_dict())
    else:
        print(alignment_table(result, wide=wide), end="")
    raise typer.Exit(int(result.verdict.exit_code))


def _load(name: str, store: str | None) -> Curve:
    """The curve of a stored record, or of a file that is a record or a published curve."""
    if is_path(name) or name.endswith((".csv", ".jsonl")):
        return read_curve(*read_content(None if name == "-" else Path(name), what="file"))
    return record_curve(load_records([name], store)[0])
