"""The tiny preset of Llama2-70B on gloo ranks."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path
from typing import Any

from flagbench_cases.cases.llama2_70b.workload import PretrainingWorkload
from flagbench_cases.engines.groups import make_groups
from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import SpoolReader
from flagbench_core.config import merge, preset_of
from unit.cases.engines.megatron_bench import context_of

WINDOW = TrainPlan(1, warmup_steps=0, window_steps=3, target_acc=None, initial_evaluation=False)


def configured(case: str = "llama2-70b", **changes: Any) -> dict[str, Any]:
    """The configuration of the tiny preset in fp32 on its shipped set; `changes` replace keys section by section."""
    config = preset_of(load_case(case)["presets"], "tiny")
    config["data"]["source"] = config["data"].pop("default")
    return merge(dict(config, case=case, precision="fp32", weights="random", seed=1234), changes)


def new(folder: Path, rank: int, layout: Layout, weights: str | None = None, **changes: Any) -> PretrainingWorkload:
    """A rank's workload, not set up."""
    warnings.simplefilter("ignore")
    limit = datetime.timedelta(seconds=60)
    groups = make_groups(layout, rank, limit) if layout.world > 1 else {}
    return PretrainingWorkload(
        context_of(folder, rank, layout, configured(**changes), groups=groups, weights=weights)
    )


def workload(folder: Path, rank: int, layout: Layout, **changes: Any) -> PretrainingWorkload:
    """A rank's workload, set up."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()  # of an earlier workload of this rank
    work = new(folder, rank, layout, **changes)
    work.setup()
    return work


def trained(folder: Path, rank: int, layout: Layout, plan: TrainPlan = WINDOW, **changes: Any) -> dict[str, Any]:
    """Some steps in the case's own loop: this rank's steps, as they were recorded, and its facts."""
    work = workload(folder, rank, layout, **changes)
    context = work.context
    context.spool.reserve(plan.capacity(work.steps_per_epoch()))
    TrainLoop(work, plan, context.spool, context.device, context.probe, counts=layout.counts(rank)).run()
    reader = SpoolReader(str(folder), rank)
    return {
        "steps": [tuple(step) for step in reader.steps()],
        "skipped": [fact["step"] for fact in reader.facts() if fact["kind"] == "skipped"],
        "facts": work.training_facts(),
        "described": work.describe(),
        "parameters": sum(parameter.numel() for parameter in work.module.parameters()),
    }
