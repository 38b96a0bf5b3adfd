"""The plan of a reproduction: the run of a row, how it differs on other hardware, and what the row does not state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.lookup import resolve_image
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim
from flagbench.manifests.stack import Stack
from flagbench.options import Text
from flagbench.records.series_document import check_series_name
from flagbench.runs.request import LocalOptions, Roofs, RunRequest
from flagbench.verdict.conditions import SEED, claim_conditions, shown
from flagbench_core.config import NOT_ON_CPU, preset_of, schedule
from flagbench_core.exit_codes import ExitCode

_LAYOUT = "layout."
"""Settings below this path divide the model over the devices, so they go with the number of these."""


@dataclass(frozen=True)
class PlanOptions:
    """Options that change the run of a row, and those for what the row does not state."""

    preset: Annotated[
        Literal["reference", "tiny"],
        Option(help="The published size, or tiny: seconds of the same code, with settings of its own."),
    ] = "reference"
    gpus: Annotated[
        int | None, Option(min=1, max=1024, help="With --on: number of devices, if not the row's; on cpu, ranks.")
    ] = None
    data: Annotated[
        Text, Option(metavar="DIR|synthetic", help="Prepared data. Default: /data if there, else synthetic.")
    ] = None
    weights: Annotated[Text, Option(metavar="DIR", help="A checkpoint folder. Default: random.")] = None
    steps: Annotated[
        int | None, Option(min=1, help="Measure that many steps after the warm-up. Default: the preset's window.")
    ] = None
    full: Annotated[bool, Option("--full", help="Run to the published stop rule, for its time and accuracy too.")] = (
        False
    )
    roofs: Roofs = False
    timeout: Annotated[
        float | None, Option(metavar="SECONDS", help="Time without progress that counts as a hang.")
    ] = None
    name: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="Name of the series: the ids and seeds of its runs follow from it. Default: random, and the row's "
            "seed for all runs.",
        ),
    ] = None


@dataclass(frozen=True)
class ReproductionPlan:
    """The run that reproduces a row."""

    claim: Claim
    request: RunRequest
    differs: tuple[str, ...]
    """The differences from the row that are known before anything runs."""
    unpublished: tuple[str, ...]
    """The conditions that the row does not state, so they cannot be compared."""
    comparable: bool
    """Whether the speed can be compared, as far as is known before anything runs; other software only qualifies."""
    elsewhere: bool
    """Whether another stack was asked for than the row's: then other hardware is no error."""
    name: str | None
    """Name of the series, from which the seed of each run is computed. None: all runs have the row's seed."""


def plan_of(claim: Claim, catalog: Catalog, on: str | None, options: PlanOptions) -> ReproductionPlan:
    """The plan for a row.

    Args:
        on: the stack to run on, by its name or alias; None is the row's own.

    Raises:
        FlagbenchError: usage for options that do not fit, wrong hardware for a row whose device has no stack.
    """
    if options.name is not None:
        check_series_name(options.name)
    if on is None and claim.stack is None:
        raise FlagbenchError(
            f"no stack runs the row {claim.id}: {claim.no_stack}",
            remedy="run its work on another stack with --on; the verdict will say what differs",
            code=ExitCode.WRONG_HARDWARE,
        )
    if on is None and options.gpus not in (None, claim.run.gpus):
        raise FlagbenchError(
            f"--gpus {options.gpus} is not the row's number of devices, {claim.run.gpus}",
            remedy="leave it out, or name the stack to run on with --on: then the row may be run otherwise",
        )
    case, stack = resolve_image(f"{claim.case}:{on or claim.stack}", catalog)
    count = options.gpus or claim.run.gpus
    nodes = 1 if on is not None else claim.run.nodes
    same_count = nodes == claim.run.nodes and count == claim.run.gpus
    settings, left_out = _settings(claim, case, options.preset, same_count=same_count)
    differs = [*_differences(claim, stack, options, nodes), *left_out]
    comparable = not differs and claim.metric(case.held_to(claim.metrics).gate) is not None
    if claim.stack != stack.name:
        differs.append(f"stack: {stack.name}, the row's is {claim.stack or 'none'}")
    run_options = LocalOptions(
        nodes=nodes,
        gpus=count,
        preset=options.preset,
        precision=_precision(claim, stack),
        data=options.data,
        weights=options.weights,
        steps=_steps(case, options),
        full=options.full,
        roofs=options.roofs,
        seed=_seed(claim, options),
        set_=tuple(f"{name}={shown(value)}" for name, value in settings.items()),
        timeout=options.timeout,
    )
    return ReproductionPlan(
        claim,
        RunRequest(case, stack, run_options),
        tuple(differs),
        unpublished(claim, case),
        comparable=comparable,
        elsewhere=on is not None,
        name=options.name,
    )


