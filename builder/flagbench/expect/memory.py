"""The memory that a case took of a device where it was measured, and what needs less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flagbench.manifests.model import Case, MeasuredMemory
from flagbench.verdict.derivation import derived_conditions, look_up
from flagbench_core.config import preset_of

_WITHOUT_EFFECT = ("division", "gradient_accumulation_steps")
"""Conditions of the work that change no memory."""


def measured_memory(
    case: Case, config: Mapping[str, Any], precision: str, ranks: int | None
) -> MeasuredMemory | None:
    """What was measured for such a run; None if its work, precision or layout was not measured. Never an estimate.

    Of several measurements, the one with the least memory: a device with less was always too small. A run with fewer
    replicas than measured takes no less, since the replicas share the distributed optimizer.

    Args:
        config: a preset of the case, with the settings of the run; without `gpus` all ranks are of one node.
        ranks: of the whole job; None: any number.
    """
    if not _is_reference_work(case, config, precision):
        return None
    matching = []
    for memory in case.memory:
        if memory.precision == precision and _has_layout(memory, config, ranks):
            matching.append(memory)

    def replicas_and_size(memory: MeasuredMemory) -> tuple[int, float]:
        if ranks is None or memory.layout is None:
            return 1, memory.gib
        return memory.layout["dp"], memory.gib

    return min(matching, key=replicas_and_size, default=None)


def _is_reference_work(case: Case, config: Mapping[str, Any], precision: str) -> bool:
    """Whether a configuration gives the conditions of the work that the reference preset gives."""
    reference = preset_of(case.presets, "reference")
    wanted = derived_conditions(case, {**reference, "precision": precision})
    conditions = derived_conditions(case, {**config, "precision": precision})
    for name in case.work_conditions:
        if name not in _WITHOUT_EFFECT and conditions.get(name) != wanted.get(name):
            return False
    return True


def _has_layout(memory: MeasuredMemory, config: Mapping[str, Any], ranks: int | None) -> bool:
    """Whether a run is split as measured, with no more replicas."""
    if memory.layout is None:
        return True
    pp, tp = config["layout"]["pp"], config["layout"]["tp"]
    if tp == 0 and ranks is None:
        tp = memory.layout["tp"]
    elif tp == 0:  # the ranks of a node share every layer, as far as the stages allow
        tp = min(config.get("gpus", ranks), ranks // pp)
    if (tp, pp) != (memory.layout["tp"], memory.layout["pp"]):
        return False
    return ranks is None or ranks <= tp * pp * memory.layout["dp"]


def lacking(case: Case, memory: MeasuredMemory, gib: float, ranks: int | None) -> str:
    """A sentence: a device of `gib` GiB has less memory than was measured, and what needs less.

    `ranks`: of the whole job; None where it may have as many as were measured.
    """
    took = f"{case.name} took {memory.gib:g} GiB of each {memory.device} ({memory.source})"
    return f"{took}, and there are {gib:.4g} GiB; {_needs_less(case, memory, gib, ranks)}"


def _needs_less(case: Case, memory: MeasuredMemory, gib: float, ranks: int | None) -> str:
    if memory.layout is not None:
        devices = ranks or memory.layout["dp"] * memory.layout["tp"] * memory.layout["pp"]
        return f"`flagbench plan {case.name} --gpus {devices} --mem {gib:.4g}` shows which layouts fit"
    batch = "batch_size"
    if "micro_batch_size" in case.settable:
        batch = "micro_batch_size"
    recompute = case.settable.get("recompute")
    if recompute is not None and look_up(case.presets["reference"], recompute["path"]) is False:
        return f"a smaller --set {batch} needs less, and so does --set recompute=true"
    return f"a smaller --set {batch} needs less"
