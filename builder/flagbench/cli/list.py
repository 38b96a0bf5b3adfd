"""`flagbench list`: shows the available cases, stacks, devices and claims.

A case is a workload, a stack the software for a family of devices, a claim a published row that a case runs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
import typer

from flagbench.cli.options import JsonOption, WideOption
from flagbench.console.output import echo_json, print_page
from flagbench.console.page import Table
from flagbench.machine.catalog import describe_machine, find_claims
from flagbench.machine.devices import this_machine
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.load import load_catalog
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim
from flagbench.manifests.stack import Stack


def command(
    what: Annotated[
        Literal["cases", "stacks", "devices", "claims"] | None,
        typer.Argument(metavar="KIND", help="One kind only; all by default."),
    ] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Show the cases, stacks, devices and claims there are.

    --json prints {"cases": [...], "stacks": [...], "devices": [...], "claims": [...]}, or the one kind asked for. A
    case has name, title, task, unit, gate, precisions, default_precision and flops, the formula by which
    they are counted or null; a stack has name, title, vendor, aliases, runs, does_not_run {case: reason},
    base_image, python, expects and accelerators, the names of its devices; a device has what its manifest has, null
    for a limit that is not known; a claim has id, case, stack (null where there is none, and no_stack says why),
    title, run, precision {label, executed}, metrics [{name, value, unit, scope, of, printed, source}], aligned and
    source. printed is the text of the cell where it is not the value; a metric's source is null, except for a value
    that a later table removed; aligned is null unless the row says that its losses are aligned with the publisher's;
    this_machine says whether the row is of an accelerator of this machine.

    Rows of this machine's device are marked; if there are none, stderr says so.
    """
    catalog = load_catalog()
    kinds = list(_COLUMNS)
    if what is not None:
        kinds = [what]
    claims_of_machine: Collection[str] = ()
    if "claims" in kinds:
        machine = this_machine()
        claims_of_machine = {claim.id for claim in find_claims(machine, catalog)}
        if what == "claims" or machine.devices:
            typer.echo(f"flagbench: {describe_machine(machine, catalog)}", err=True)
    if json:
        document = {}
        for kind in kinds:
            document[kind] = [
                _as_json(entry, catalog, claims_of_machine) for entry in getattr(catalog, kind).values()
            ]
        echo_json(document)
        return
    tables = []
    for kind in kinds:
        title = ""
        if what is None:
            title = kind
        tables.append(_table(kind, title, catalog, claims_of_machine))
    print_page(*tables, wide=wide)


def _table(kind: str, title: str, catalog: Catalog, claims_of_machine: Collection[str]) -> Table:
    """The table of a kind. If there are claims of this machine's devices, they are marked."""
    columns = _COLUMNS[kind]
    rows = [_row(entry, catalog) for entry in getattr(catalog, kind).values()]
    if kind == "claims" and claims_of_machine:
        # Not at the end, where a narrow terminal drops columns first.
        columns = (columns[0], "THIS MACHINE", *columns[1:])
        for number, row in enumerate(rows):
            mark = ""
            if row[0] in claims_of_machine:
                mark = "yes"
            rows[number] = (row[0], mark, *row[1:])
    return Table(columns, rows, wrap=_WRAP[kind], drop=_DROP[kind], title=title)


_COLUMNS: dict[str, tuple[str, ...]] = {
    "cases": ("CASE", "TITLE", "PRECISIONS", "GATE", "FLOPS"),
    "stacks": ("STACK", "ALIASES", "RUNS", "BASE IMAGE"),
    "devices": ("DEVICE", "NAME", "MEMORY", "BF16", "FP8", "STACKS"),
    "claims": ("CLAIM", "TITLE", "STACK", "PUBLISHED"),
}
"""The columns of the table of each kind, in the order of `_row`."""
_WRAP: dict[str, tuple[str, ...]] = {
    "cases": ("TITLE",),
    "stacks": ("ALIASES", "RUNS"),
    "devices": ("NAME", "STACKS"),
    "claims": ("TITLE", "PUBLISHED"),
}
"""The columns that wrap on a narrow terminal."""
_DROP: dict[str, tuple[str, ...]] = {
    "cases": ("FLOPS", "PRECISIONS", "GATE", "TITLE"),
    "stacks": ("BASE IMAGE", "RUNS", "ALIASES"),
    "devices": ("FP8", "STACKS", "BF16", "MEMORY", "NAME"),
    "claims": ("STACK", "TITLE", "PUBLISHED", "THIS MACHINE"),
}
"""The columns that are left out on a narrow terminal, the first one first."""


