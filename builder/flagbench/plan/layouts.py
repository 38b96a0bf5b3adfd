"""Every layout of a number of devices, with its memory and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case, Engine
from flagbench.manifests.settings import config_errors
from flagbench.manifests.stack import Stack
from flagbench.plan.memory import StageMemory, forward_memory, fullest_stage
from flagbench.plan.model import MemoryTraits, Model, ParallelLayout, Step
from flagbench.runs.request import RunOptions, config_options
from flagbench_core import config

GIB = 2**30
TIGHT = 0.1
"""A layout that fits by less than this part of a device's memory is tight."""
LEAST_RECOMPUTED_FIRST = ("none", "selective", "full")


@dataclass(frozen=True)
class Planned:
    """The configuration of a case that is split, without its layout."""

    case: Case
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    """The hyper-parameters that the user set."""

    @property
    def precision(self) -> str:
        """The precision of the run."""
        return str(self.config["precision"])

    @property
    def engine(self) -> Engine:
        """The case's first engine."""
        return next(iter(self.case.engines.values()))

    @property
    def training(self) -> bool:
        """Whether the case trains; else it only runs forward."""
        return self.case.kind == "train"

    @property
    def model(self) -> Model:
        """The sizes of the model."""
        return Model.of(self.config["model"])

    @property
    def recomputes(self) -> tuple[str, ...]:
        """The recomputations to choose from: all that the case has, or the one that was set.

        Selective repeats nothing where attention is one kernel, as in the cases: it then equals none.
        """
        if not self.training:
            return ("none",)
        train = self.config["train"]
        choices = list(self.case.settable["recompute"]["choices"])
        if "recompute" in self.settings:
            choices = [train["recompute"]]
        if train["flash_attention"] and "selective" in choices:
            choices[choices.index("selective")] = "none"
        return tuple(dict.fromkeys(choices))

    def step(self, recompute: str) -> Step:
        """A step with that recomputation."""
        length = self.config["data"]["sequence_length"]
        if not self.training:
            return Step(length, self.config["infer"]["batch_size"], 1, self.precision, fused_attention=False)
        train = self.config["train"]
        micro = train["micro_batch_size"]
        return Step(
            length,
            micro,
            train["batch_size"] // micro,
            self.precision,
            recompute,
            fused_attention=train["flash_attention"],
            distributed_optimizer=train["distributed_optimizer"],
        )


def splits(case: Case) -> bool:
    """Whether the case's first engine splits a model, and the model is one whose memory can be predicted."""
    engine, model = next(iter(case.engines.values())), case.presets["reference"].get("model", {})
    return not {"tp", "pp"}.isdisjoint(engine.layout) and "vocab_multiple" in model


def planned(case: Case, stack: Stack, options: RunOptions) -> Planned:
    """The configuration of a case that is split. Raises FlagbenchError (usage) for options that it does not allow."""
    with config_errors():
        chosen = config.choose(case.raw, stack.raw, config_options(options))
    settings = dict(config.read_setting(case.raw, setting) for setting in options.set_)
    return Planned(case, chosen, settings)


@dataclass(frozen=True)
class LayoutRow:
    """A layout, with the recomputation that suits it best."""

    layout: ParallelLayout
    recompute: str
    memory: StageMemory
    """Of the fullest stage."""
    fits: bool
    tight: bool
    """Whether it fits by less than `TIGHT`."""
    global_batch: int
    """Samples of a step of all replicas."""

    def to_dict(self) -> dict[str, Any]:
        """For a script."""
        return {
            **self.layout._asdict(),
            "recompute": self.recompute,
            "global_batch": self.global_batch,
            "fits": self.fits,
            "tight": self.tight,
            "memory": self.memory.to_dict(),
        }