def _steps(case: Case, options: PlanOptions) -> int | None:
    """The steps to measure: those of the options, or the preset's window; None for a run to the published stop."""
    if options.steps:
        return options.steps
    if options.full:
        return None
    steps: int | None = schedule(preset_of(case.presets, options.preset))["window_steps"]
    return steps


def _seed(claim: Claim, options: PlanOptions) -> int | None:
    """The row's seed; None where each run has its own, from --name, or the row has none."""
    if options.name is not None:
        return None
    seed = claim.conditions.get(SEED)
    if isinstance(seed, bool) or not isinstance(seed, int):
        return None
    return seed


def unpublished(claim: Claim, case: Case) -> tuple[str, ...]:
    """The conditions, and the facts of the environment, that a row does not state."""
    conditions = claim_conditions(case, claim.conditions)
    facts: Iterable[tuple[str, Scalar | None]] = (*conditions.items(), *claim.environment.items())
    return tuple(dict.fromkeys(name for name, value in facts if value == NOT_PUBLISHED))


def _differences(claim: Claim, stack: Stack, options: PlanOptions, nodes: int) -> Iterable[str]:
    """How the request differs from the row, apart from settings and software."""
    device = claim.conditions.get("device_model", NOT_PUBLISHED)
    if stack.device_kind == "cpu":
        yield f"device: a processor, the row has {device}"
    elif stack.accelerator(str(device)) is None:
        devices = f"{stack.name} names none"
        if stack.accelerators:
            devices = f"one of {', '.join(accelerator.name for accelerator in stack.accelerators)}"
        yield f"device: {devices}, the row has {device}"
    if options.preset != claim.run.preset:
        yield f"preset: {options.preset}, the row has the {claim.run.preset} size"
    if nodes != claim.run.nodes:
        yield f"nodes: {nodes}, the row has {claim.run.nodes}"
    if options.gpus not in (None, claim.run.gpus):
        yield f"devices per node: {options.gpus}, the row has {claim.run.gpus}"
    if _precision(claim, stack) != claim.run.precision:
        yield f"precision: that of the case on a processor, the row has {claim.run.precision}"


def _settings(claim: Claim, case: Case, preset: str, *, same_count: bool) -> tuple[Mapping[str, Scalar], list[str]]:
    """The settings of the row that are used, and a sentence on each that is not."""
    if preset != claim.run.preset and claim.run.set:
        names = ", ".join(f"{name} {shown(value)}" for name, value in claim.run.set.items())
        return {}, [f"settings: the {preset} preset's own, the row has {names}"]
    used, left_out = {}, []
    for name, value in claim.run.set.items():
        if not same_count and str(case.settable[name]["path"]).startswith(_LAYOUT):
            left_out.append(f"{name}: the case's own, the row has {shown(value)} for another number of devices")
        else:
            used[name] = value
    return used, left_out


def _precision(claim: Claim, stack: Stack) -> Any:
    """The row's, or None, for the case's own, where a processor does not support it."""
    if stack.device_kind == "cpu" and claim.run.precision in NOT_ON_CPU:
        return None
    return claim.run.precision
