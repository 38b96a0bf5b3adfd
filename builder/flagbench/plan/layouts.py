"""Lists every layout of a case on a number of devices, with its predicted memory and whether it fits.

`configure_case` resolves the configuration of a case, `list_layouts` finds the layouts that divide its model, and
`rank_layouts` orders them for `flagbench plan` (`plan.page`).
"""

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
"""A layout that leaves less than this fraction of a device's memory free is tight: about half of the predictions are
off by more (docs/plan.md)."""
LEAST_RECOMPUTED_FIRST = ("none", "selective", "full")
_AFTER_ALL_THAT_FIT = 2
"""The first part of the rank of a layout that does not fit; 0 and 1 are of those that fit well and that are tight."""


@dataclass(frozen=True)
class ConfiguredCase:
    """A case whose model is split over devices, with its configuration, but without a layout."""

    case: Case
    config: Mapping[str, Any]
    """The configuration as `flagbench_core.config.choose` returns it: sections `model`, `data`, and `train` or
    `infer`."""
    settings: Mapping[str, Any]
    """The hyper-parameters that the user set, by name."""

    @property
    def precision(self) -> str:
        """The precision of the run."""
        return str(self.config["precision"])

    @property
    def engine(self) -> Engine:
        """The case's first engine."""
        return next(iter(self.case.engines.values()))

    @property
    def is_training(self) -> bool:
        """Whether the case trains; otherwise it only runs forward."""
        return self.case.kind == "train"

    @property
    def model(self) -> Model:
        """The sizes of the model."""
        return Model.of(self.config["model"])

    @property
    def recomputes(self) -> tuple[str, ...]:
        """The recomputations to choose from: all that the case has, or the one that was set.

        Selective recomputation repeats nothing if attention is one kernel: it then equals `none`.
        """
        if not self.is_training:
            return ("none",)
        train = self.config["train"]
        choices = list(self.case.settable["recompute"]["choices"])
        if "recompute" in self.settings:
            choices = [train["recompute"]]
        if train["flash_attention"] and "selective" in choices:
            choices[choices.index("selective")] = "none"
        return tuple(dict.fromkeys(choices))

    def step(self, recompute: str) -> Step:
        """A step of the case with that recomputation; for a case that only runs forward, one batch."""
        length = self.config["data"]["sequence_length"]
        if not self.is_training:
            batch_size = self.config["infer"]["batch_size"]
            return Step(length, batch_size, 1, self.precision, fused_attention=False)
        train = self.config["train"]
        return Step(
            sequence_length=length,
            micro_batch=train["micro_batch_size"],
            micro_batches=train["batch_size"] // train["micro_batch_size"],
            precision=self.precision,
            recompute=recompute,
            fused_attention=train["flash_attention"],
            distributed_optimizer=train["distributed_optimizer"],
        )


def configure_case(case: Case, stack: Stack, options: RunOptions) -> ConfiguredCase:
    """The case with the configuration of `options`. Raises FlagbenchError (USAGE) for options that it refuses."""
    with config_errors():
        chosen = config.choose(case.raw, stack.raw, config_options(options))
    settings = dict(config.read_setting(case.raw, setting) for setting in options.set_)
    return ConfiguredCase(case, chosen, settings)