def layouts(plan: Planned, devices: int, per_node: int) -> list[ParallelLayout]:
    """Every layout of that many devices that divides the model, its tensor parallelism inside a node.

    Raises FlagbenchError (usage) if no layout does.
    """
    supported = []
    for tp in _sizes(plan, "tp", per_node):
        for pp in _sizes(plan, "pp", devices // tp):
            layout = ParallelLayout(tp, pp, devices // (tp * pp))
            if _is_supported(plan, layout):
                supported.append(layout)
    if not supported:
        raise FlagbenchError(
            f"no layout of {devices} devices, {per_node} on a node, divides {plan.case.name}",
            remedy=f"change --gpus, --gpus-per-node or --set; {_divisors_text(plan)}",
        )
    return supported


def _divisors_text(plan: Planned) -> str:
    """`tp must divide model.heads = 64, model.kv_heads = 8; pp must divide model.layers = 80`."""
    axes = []
    for axis, paths in plan.engine.divides.items():
        numbers = ", ".join(f"{path} = {_at(plan, path)}" for path in paths)
        axes.append(f"{axis} must divide {numbers}")
    return "; ".join(axes)


def _is_supported(plan: Planned, layout: ParallelLayout) -> bool:
    """Whether a run accepts that layout."""
    split = {"nodes": 1, "gpus": layout.ranks, "layout": {"tp": layout.tp, "pp": layout.pp}}
    try:
        config.check_layout(plan.case.raw, {**plan.config, **split})
    except config.ConfigError:
        return False
    return True


def _sizes(plan: Planned, axis: str, ranks: int) -> list[int]:
    """The divisors of `ranks` that the engine and the case allow for an axis, or the size that was set; 0 leaves the
    choice open."""
    if axis in plan.settings:
        size = plan.settings[axis] or ranks  # 0: as many as possible, as in a run
        if ranks % size:
            return []
        return [size]
    if axis not in plan.engine.layout:
        return [1]
    most = min([ranks, *(_at(plan, path) for path in plan.engine.divides.get(axis, ()))])
    return [size for size in range(1, most + 1) if ranks % size == 0 and _is_allowed(plan, axis, size)]


def _is_allowed(plan: Planned, axis: str, size: int) -> bool:
    """Whether the case allows that size of an axis as a setting, where the axis is one."""
    setting = plan.case.settable.get(axis)
    return setting is None or config.setting_fault(setting, size) is None


def _at(plan: Planned, path: str) -> int:
    """The number in the configuration at a path such as `model.layers`."""
    part: Any = plan.config
    for key in path.split("."):
        part = part[key]
    return int(part)


def rows(plan: Planned, devices: int, per_node: int, memory: float, traits: MemoryTraits) -> list[LayoutRow]:
    """Every layout: those that fit into `memory` GiB, then those that are tight, then those that do not fit.

    Layouts that fit are sorted by recomputation, stages and tensor parallelism, the least first; those that do not
    fit by memory. If several recomputations may be chosen, a row has the least that fits.
    """
    best = []
    for layout in layouts(plan, devices, per_node):
        choices = [_row(plan, layout, recompute, memory, traits) for recompute in plan.recomputes]
        best.append(min(choices, key=_order))
    return sorted(best, key=_order)


def _order(row: LayoutRow) -> tuple[int, ...]:
    if not row.fits:
        return (2, row.memory.in_use)
    recomputed = LEAST_RECOMPUTED_FIRST.index(row.recompute)
    return (int(row.tight), recomputed, row.layout.pp, row.layout.tp)


def _row(plan: Planned, layout: ParallelLayout, recompute: str, memory: float, traits: MemoryTraits) -> LayoutRow:
    step, model = plan.step(recompute), plan.model
    if plan.training:
        needed = fullest_stage(model, step, layout, traits)
    else:
        needed = forward_memory(model, step, layout, traits)
    fits = needed.in_use <= memory * GIB
    return LayoutRow(
        layout,
        recompute,
        needed,
        fits,
        fits and needed.in_use > (1 - TIGHT) * memory * GIB,
        step.micro_batch * step.micro_batches * layout.dp,
    )
