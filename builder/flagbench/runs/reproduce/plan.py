"""Plans the reproduction of a row, a published result (claim): the run that repeats it, and how that run differs.

`plan_of` makes the plan for `flagbench reproduce`. Nothing is measured or started here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

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
from flagbench.verdict.conditions import DEVICE_MODEL, SEED, claim_conditions, shown
from flagbench_core.config import NOT_ON_CPU, preset_of, schedule
from flagbench_core.exit_codes import ExitCode

_LAYOUT = "layout."
"""Settings with this prefix in their path divide the model over the devices. They only fit the number of devices that
they were published with."""


@dataclass(frozen=True)
class PlanOptions:
    """Options that change the run of a row, or that choose what the row does not state."""

    preset: Annotated[
        Literal["reference", "tiny"] | None,
        Option(help="The published size, or tiny: seconds of the same code, its own settings. Default: the row's."),
    ] = None
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
    """The row."""
    request: RunRequest
    differs: tuple[str, ...]
    """A sentence on each difference from the row that is known before anything runs."""
    unpublished: tuple[str, ...]
    """The names of the conditions that the row does not state, so that they cannot be compared."""
    comparable: bool
    """Whether the speed can be compared, as far as is known before anything runs. Another software stack does not
    forbid it; the verdict then says `software differs`."""
    stack_was_chosen: bool
    """Whether --on chose the stack: then hardware other than the row's is no error."""
    name: str | None
    """Name of the series, from which the seed of each run is computed; None: all runs have the row's seed."""


def plan_of(claim: Claim, catalog: Catalog, on: str | None, options: PlanOptions) -> ReproductionPlan:
    """Plan the reproduction of a row.

    Args:
        claim: the row.
        catalog: all cases and stacks.
        on: the stack to run on, by its name or alias; None: the row's own.
        options: how the run may differ from the row.

    Raises:
        FlagbenchError: usage for options that do not fit, wrong hardware for a row whose device has no stack.
    """
    _check_plan_options(claim, on, options)
    case, stack = resolve_image(f"{claim.case}:{on or claim.stack}", catalog)
    count = options.gpus or claim.run.gpus
    nodes = 1 if on is not None else claim.run.nodes
    same_count = nodes == claim.run.nodes and count == claim.run.gpus
    preset = options.preset or claim.run.preset
    settings = _choose_settings(claim, case, preset, same_count=same_count)
    differs = [*_differences(claim, stack, options, nodes), *settings.left_out]
    deciding_metric = claim.metric(case.with_gate_among(claim.metrics).gate)
    comparable = not differs and deciding_metric is not None
    if claim.stack != stack.name:
        differs.append(f"stack: {stack.name}, the row's is {claim.stack or 'none'}")
    run_options = LocalOptions(
        nodes=nodes,
        gpus=count,
        preset=preset,
        precision=_precision(claim, stack),
        data=options.data,
        weights=options.weights,
        steps=_steps(case, preset, options),
        full=options.full,
        roofs=options.roofs,
        seed=_seed(claim, options),
        set_=tuple(f"{name}={shown(value)}" for name, value in settings.used.items()),
        timeout=options.timeout,
    )
    return ReproductionPlan(
        claim,
        RunRequest(case, stack, run_options),
        tuple(differs),
        unpublished(claim, case),
        comparable=comparable,
        stack_was_chosen=on is not None,
        name=options.name,
    )


def _check_plan_options(claim: Claim, on: str | None, options: PlanOptions) -> None:
    """Raise FlagbenchError for options that do not fit a row: see `plan_of`."""
    if options.name is not None:
        check_series_name(options.name)
    if on is not None:
        return
    if claim.stack is None:
        raise FlagbenchError(
            f"no stack runs the row {claim.id}: {claim.no_stack}",
            remedy="run its work on another stack with --on; the verdict will say what differs",
            code=ExitCode.WRONG_HARDWARE,
        )
    if options.gpus not in (None, claim.run.gpus):
        raise FlagbenchError(
            f"--gpus {options.gpus} is not the row's number of devices, {claim.run.gpus}",
            remedy="leave it out, or name the stack to run on with --on: then the row may be run otherwise",
        )


def _steps(case: Case, preset: str, options: PlanOptions) -> int | None:
    """The number of steps to measure: that of the options, or the preset's; None for a run to the published stop."""
    if options.steps:
        return options.steps
    if options.full:
        return None
    steps: int | None = schedule(preset_of(case.presets, preset))["window_steps"]
    return steps


def _seed(claim: Claim, options: PlanOptions) -> int | None:
    """The row's seed; None if the row has none, or if each run gets its own because of --name."""
    if options.name is not None:
        return None
    seed = claim.conditions.get(SEED)
    if isinstance(seed, bool) or not isinstance(seed, int):
        return None
    return seed


def unpublished(claim: Claim, case: Case) -> tuple[str, ...]:
    """The names of the conditions and facts of the environment that a row marks as not published."""
    conditions = claim_conditions(case, claim.conditions)
    facts: Iterable[tuple[str, Scalar | None]] = (*conditions.items(), *claim.environment.items())
    return tuple(dict.fromkeys(name for name, value in facts if value == NOT_PUBLISHED))


def _differences(claim: Claim, stack: Stack, options: PlanOptions, nodes: int) -> Iterable[str]:
    """A sentence on each difference of the run from the row, except differences in settings and software."""
    device = claim.conditions.get(DEVICE_MODEL, NOT_PUBLISHED)
    if stack.device_kind == "cpu":
        if stack.name != claim.stack:  # otherwise the verdict compares the models of the processors
            yield f"device: a processor, the row has {device}"
    elif stack.accelerator(str(device)) is None:
        devices = f"{stack.name} names none"
        if stack.accelerators:
            devices = f"one of {', '.join(accelerator.name for accelerator in stack.accelerators)}"
        yield f"device: {devices}, the row has {device}"
    if options.preset not in (None, claim.run.preset):
        yield f"preset: {options.preset}, the row has the {claim.run.preset} size"
    if nodes != claim.run.nodes:
        yield f"nodes: {nodes}, the row has {claim.run.nodes}"
    if options.gpus not in (None, claim.run.gpus):
        yield f"devices per node: {options.gpus}, the row has {claim.run.gpus}"
    if _precision(claim, stack) != claim.run.precision:
        yield f"precision: that of the case on a processor, the row has {claim.run.precision}"


class _Settings(NamedTuple):
    """The settings of a row."""

    used: Mapping[str, Scalar]
    """The settings that the run uses, by name."""
    left_out: list[str]
    """A sentence on each setting that the run does not use."""


def _choose_settings(claim: Claim, case: Case, preset: str, *, same_count: bool) -> _Settings:
    """Choose the settings of the row that the run uses. `same_count`: whether it has the row's number of devices."""
    if preset != claim.run.preset and claim.run.set:
        names = ", ".join(f"{name} {shown(value)}" for name, value in claim.run.set.items())
        return _Settings({}, [f"settings: the {preset} preset's own, the row has {names}"])
    used: dict[str, Scalar] = {}
    left_out: list[str] = []
    for name, value in claim.run.set.items():
        divides_model = str(case.settable[name]["path"]).startswith(_LAYOUT)
        if divides_model and not same_count:
            left_out.append(f"{name}: the case's own, the row has {shown(value)} for another number of devices")
        else:
            used[name] = value
    return _Settings(used, left_out)


def _precision(claim: Claim, stack: Stack) -> Any:
    """The precision of the row; None, which is the case's own, if a processor does not support that of the row."""
    if stack.device_kind == "cpu" and claim.run.precision in NOT_ON_CPU:
        return None
    return claim.run.precision
