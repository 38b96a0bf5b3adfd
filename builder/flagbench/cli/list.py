"""`flagbench list`: shows the available cases, stacks, devices and claims.

A case is a workload, a stack the software for a family of devices, a claim a published row that a case runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
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

_KINDS = ("cases", "stacks", "devices", "claims")
"""What can be listed, in the order in which it is shown."""


def command(
    only_kind: Annotated[
        Literal["cases", "stacks", "devices", "claims"] | None,
        typer.Argument(metavar="KIND", help="One kind only; all by default."),
    ] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Show all cases, stacks, devices and claims.

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
    kinds: Sequence[str] = _KINDS
    if only_kind is not None:
        kinds = (only_kind,)
    claims_of_machine: Collection[str] = ()
    if "claims" in kinds:
        machine = this_machine()
        claims_of_machine = {claim.id for claim in find_claims(machine, catalog)}
        if only_kind == "claims" or machine.devices:
            typer.echo(f"flagbench: {describe_machine(machine, catalog)}", err=True)
    if json:
        echo_json({kind: _entries_as_json(kind, catalog, claims_of_machine) for kind in kinds})
        return
    tables = []
    for kind in kinds:
        table = _table(kind, catalog, claims_of_machine)
        if only_kind is None:
            table = replace(table, title=kind)
        tables.append(table)
    print_page(*tables, wide=wide)


def _table(kind: str, catalog: Catalog, claims_of_machine: Collection[str]) -> Table:
    """The table of a kind, one of _KINDS. `claims_of_machine`: the ids of the claims on this machine's devices."""
    if kind == "cases":
        return _case_table(catalog)
    if kind == "stacks":
        return _stack_table(catalog)
    if kind == "devices":
        return _device_table(catalog)
    return _claim_table(catalog, claims_of_machine)


def _entries_as_json(kind: str, catalog: Catalog, claims_of_machine: Collection[str]) -> list[dict[str, Any]]:
    """The entries of a kind, one of _KINDS, as --json prints them; see the docstring of the command."""
    if kind == "cases":
        return [_case_as_json(case) for case in catalog.cases.values()]
    if kind == "stacks":
        return [_stack_as_json(stack, catalog) for stack in catalog.stacks.values()]
    if kind == "devices":
        return [_device_as_json(device) for device in catalog.devices.values()]
    return [_claim_as_json(claim, claims_of_machine) for claim in catalog.claims.values()]


def _case_table(catalog: Catalog) -> Table:
    """A row for each case."""
    columns = ("CASE", "TITLE", "PRECISIONS", "GATE", "FLOPS")
    rows = []
    for case in catalog.cases.values():
        precisions = ", ".join(case.precisions)
        rows.append((case.name, case.title, precisions, case.gate, case.formula or "none"))
    return Table(columns, rows, wrap=("TITLE",), drop=("FLOPS", "PRECISIONS", "GATE", "TITLE"))


def _stack_table(catalog: Catalog) -> Table:
    """A row for each stack."""
    columns = ("STACK", "ALIASES", "RUNS", "BASE IMAGE")
    rows = []
    for stack in catalog.stacks.values():
        aliases = ", ".join(alias for alias in stack.aliases if alias != stack.name)
        rows.append((stack.name, aliases, _cases_text(stack, catalog), _base_text(stack)))
    return Table(columns, rows, wrap=("ALIASES", "RUNS"), drop=("BASE IMAGE", "RUNS", "ALIASES"))


def _device_table(catalog: Catalog) -> Table:
    """A row for each model of devices."""
    columns = ("DEVICE", "NAME", "MEMORY", "BF16", "FP8", "STACKS")
    rows = []
    for device in catalog.devices.values():
        memory = f"{device.memory_gib:g} GiB"
        stacks = ", ".join(stack.name for stack in catalog.stacks.values() if device in stack.accelerators)
        peaks = (_peak_text(device, "bf16"), _peak_text(device, "fp8"))
        rows.append((device.id, device.name, memory, *peaks, stacks))
    return Table(columns, rows, wrap=("NAME", "STACKS"), drop=("FP8", "STACKS", "BF16", "MEMORY", "NAME"))


def _claim_table(catalog: Catalog, claims_of_machine: Collection[str]) -> Table:
    """A row for each claim. If there are claims of this machine's devices, a further column marks them."""
    columns = ["CLAIM", "TITLE", "STACK", "PUBLISHED"]
    if claims_of_machine:
        columns.insert(1, "THIS MACHINE")  # not at the end, where a narrow terminal drops columns first
    rows = []
    for claim in catalog.claims.values():
        row = [claim.id, claim.title, claim.stack or "none", _gate_value(claim, catalog.cases[claim.case])]
        if claims_of_machine:
            mark = ""
            if claim.id in claims_of_machine:
                mark = "yes"
            row.insert(1, mark)
        rows.append(row)
    return Table(columns, rows, wrap=("TITLE", "PUBLISHED"), drop=("STACK", "TITLE", "PUBLISHED", "THIS MACHINE"))


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


def _case_as_json(case: Case) -> dict[str, Any]:
    """A case as --json prints it."""
    names = ("name", "title", "task", "unit", "gate", "precisions", "default_precision")
    return {**_fields(case, names), "flops": case.formula}


def _stack_as_json(stack: Stack, catalog: Catalog) -> dict[str, Any]:
    """A stack as --json prints it."""
    names = ("name", "title", "vendor", "aliases", "runs", "base_image", "python", "expects")
    # Either manifest can say why a case does not run: that of the case, or that of the stack, which takes precedence.
    reasons = {case.name: case.does_not_run.get(stack.name) for case in catalog.cases.values()}
    reasons |= stack.does_not_run
    return {
        **{name: getattr(stack, name) for name in names},
        "does_not_run": {case: reason for case, reason in reasons.items() if reason},
        "accelerators": [accelerator.name for accelerator in stack.accelerators],
    }


def _device_as_json(device: DeviceModel) -> dict[str, Any]:
    """A model of devices as --json prints it: its manifest, with null for limits that are not known."""
    fields: dict[str, Any] = msgspec.to_builtins(device)
    fields.pop("raw", None)  # the manifest, which the other fields were made from
    return fields


def _claim_as_json(claim: Claim, claims_of_machine: Collection[str]) -> dict[str, Any]:
    """A claim as --json prints it."""
    names = ("id", "case", "stack", "no_stack", "title", "run", "metrics", "aligned", "source")
    return {
        **_fields(claim, names),
        "precision": {"label": claim.precision.label, "executed": claim.precision.executed},
        "this_machine": claim.id in claims_of_machine,
    }


def _fields(entry: Case | Claim, names: Sequence[str]) -> dict[str, Any]:
    """The named fields of an entry, as JSON values."""
    return {name: msgspec.to_builtins(getattr(entry, name)) for name in names}
