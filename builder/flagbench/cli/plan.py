"""`flagbench plan`: the layouts of a split model, their memory and which is fastest, before a device is used."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, WideOption
from flagbench.cli.plan_page import Shown
from flagbench.errors import FlagbenchError
from flagbench.image_reference import case_and_stack
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.manifests.model import Case, Catalog, Stack
from flagbench.output import echo_json, print_page
from flagbench.plan.config import Planned, planned, splits
from flagbench.plan.layouts import GIB, Row, rows
from flagbench.plan.model import GPU, software_of
from flagbench.plan.speed import TensorSpeed, tensor_speed
from flagbench.runs.request import RunOptions, check_options
from flagbench_core.exit_codes import ExitCode

NODE = 8
"""Devices of a node, unless said otherwise: as in all published rows of several nodes."""


def command(
    case_name: Annotated[
        str,
        typer.Argument(
            metavar="CASE[:STACK]",
            autocompletion=complete.cases,
            help="For example llama2-70b, or llama2-70b:c500-maca3.",
        ),
    ],
    gpus: Annotated[int, typer.Option(min=1, help="Number of devices of all nodes.")],
    mem: Annotated[
        float | None, typer.Option(metavar="GIB", help="Memory of a device. Default: that of the stack's devices.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Tensor parallelism stays inside a node. Default: 8, or all.")
    ] = None,
    preset: Annotated[
        Literal["reference", "tiny"],
        typer.Option(help="The published size, or a tiny one that takes seconds."),
    ] = "reference",
    precision: Annotated[
        Literal["fp32", "tf32", "fp16", "bf16"] | None, typer.Option(help="Default: the case's own.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a hyper-parameter, or fix tp or pp; repeatable."),
    ] = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the layouts of a split model, and whether they fit into the devices' memory; the fastest first.

    Memory is that of the fullest pipeline stage, speed that of a device relative to one that never waits; both are
    predictions, docs/plan.md says of what. batch_size is that of a replica, as in the case's manifest, so a step has
    batch_size x dp samples. Unless recompute is set, each layout has the recomputation with which it is fastest.

    --json prints {"case", "stack", "preset", "precision", "devices", "devices_per_node", "memory_gib",
    "sequence_length", "micro_batch_size", "batch_size", "tensor_speed": {"measured": {TP: SPEED}, "claims"},
    "layouts": [{"tp", "pp", "dp", "recompute", "global_batch", "bubble", "relative_speed", "fits", "tight",
    "memory": {TERM: BYTES}}], "fastest", "command"}; the last two are null where nothing fits.

    Exits 0, or 5 if no layout fits.
    """
    catalog = load_catalog()
    case, stack = _case_and_stack(case_name, catalog)
    per_node = gpus_per_node or min(NODE, gpus)
    if gpus % per_node:
        raise FlagbenchError(
            f"{gpus} devices cannot be divided into nodes of {per_node}", remedy="change --gpus or --gpus-per-node"
        )
    asked = RunOptions(
        nodes=gpus // per_node, gpus=per_node, preset=preset, precision=precision, set_=tuple(set_ or ())
    )
    check_options(asked, case, stack or _any_stack(case, catalog))
    memory = _memory(mem, stack)
    plan = planned(case, preset, precision, asked.set_)
    software = GPU if stack is None else software_of(stack.raw)
    speed = tensor_speed(case, catalog.claims.values()) if plan.training else TensorSpeed()
    found = rows(plan, gpus, per_node, memory, software, speed)
    best = found[0] if found[0].fits else None
    run = None if best is None else _command(plan, best, stack, asked)
    shown = Shown(plan, stack, asked, memory, speed, found, run)
    if as_json:
        echo_json(shown.to_dict())
    else:
        print_page(*shown.page(), wide=wide)
    if best is None:
        least = found[0].memory.in_use / GIB
        raise FlagbenchError(
            f"no layout of {gpus} devices fits into {memory:g} GiB; the smallest needs {least:.1f}",
            remedy=_remedy(plan),
            code=ExitCode.OUT_OF_MEMORY,
        )


def _case_and_stack(name: str, catalog: Catalog) -> tuple[Case, Stack | None]:
    case: Case
    stack: Stack | None
    if case_and_stack(name)[1]:
        case, stack = resolve_image(name, catalog)
    else:
        case, stack = catalog_get(catalog.cases, name, kind="case"), None
    if not splits(case):
        able = ", ".join(other.name for other in catalog.cases.values() if splits(other))
        raise FlagbenchError(
            f"{case.name} cannot be split: every device has the whole model", remedy=f"cases that can be: {able}"
        )
    return case, stack


def _any_stack(case: Case, catalog: Catalog) -> Stack:
    """A stack with accelerators that runs the case: without one named, options are checked for it."""
    able = [stack for stack in catalog.stacks.values() if case.name in stack.runs]
    return min(able, key=lambda stack: stack.device_kind == "cpu")


def _memory(given: float | None, stack: Stack | None) -> float:
    """GiB of a device: as given, else that of all the stack's devices. Raises FlagbenchError (usage)."""
    if given is not None:
        if not 0 < given <= 2**20:
            raise FlagbenchError(f"--mem {given:g} is out of range", remedy="give the memory of a device in GiB")
        return given
    if stack is None:
        raise FlagbenchError(
            "the memory of a device is not known", remedy="add --mem GIB, or name a stack: CASE:STACK"
        )
    sizes = {device["name"]: device.get("memory_gib") for device in stack.raw.get("accelerators", ())}
    if len(set(sizes.values())) != 1 or None in sizes.values():
        named = ", ".join(f"{name} {size} GiB" for name, size in sizes.items() if size is not None)
        raise FlagbenchError(
            f"the devices of {stack.name} do not have one size of memory",
            remedy=f"add --mem GIB{': ' + named if named else ''}",
        )
    return float(next(iter(sizes.values())))


def _remedy(plan: Planned) -> str:
    """What may make a layout fit."""
    ways = ["use devices with more memory"]
    if "pp" in plan.engine["layout"]:
        ways.append("more of them")
    if plan.training and plan.config["train"]["micro_batch_size"] > 1:
        ways.append("a smaller --set micro_batch_size")
    return ", or ".join(ways)


def _command(plan: Planned, row: Row, stack: Stack | None, asked: RunOptions) -> str:
    """The command that runs a layout."""
    chosen = {"tp": row.layout.tp, "pp": row.layout.pp, "recompute": row.recompute}
    settings = {name: value for name, value in chosen.items() if name in plan.case.settable}
    settings.update((name, plan.value(name)) for name in sorted(plan.asked - set(chosen)))
    words = ["flagbench", "run", f"{plan.case.name}:{stack.name if stack else 'STACK'}"]
    words += ["--nodes", str(asked.nodes), "--gpus", str(asked.gpus)]
    if asked.preset != "reference":
        words += ["--preset", asked.preset]
    if asked.precision is not None:
        words += ["--precision", asked.precision]
    for name, value in settings.items():
        words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)
