"""Whether a case fits into the memory of a device, from measurements that its manifest has of other devices.

`expect` leaves out cases that do not fit, and a run warns before it starts one. Nothing is estimated here: `plan`
does that for cases whose model can be split among devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flagbench.manifests.model import Case, MeasuredMemory
from flagbench.verdict.derivation import derived_conditions, look_up
from flagbench_core.config import preset_of

_WITHOUT_EFFECT = ("division", "gradient_accumulation_steps")
"""Conditions of the work that do not change the memory it takes."""


def measured_memory(
    case: Case, config: Mapping[str, Any], precision: str, ranks: int | None
) -> MeasuredMemory | None:
    """Return the memory that such a run took where it was measured; None if its work or layout was not measured.

    Of several measurements it is the one with the fewest replicas and the least memory, so a device with less is too
    small in any case. A run with fewer replicas than measured takes no less, since the replicas share the distributed
    optimizer.

    Args:
        config: a preset of the case with the settings of the run; without `gpus`, all ranks are on one node.
        precision: the precision of the run, as the manifest names it.
        ranks: the number of ranks of the whole job; None for any number.
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
    """Return whether a configuration describes the same work as the reference preset, which is the measured one."""
    reference = preset_of(case.presets, "reference")
    wanted = derived_conditions(case, {**reference, "precision": precision})
    conditions = derived_conditions(case, {**config, "precision": precision})
    for name in case.work_conditions:
        if name not in _WITHOUT_EFFECT and conditions.get(name) != wanted.get(name):
            return False
    return True


def _has_layout(memory: MeasuredMemory, config: Mapping[str, Any], ranks: int | None) -> bool:
    """Return whether a run is split among its ranks as the measured one was, with no more replicas.

    A layout has three numbers: data-parallel replicas (dp), tensor-parallel parts (tp) and pipeline stages (pp). A tp
    of 0 means as many parts as a node has ranks.
    """
    if memory.layout is None:
        return True
    pp = config["layout"]["pp"]
    tp = config["layout"]["tp"]
    if tp == 0 and ranks is None:
        tp = memory.layout["tp"]
    elif tp == 0:
        ranks_per_node = config.get("gpus", ranks)
        tp = min(ranks_per_node, ranks // pp)
    if (tp, pp) != (memory.layout["tp"], memory.layout["pp"]):
        return False
    return ranks is None or ranks <= tp * pp * memory.layout["dp"]


def lacking(case: Case, memory: MeasuredMemory, gib: float, ranks: int | None) -> str:
    """Return a sentence saying that a device with `gib` GiB has less memory than was measured, and what needs less.

    Args:
        ranks: the number of ranks of the whole job; None if it may have as many as were measured.
    """
    measured = f"{case.name} took {memory.gib:g} GiB of each {memory.device} ({memory.source})"
    return f"{measured}, and there are {gib:.4g} GiB; {_advice(case, memory, gib, ranks)}"


def _advice(case: Case, memory: MeasuredMemory, gib: float, ranks: int | None) -> str:
    """Return which settings of the case need less memory."""
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
