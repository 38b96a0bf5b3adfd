"""The measured bubble of a pipeline: the share of its time in which a stage runs no forward or backward pass.

Narayanan et al. (Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021, section
2.2.1): with p stages, m micro-batches, and t_f and t_b for the passes of a micro-batch on one stage, the pipeline is
idle for (p - 1)(t_f + t_b) in addition to m (t_f + t_b) of work. They divide the former by the latter, (p - 1) / m;
here both the predicted and the measured bubble are shares of the whole, (p - 1) / (m + p - 1).

Measured, over the steps of the window:

  bubble of a rank   1 - sum of its passes / duration of its pipeline
  duration           from the start of the first pass to the end of the last pass of the first stage, where every
                     micro-batch enters first and leaves last; by its rank with the same dp and tp coordinates
  bubble of a stage  mean over its ranks
  bubble of the job  mean over the stages

The optimizer, the averaging of gradients over replicas, and the wait for data before the first pass are not part of a
pipeline's duration, neither here nor in the prediction. The measured bubble differs from the predicted one

- if stages differ: the slowest has a smaller bubble, all others a larger one;
- by sending and receiving between stages, and by the host's work between passes, which count as bubble;
- by waits within passes, which count as work: for other tensor-parallel ranks, and on a device for a host that is
  late. Recomputing activations is work of the backward pass.
"""

import math
from typing import Any, Dict, List

from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import Step


def bubbles(ranks: Dict[int, List[Step]], first: int, count: int, layout: Layout) -> Dict[int, float]:
    """The bubble of each rank over steps `first` to `count`; empty if passes were not measured in each of them."""
    window = {rank: steps[first:count] for rank, steps in ranks.items()}
    computing = {rank: math.fsum(step.computing for step in steps) for rank, steps in window.items()}
    duration = {rank: math.fsum(step.pipeline for step in steps) for rank, steps in window.items()}
    entries = {layout.coordinates(rank): rank for rank in ranks}
    found = {}
    for rank in ranks:
        entry = entries.get(layout.coordinates(rank)._replace(pp=0))
        seconds = math.nan if entry is None else duration[entry]
        found[rank] = 1 - computing[rank] / seconds if seconds > 0 else math.nan
    return found if all(map(math.isfinite, found.values())) else {}


def facts(of_ranks: Dict[int, float], layout: Layout) -> Dict[str, Any]:
    """The bubbles of the job and of each stage, in the order of the pipeline; empty if they were not measured."""
    if not of_ranks:
        return {}
    stages = []
    for stage in range(layout.pp):
        own = [bubble for rank, bubble in of_ranks.items() if layout.coordinates(rank).pp == stage]
        stages.append(math.fsum(own) / len(own))
    return {"measured_bubble": math.fsum(stages) / len(stages), "measured_bubble_of_stages": stages}
