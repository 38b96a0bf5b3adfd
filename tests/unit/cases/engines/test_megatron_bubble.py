"""The bubble of a pipeline: which passes Megatron-Core makes in which order, and what is computed from them.

Each rank records the order of its passes in a real step. The time of each pass is then given: it takes its stage a
known time, and begins when its rank is free and its input is there. By a clock, the bubble would depend on the load
of the machine.
"""

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
from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import Step
from running import need_megatron
from unit.cases.engines.megatron_bench import SMALL, context_of, weights_of
from unit.cases.record.runs import bubbles_of
from workloads import on_ranks

pytestmark = pytest.mark.image

SECTION = {**SMALL, "layers": 2}
SLEPT = 0.02
RUNS = {
    "1": (Layout(pp=2), 1),
    "2": (Layout(pp=2), 2),
    "4": (Layout(pp=2), 4),
    "8": (Layout(pp=2), 8),
}
"""Layout and micro-batches."""


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


def taken(folder: Path, rank: int, layout: Layout, count: int) -> dict[str, Any]:
    """What happened on a rank in one step, and its times by the real clock."""
    import warnings

    warnings.simplefilter("ignore")
    from megatron.core import parallel_state

    from flagbench_cases.engines.megatron import open_engine, training

    parallel_state.destroy_model_parallel()  # of an earlier run of this rank
    events: list[str] = []
    probe = Recording(events)
    context = context_of(folder, rank, layout, {"seed": 1})._replace(probe=probe)
    engine = open_engine()
    engine.start(context)
    shape, weights = shape_of(SECTION), weights_of(SECTION)
    module = engine.build(context, shape, torch.float32)
    mine = parts.parts_of(shape, layout, layout.coordinates(rank))
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
    trainer.loss([tokens])
    unmarked = list(events)
    del events[:]
    # What sends and receives between stages.
    whole = dist.batch_isend_irecv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", lambda sent: events.append("exchange") or whole(sent))
        trainer.step([tokens] * count)
    return {"events": events, "unmarked": unmarked, "times": probe.pass_seconds(probe.take_passes())}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each rank of each run recorded."""
    need_megatron()

    def all_of(folder: Path, rank: int, world: int) -> Any:
        return {name: taken(folder, rank, *run) for name, run in RUNS.items()}

    ranks = on_ranks(2, tmp_path_factory.mktemp("runs"), all_of)
    return {name: [rank[name] for rank in ranks] for name in RUNS}


def order(events: list[str]) -> list[str]:
    """The passes of a rank; each mark is where it belongs, and nothing is sent or received within a pass."""
    marked = [event for event in events if event != "exchange"]
    passes = marked[1::3]
    assert marked == [event for name in passes for event in ("begin", name, "end")]
    for number, event in enumerate(events):
        if event == "begin":
            assert events[number + 2] == "end"
    return passes


def durations(ranks: list[dict[str, Any]], layout: Layout, seconds: tuple[float, float]) -> dict[int, list[Step]]:
    """The step of each rank, if a forward pass of stage i takes seconds[i], and a backward pass twice as long."""
    ends: dict[tuple[str, int, int], float] = {}
    left = {rank: order(found["events"]) for rank, found in enumerate(ranks)}
    marks: dict[int, list[float]] = {rank: [] for rank in left}
    while any(left.values()):
        for rank, passes in left.items():
            stage, done = layout.coordinates(rank).pp, len(marks[rank]) // 2
            if not passes:
                continue
            kind = passes[0]
            number = order(ranks[rank]["events"])[:done].count(kind)
            neighbour = stage - 1 if kind == "forward" else stage + 1
            there = 0.0
            if 0 <= neighbour < layout.pp:
                if (kind, neighbour, number) not in ends:
                    continue
                there = ends[kind, neighbour, number]
            start = max(there, marks[rank][-1] if marks[rank] else 0.0)
            end = start + seconds[stage] * (1 if kind == "forward" else 2)
            ends[kind, stage, number] = end
            marks[rank] += [start, end]
            passes.pop(0)
    probe = CollectiveProbe(HostClock())
    return {rank: [Step(*[0.0] * 15, *probe.pass_seconds(own))] for rank, own in marks.items()}


@pytest.mark.parametrize("name", RUNS)
def test_every_pass_of_a_step_is_marked(runs: Any, name: str) -> None:
    _, count = RUNS[name]
    for found in runs[name]:
        passes = order(found["events"])
        assert passes.count("forward") == passes.count("backward") == count
        assert "exchange" in found["events"]
        computing, whole = found["times"]
        assert SLEPT * count <= computing <= whole


def test_passes_without_training_are_not_marked(runs: Any) -> None:
    assert [found["unmarked"] for found in runs["4"]] == [["forward"]] * 2


@pytest.mark.parametrize(
    ("name", "seconds", "wanted"),
    [
        ("1", (1.0, 1.0), (1 / 2, 1 / 2)),
        ("2", (1.0, 1.0), (1 / 3, 1 / 3)),
        ("8", (1.0, 1.0), (1 / 9, 1 / 9)),
        # The slow stage has 4 micro-batches; the other one has one before its first and after its last pass.
        ("4", (1.0, 3.0), (1 - 4 / 13, 1 - 12 / 13)),
        # It has a micro-batch whenever the other one returns one.
        ("4", (3.0, 1.0), (0.0, 1 - 4 / 12)),
    ],
)
def test_the_bubble_is_that_of_the_schedule(
    runs: Any, name: str, seconds: tuple[float, float], wanted: tuple[float, float]
) -> None:
    layout = RUNS[name][0]
    found = bubbles_of(durations(runs[name], layout, seconds), 0, 1, layout)
    assert list(found.values()) == pytest.approx(wanted, abs=1e-9)
