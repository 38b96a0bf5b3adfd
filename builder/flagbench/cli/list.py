"""`flagbench list`: the available cases, stacks and claims."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import typer

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Case, Catalog, Claim, Stack
from flagbench.cli.options import JsonOption, WideOption
from flagbench.cli.output import echo_json, print_page
from flagbench.page import Table


def command(
    what: Annotated[
        Literal["cases", "stacks", "claims"] | None, typer.Argument(help="One kind only; all three by default.")
    ] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Show the cases, stacks and claims there are.

    --json prints {"cases": [...], "stacks": [...], "claims": [...]}, or the one kind asked for. A case
    has name, title, task, unit, gate, divisions, precisions and default_precision; a stack has name,
    title, vendor, aliases, runs, does_not_run {case: reason}, base_image, python, expects and accelerators;
    a claim has id, case, stack (null where there is none, and no_stack says why), title, run, precision {label,
    executed}, metrics [{name, value, unit, scope, of, printed, source}] and source. printed is the cell where it is
    not the value; a metric's source is null but for a value that a later table took out.
    """
    catalog = load_catalog()
    kinds = list(_AS_JSON) if what is None else [what]
    if json:
        echo_json({kind: _AS_JSON[kind](catalog) for kind in kinds})
        return
    print_page(*(_table(kind, catalog, titled=what is None) for kind in kinds), wide=wide)


def _table(kind: str, catalog: Catalog, *, titled: bool) -> Table:
    columns, rows = _AS_TABLE[kind](catalog)
    return Table(columns, rows, cut=columns[1:], drop=columns[:0:-1], title=kind if titled else "")


def _cases_table(catalog: Catalog) -> tuple[list[str], list[list[str]]]:
    rows = [
        [case.name, case.title, ", ".join(case.divisions), ", ".join(case.precisions), case.gate]
        for case in catalog.cases.values()
    ]
    return ["CASE", "TITLE", "DIVISIONS", "PRECISIONS", "GATE"], rows


def _stacks_table(catalog: Catalog) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            stack.name,
            ", ".join(alias for alias in stack.aliases if alias != stack.name),
            ", ".join(stack.runs),
            stack.base_image or "none",
        ]
        for stack in catalog.stacks.values()
    ]
    return ["STACK", "ALIASES", "RUNS", "BASE IMAGE"], rows


def _claims_table(catalog: Catalog) -> tuple[list[str], list[list[str]]]:
    rows = [
        [claim.id, claim.title, claim.stack or "none", _gate_value(claim, catalog.cases[claim.case])]
        for claim in catalog.claims.values()
    ]
    return ["CLAIM", "TITLE", "STACK", "PUBLISHED"], rows


def _gate_value(claim: Claim, case: Case) -> str:
    """The published value of the case's gate, digit for digit; else what there is instead."""
    metric = claim.metric(case.gate)
    if metric is not None:
        return f"{metric.name} {metric.value} {metric.unit}"
    return f"no {case.gate}, only {', '.join(other.name for other in claim.metrics)}"


def _cases_json(catalog: Catalog) -> list[dict[str, Any]]:
    keys = ("name", "title", "task", "unit", "gate", "divisions", "precisions", "default_precision")
    return [{key: case.raw[key] for key in keys} for case in catalog.cases.values()]


def _stacks_json(catalog: Catalog) -> list[dict[str, Any]]:
    keys = ("name", "title", "vendor", "aliases", "runs", "base_image", "python", "expects")
    return [
        {
            **{key: getattr(stack, key) for key in keys},
            "does_not_run": {case: why for case in catalog.cases if (why := _why_not(catalog, case, stack))},
            "accelerators": [accelerator.name for accelerator in stack.accelerators],
        }
        for stack in catalog.stacks.values()
    ]


def _why_not(catalog: Catalog, case: str, stack: Stack) -> str | None:
    return stack.does_not_run.get(case) or catalog.cases[case].does_not_run.get(stack.name)


def _claims_json(catalog: Catalog) -> list[dict[str, Any]]:
    keys = ("id", "case", "stack", "no_stack", "title", "run", "metrics", "source")
    return [
        {
            **{key: msgspec.to_builtins(getattr(claim, key)) for key in keys},
            "precision": {"label": claim.precision_label, "executed": claim.precision_executed},
        }
        for claim in catalog.claims.values()
    ]


_AS_TABLE = {"cases": _cases_table, "stacks": _stacks_table, "claims": _claims_table}
_AS_JSON = {"cases": _cases_json, "stacks": _stacks_json, "claims": _claims_json}
