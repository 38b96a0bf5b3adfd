"""The measured bubble of a pipeline: the share of its time in which a stage runs no forward or backward pass.

A pipeline splits the layers of a model into stages, each on its own devices. The micro-batches of a batch pass
through them one after the other. `derive` computes the bubbles for a record.

Narayanan et al. (Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021, section
2.2.1): with p stages, m micro-batches, and t_f and t_b for the passes of a micro-batch on one stage, the pipeline is
idle for (p - 1)(t_f + t_b) in addition to m (t_f + t_b) of work. They divide the former by the latter, (p - 1) / m;
here both the predicted and the measured bubble are shares of the total time, (p - 1) / (m + p - 1).

The measured bubbles are those over the steps of the window:

  bubble of a rank   1 - sum of its passes / duration of its pipeline
  duration           from the start of the first pass to the end of the last pass of the first stage, where every
                     micro-batch enters first and leaves last; on its rank with the same dp and tp coordinates
  bubble of a stage  mean over its ranks
  bubble of the job  mean over the stages

The optimizer, the averaging of gradients over replicas, and the wait for data before the first pass are not part of a
pipeline's duration, neither here nor in the prediction. The measured bubble differs from the predicted one

- if stages differ: the slowest has a smaller bubble, all others a larger one;
- by sending and receiving between stages, and by the host's work between passes, which count as bubble;
- by waits within passes, which count as work: for other tensor-parallel ranks, and on a device for a host that is
  late. Recomputing activations is work of the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flagbench_core.evidence.document import StepRange


def measure_bubbles(window: StepRange, world: int, stages: int) -> list[float]:
    """The bubble of each rank over a window, from 0 to 1; empty if passes were not measured in each of its steps.

    `world` is the number of ranks. They are numbered in Megatron-LM's default order, where those of a stage are
    consecutive: rank `r` has the same dp and tp coordinates as rank `r % (world // stages)` of the first stage.
    """
    if not window.spans or not all(span.passes for span in window.spans):
        return []
    computing = [sum(span.passes["computing"][rank] for span in window.spans) for rank in range(world)]
    duration = [sum(span.passes["pipeline"][rank] for span in window.spans) for rank in range(world)]
    first_stage = duration[: world // stages]
    if not first_stage or not all(first_stage):
        return []
    rank_bubbles = []
    for rank in range(world):
        pipeline_duration = first_stage[rank % len(first_stage)]
        rank_bubbles.append(1 - computing[rank] / pipeline_duration)
    return rank_bubbles


def summarise(rank_bubbles: Sequence[float], stages: int) -> dict[str, Any]:
    """The bubbles of the job and of each stage, in the order of the pipeline, as `quality.training` has them.

    Empty if they were not measured.
    """
    if not rank_bubbles:
        return {}
    ranks = len(rank_bubbles) // stages
    stage_bubbles = []
    for stage in range(stages):
        of_stage = rank_bubbles[stage * ranks : (stage + 1) * ranks]
        stage_bubbles.append(math.fsum(of_stage) / ranks)
    return {"measured_bubble": math.fsum(stage_bubbles) / stages, "measured_bubble_of_stages": stage_bubbles}