@dataclass(frozen=True)
class LayoutRow:
    """A layout, with the recomputation that suits it best."""

    layout: ParallelLayout
    recompute: str
    memory: StageMemory
    """The predicted memory of the fullest stage."""
    fits: bool
    is_tight: bool
    """Whether it fits, but leaves less than `TIGHT` of the device's memory free."""
    global_batch: int
    """Samples of a step of all replicas."""

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON for scripts; memory in bytes."""
        return {
            **self.layout._asdict(),
            "recompute": self.recompute,
            "global_batch": self.global_batch,
            "fits": self.fits,
            "tight": self.is_tight,
            "memory": self.memory.to_dict(),
        }


def list_layouts(configured: ConfiguredCase, devices: int, per_node: int) -> list[ParallelLayout]:
    """Every layout of that many devices that divides the model, its tensor parallelism inside a node.

    Raises FlagbenchError (USAGE) if no layout does.
    """
    supported = []
    for tp in _axis_sizes(configured, "tp", per_node):
        for pp in _axis_sizes(configured, "pp", devices // tp):
            layout = ParallelLayout(tp, pp, devices // (tp * pp))
            if _is_supported(configured, layout):
                supported.append(layout)
    if not supported:
        raise FlagbenchError(
            f"no layout of {devices} devices, {per_node} on a node, divides {configured.case.name}",
            remedy=f"change --gpus, --gpus-per-node or --set; {_divisors_text(configured)}",
        )
    return supported


def _divisors_text(configured: ConfiguredCase) -> str:
    """`tp must divide model.heads = 64, model.kv_heads = 8; pp must divide model.layers = 80`."""
    axes = []
    for axis, paths in configured.engine.divides.items():
        numbers = ", ".join(f"{path} = {_number_at(configured, path)}" for path in paths)
        axes.append(f"{axis} must divide {numbers}")
    return "; ".join(axes)


def _is_supported(configured: ConfiguredCase, layout: ParallelLayout) -> bool:
    """Whether a run accepts that layout."""
    # The number of nodes does not matter here: the caller keeps tensor parallelism inside a node.
    split = {"nodes": 1, "gpus": layout.ranks, "layout": {"tp": layout.tp, "pp": layout.pp}}
    try:
        config.check_layout(configured.case.raw, {**configured.config, **split})
    except config.ConfigError:
        return False
    return True


def _axis_sizes(configured: ConfiguredCase, axis: str, ranks: int) -> list[int]:
    """The sizes to try for an axis, `tp` or `pp`, of a layout with `ranks` to divide.

    If the user set the axis, that is its size alone, or none if it does not divide `ranks`. Otherwise all divisors
    that the engine and the case allow.
    """
    if axis in configured.settings:
        size = configured.settings[axis] or ranks  # 0: as many as possible, as in a run
        if ranks % size:
            return []
        return [size]
    if axis not in configured.engine.layout:
        return [1]
    largest = ranks
    for path in configured.engine.divides.get(axis, ()):
        largest = min(largest, _number_at(configured, path))
    sizes = []
    for size in range(1, largest + 1):
        if ranks % size == 0 and _is_allowed(configured, axis, size):
            sizes.append(size)
    return sizes


def _is_allowed(configured: ConfiguredCase, axis: str, size: int) -> bool:
    """Whether the case allows that size of an axis; every size if users cannot set the axis."""
    setting = configured.case.settable.get(axis)
    return setting is None or config.setting_fault(setting, size) is None


def _number_at(configured: ConfiguredCase, path: str) -> int:
    """The number in the configuration at a path such as `model.layers`."""
    section: Any = configured.config
    for key in path.split("."):
        section = section[key]
    return int(section)


def rank_layouts(
    configured: ConfiguredCase, devices: int, per_node: int, memory_gib: float, traits: MemoryTraits
) -> list[LayoutRow]:
    """Every layout: those that fit into `memory_gib`, then those that are tight, then those that do not fit.

    Layouts that fit are sorted by recomputation, stages and tensor parallelism, the least first; those that do not
    fit by memory. If several recomputations may be chosen, a row has the least that fits.
    """
    rows = []
    for layout in list_layouts(configured, devices, per_node):
        choices = []
        for recompute in configured.recomputes:
            choices.append(_predict_row(configured, layout, recompute, memory_gib, traits))
        rows.append(min(choices, key=_rank))
    return sorted(rows, key=_rank)


def _rank(row: LayoutRow) -> tuple[int, ...]:
    """The sort key of a row: the smaller, the better."""
    if not row.fits:
        return (_AFTER_ALL_THAT_FIT, row.memory.in_use)
    recomputed = LEAST_RECOMPUTED_FIRST.index(row.recompute)
    return (int(row.is_tight), recomputed, row.layout.pp, row.layout.tp)


def _predict_row(
    configured: ConfiguredCase, layout: ParallelLayout, recompute: str, memory_gib: float, traits: MemoryTraits
) -> LayoutRow:
    """Predict the memory of a layout and compare it with that of a device."""
    step = configured.step(recompute)
    if configured.is_training:
        needed = fullest_stage(configured.model, step, layout, traits)
    else:
        needed = forward_memory(configured.model, step, layout, traits)
    available = memory_gib * GIB
    fits = needed.in_use <= available
    return LayoutRow(
        layout,
        recompute,
        needed,
        fits=fits,
        is_tight=fits and needed.in_use > (1 - TIGHT) * available,
        global_batch=step.micro_batch * step.micro_batches * layout.dp,
    )