def _row(entry: Case | Stack | DeviceModel | Claim, catalog: Catalog) -> tuple[str, ...]:
    """The row of an entry, with the columns of its kind in _COLUMNS."""
    if isinstance(entry, Case):
        return entry.name, entry.title, ", ".join(entry.precisions), entry.gate, entry.formula or "none"
    if isinstance(entry, Stack):
        aliases = ", ".join(alias for alias in entry.aliases if alias != entry.name)
        return entry.name, aliases, _cases_text(entry, catalog), _base_text(entry)
    if isinstance(entry, DeviceModel):
        memory = f"{entry.memory_gib:g} GiB"
        stacks = ", ".join(stack.name for stack in catalog.stacks.values() if entry in stack.accelerators)
        return entry.id, entry.name, memory, _peak_text(entry, "bf16"), _peak_text(entry, "fp8"), stacks
    return entry.id, entry.title, entry.stack or "none", _gate_value(entry, catalog.cases[entry.case])


def _peak_text(device: DeviceModel, precision: str) -> str:
    """The peak of a device in a precision, TFLOP/s; empty if it is not known."""
    if precision not in device.flops:
        return ""
    return f"{device.flops[precision] / 1e12:g} TFLOP/s"


def _cases_text(stack: Stack, catalog: Catalog) -> str:
    """The cases that a stack runs."""
    if set(stack.runs) == set(catalog.cases):
        return f"all {len(catalog.cases)} cases"
    return ", ".join(stack.runs)


def _base_text(stack: Stack) -> str:
    """The base image of a stack, or how it runs without a public one."""
    if stack.base is None:
        return "no image: runs natively"
    return stack.base.image or "not public: build with --base"


def _gate_value(claim: Claim, case: Case) -> str:
    """The published value of the case's gate, its deciding metric, with all published digits.

    If the row does not publish it, the names of the metrics that it publishes.
    """
    gate = claim.metric(case.with_gate_among(claim.metrics).gate)
    if gate is not None:
        return f"{gate.value} {gate.unit}, {gate.name}"
    return f"no {case.gate}, only {', '.join(metric.name for metric in claim.metrics)}"


def _as_json(
    entry: Case | Stack | DeviceModel | Claim, catalog: Catalog, claims_of_machine: Collection[str]
) -> dict[str, Any]:
    """An entry as --json prints it; see the docstring of the command."""
    if isinstance(entry, Case):
        keys = ("name", "title", "task", "unit", "gate", "precisions", "default_precision")
        return {**{key: msgspec.to_builtins(getattr(entry, key)) for key in keys}, "flops": entry.formula}
    if isinstance(entry, Stack):
        names = ("name", "title", "vendor", "aliases", "runs", "base_image", "python", "expects")
        reasons = {case.name: case.does_not_run.get(entry.name) for case in catalog.cases.values()}
        reasons |= entry.does_not_run
        return {
            **{name: getattr(entry, name) for name in names},
            "does_not_run": {case: reason for case, reason in reasons.items() if reason},
            "accelerators": [accelerator.name for accelerator in entry.accelerators],
        }
    if isinstance(entry, DeviceModel):
        device: dict[str, Any] = msgspec.to_builtins(entry)
        device.pop("raw", None)
        return device
    fields = ("id", "case", "stack", "no_stack", "title", "run", "metrics", "aligned", "source")
    return {
        **{name: msgspec.to_builtins(getattr(entry, name)) for name in fields},
        "precision": {"label": entry.precision.label, "executed": entry.precision.executed},
        "this_machine": entry.id in claims_of_machine,
    }
