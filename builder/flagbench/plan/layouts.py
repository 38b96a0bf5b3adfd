"""Every layout of a number of devices, with its memory, its bubble and how fast it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.plan.config import Planned
from flagbench.plan.inference import forward_memory
from flagbench.plan.memory import StageMemory
from flagbench.plan.model import Layout, Software, bubble
from flagbench.plan.speed import TensorSpeed
from flagbench.plan.training import fullest_stage

GIB = 2**30
UNCERTAINTY = 0.1
"""Predictions are up to this much below or above the published memory (docs/plan.md)."""


@dataclass(frozen=True)
class Row:
    """A layout, with the recomputation that suits it best."""

    layout: Layout
    recompute: str
    memory: StageMemory
    """Of the stage that needs most."""
    bubble: float
    relative: float
    """Predicted speed of a device, 1 for one that never waits, recomputes nothing and has the fastest measured
    tensor parallelism."""
    fits: bool
    tight: bool
    """It fits by less than the uncertainty of the prediction."""
    global_batch: int
    """Samples of a step of all replicas."""

    def to_dict(self) -> dict[str, Any]:
        """For a script."""
        return {
            **self.layout._asdict(),
            "recompute": self.recompute,
            "global_batch": self.global_batch,
            "bubble": self.bubble,
            "relative_speed": self.relative,
            "fits": self.fits,
            "tight": self.tight,
            "memory": self.memory.to_dict(),
        }


def layouts(planned: Planned, devices: int, per_node: int) -> list[Layout]:
    """Every layout of that many devices that divides the model, its tensor parallelism inside a node.

    Raises FlagbenchError (usage) if no layout does.
    """
    found = [layout for layout in _products(planned, devices, per_node) if _divides(planned, layout)]
    if not found:
        parts = "; ".join(
            f"{axis} must divide {', '.join(f'{path} = {_at(planned.config, path)}' for path in paths)}"
            for axis, paths in planned.engine.get("divides", {}).items()
        )
        raise FlagbenchError(
            f"no layout of {devices} devices, {per_node} on a node, divides {planned.case.name}",
            remedy=f"change --gpus, --gpus-per-node or --set; {parts}",
        )
    return found


def _products(planned: Planned, devices: int, per_node: int) -> Iterator[Layout]:
    for tp in _sizes(planned, "tp", per_node):
        for pp in _sizes(planned, "pp", devices // tp):
            layout = Layout(tp, pp, devices // (tp * pp))
            if layout.dp == 1 or "dp" in planned.engine["layout"]:
                yield layout


def _sizes(planned: Planned, axis: str, ranks: int) -> list[int]:
    """The divisors of `ranks` that the engine and the case allow for an axis, or the size that was set; 0 leaves the
    choice open."""
    if axis in planned.asked:
        asked = planned.config["layout"][axis] or ranks  # 0: as many as possible, as in a run
        return [asked] if ranks % asked == 0 else []
    if axis not in planned.engine["layout"]:
        return [1]
    setting = planned.case.settable.get(axis)
    limits = [ranks, int(setting.get("maximum", ranks)) if setting else ranks]
    limits += [_at(planned.config, path) for path in planned.engine.get("divides", {}).get(axis, ())]
    return [size for size in range(1, min(limits) + 1) if ranks % size == 0]


def _divides(planned: Planned, layout: Layout) -> bool:
    """Whether every size that the manifest names is a multiple of the axis."""
    rules: Mapping[str, Any] = planned.engine.get("divides", {})
    return all(
        _at(planned.config, path) % getattr(layout, axis) == 0 for axis, paths in rules.items() for path in paths
    )


def _at(config: Mapping[str, Any], path: str) -> int:
    found: Any = config
    for key in path.split("."):
        found = found[key]
    return int(found)


def rows(
    planned: Planned, devices: int, per_node: int, memory: float, software: Software, speed: TensorSpeed
) -> list[Row]:
    """Every layout: those that fit into `memory` GiB, then those that just fit, both the fastest first; then those
    that do not fit, the smallest first.

    If several recomputations may be chosen, a row has the fastest that fits, else the one that needs least.
    Of layouts that are equally fast, the one with less tensor parallelism is first, then with fewer stages.
    """
    found = []
    for layout in layouts(planned, devices, per_node):
        choices = [_row(planned, layout, recompute, memory, software, speed) for recompute in planned.recomputes]
        found.append(min(choices, key=_order))
    return sorted(found, key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    if not row.fits:
        return (True, row.memory.in_use)
    return (False, row.tight, -round(row.relative, 9), row.layout.tp, row.layout.pp)


def _row(
    planned: Planned, layout: Layout, recompute: str, memory: float, software: Software, speed: TensorSpeed
) -> Row:
    step, model = planned.step(recompute), planned.model
    if planned.training:
        needed, waits = fullest_stage(model, step, layout, software), bubble(layout.pp, step.micro_batches)
        again = model.recomputed_share(recompute, step.sequence_length, layout.tp)
    else:
        needed, waits, again = forward_memory(model, step, layout, software), 0.0, 0.0
    fits = needed.in_use <= memory * GIB
    return Row(
        layout,
        recompute,
        needed,
        waits,
        (1 - waits) / (1 + again) * speed.of(layout.tp),
        fits,
        fits and needed.in_use > (1 - UNCERTAINTY) * memory * GIB,
        step.micro_batch * step.micro_batches * layout.dp,
    )
