"""Every pass of a real step of a pipeline is marked, and nothing else is: the bubble is computed from the marks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flagbench_cases.engines.megatron import parts
from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.stopwatch import HostClock
from flagbench_cases.shared.parallel_layout import Layout
from running import need_megatron
from unit.cases.engines.megatron_bench import SMALL, context_of, weights_of
from workloads import on_ranks

pytestmark = pytest.mark.image

SECTION = {**SMALL, "layers": 2}
SLEPT = 0.02
LAYOUT = Layout(pp=2)
COUNTS = (1, 4)
"""Micro-batches of a step."""


class Passed(torch.autograd.Function):
    """Identity that tells when the backward pass comes through, and sleeps in it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, events: list[str]) -> torch.Tensor:
        ctx.events = events
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.events.append("backward")
        time.sleep(SLEPT)
        return gradient, None


class Recording(CollectiveProbe):
    """Also tells when passes begin and end."""

    def __init__(self, events: list[str]) -> None:
        super().__init__(HostClock())
        self.events = events

    def pass_begins(self) -> None:
        self.events.append("begin")
        super().pass_begins()

    def pass_ends(self) -> None:
        super().pass_ends()
        self.events.append("end")


def taken(folder: Path, rank: int, count: int) -> dict[str, Any]:
    """What happened on a rank in one step, and its times by the real clock."""
    import warnings

    warnings.simplefilter("ignore")
    from megatron.core import parallel_state

    from flagbench_cases.engines.megatron import open_engine, training

    parallel_state.destroy_model_parallel()  # of an earlier run of this rank
    events: list[str] = []
    probe = Recording(events)
    context = context_of(folder, rank, LAYOUT, {"seed": 1})._replace(probe=probe)
    engine = open_engine()
    engine.start(context)
    shape, weights = shape_of(SECTION), weights_of(SECTION)
    module = engine.build(context, shape, torch.float32)
    mine = parts.parts_of(shape, LAYOUT, LAYOUT.coordinates(rank))
    parts.fill(module, mine, lambda names: iter([(name, weights[name]) for name in names]))

    def forward(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        events.append("forward")
        return Passed.apply(output, events)

    module.register_forward_hook(forward)
    settings = training.Hyperparameters(
        learning_rate=1e-3,
        min_learning_rate=1e-4,
        warmup_share=0.1,
        schedule_samples=1000,
        weight_decay=0.1,
        beta1=0.9,
        beta2=0.95,
        epsilon=1e-8,
        clip=1.0,
        distributed_optimizer=True,
        loss_scale=2.0**16,
    )
    trainer = training.Trainer(context, module, torch.float32, settings)
    tokens = torch.zeros(1, 9, dtype=torch.int64)
    # What sends and receives between stages.
    whole = dist.batch_isend_irecv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", lambda sent: events.append("exchange") or whole(sent))
        trainer.step([tokens] * count)
    return {"events": events, "times": probe.pass_times(probe.take_passes())}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, dict[str, Any]]]:
    """What each rank recorded, by the number of micro-batches."""
    need_megatron()

    def all_of(folder: Path, rank: int, world: int) -> Any:
        return {count: taken(folder, rank, count) for count in COUNTS}

    return on_ranks(2, tmp_path_factory.mktemp("runs"), all_of)


def order(events: list[str]) -> list[str]:
    """The passes of a rank; each mark is where it belongs, and nothing is sent or received within a pass."""
    marked = [event for event in events if event != "exchange"]
    passes = marked[1::3]
    assert marked == [event for name in passes for event in ("begin", name, "end")]
    for number, event in enumerate(events):
        if event == "begin":
            assert events[number + 2] == "end"
    return passes


@pytest.mark.parametrize("count", COUNTS)
def test_every_pass_of_a_step_is_marked(runs: Any, count: int) -> None:
    for found in (rank[count] for rank in runs):
        passes = order(found["events"])
        assert passes.count("forward") == passes.count("backward") == count
        assert "exchange" in found["events"]
        computing, whole = found["times"]
        assert SLEPT * count <= computing <= whole
