"""The memory that `flagbench plan` predicts, against live tensors of small models in the cases' own steps."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flagbench_cases.contract import INFER
from flagbench_cases.shared.parallel_layout import Layout
from running import need_megatron
from unit.cases.aquila_33b import aquila_bench
from unit.cases.llama2_70b import llama70_bench
from workloads import on_ranks

pytest.importorskip("flagbench", reason="the host side predicts it")
pytestmark = pytest.mark.image

SHAPES: dict[str, dict[str, Any]] = {
    # Activations weigh more than weights, scores more than the rest.
    "long": {"layers": 2, "dim": 128, "heads": 8, "kv_heads": 4, "ffn": 352, "vocab_size": 448, "vocab_multiple": 16},
    # The vocabulary is large, and the width no power of two.
    "wide": {"layers": 2, "dim": 192, "heads": 6, "kv_heads": 2, "ffn": 320, "vocab_size": 1000, "vocab_multiple": 8},
}
# As llama3-8b. A CPU keeps a number for each element of a dropout, and a device a byte.
SHAPES["tied"] = {
    **SHAPES["wide"],
    "position_embedding": "learned",
    "bias": True,
    "tied": True,
    "legacy_layers": False,
}
TOKENS = {"long": (256, 1, 3), "wide": (128, 3, 2), "tied": (128, 1, 3)}
"""Sequence length, micro-batch and micro-batches."""


class Job(NamedTuple):
    """A training step."""

    layout: Layout
    shape: str
    precision: str
    recompute: str
    fused: bool
    distributed: bool = True


ONE, TP, PP, DP = Layout(), Layout(tp=2), Layout(pp=2), Layout(dp=2)
JOBS = [
    Job(ONE, "wide", "fp32", "none", True),
    Job(ONE, "long", "bf16", "selective", False),
    Job(TP, "long", "bf16", "none", False),
    # Scores are most of it: gloo frees its copies of hidden states late, now and then.
    Job(TP, "long", "fp32", "full", False, False),
    Job(PP, "long", "bf16", "none", True),
    Job(PP, "long", "fp32", "selective", False, False),
    Job(DP, "wide", "bf16", "full", True),
    Job(DP, "wide", "bf16", "full", False, False),
    *(Job(layout, "tied", "bf16", "none", True) for layout in (ONE, TP)),
]
FORWARD = [(ONE, "bf16"), (TP, "fp32")]
ALL: list[Any] = [*JOBS, *FORWARD]


def there() -> Any:
    """The storages of other tensors."""
    from unit.cases.engines.live_bytes import storages  # needs a later torch than Python 3.8 has

    return storages()


def measured(step: Callable[[], Any], before: Any) -> tuple[int, int]:
    """Bytes of live tensors before a step, and how many more there are at its peak; `before`: storages of others."""
    from unit.cases.engines.live_bytes import LiveBytes

    live = LiveBytes([storage for storage in there() if storage not in before])
    with live:
        step()
    return live.start, live.peak - live.start


def train(folder: Path, rank: int, job: Job) -> tuple[int, int]:
    """The second step of a job: the first one makes the optimizer's state."""
    length, micro, count = TOKENS[job.shape]
    before = there()
    work = llama70_bench.workload(
        folder,
        rank,
        job.layout,
        model=dict(SHAPES[job.shape], positions=length),
        precision=job.precision,
        data={"source": "synthetic", "sequence_length": length},
        train={
            "micro_batch_size": micro,
            "batch_size": micro * count,
            "recompute": job.recompute,
            "flash_attention": job.fused,
            "distributed_optimizer": job.distributed,
        },
    )
    first, second = (work.to_device(batch) for batch in itertools.islice(work.batches(0), 2))
    work.step(first)
    del first
    return measured(lambda: work.step(second), before)


def score(folder: Path, rank: int, layout: Layout, precision: str) -> tuple[int, int]:
    """The second forward pass of the case that infers, in its tiny preset."""
    before = there()
    work = aquila_bench.workload(folder, rank, layout, count=4, precision=precision)
    batch = next(iter(work.batches(INFER)))
    work.infer(batch)
    return measured(lambda: work.infer(batch), before)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], list[tuple[int, int]]]:
    """What each rank of a job measured. Jobs of as many ranks share their processes."""
    need_megatron()
    folder = tmp_path_factory.mktemp("memory")

    def all_of(folder: Path, rank: int, world: int) -> dict[int, tuple[int, int]]:
        made = {}
        gc.freeze()  # a hundred thousand objects of imported modules
        for number, job in enumerate(ALL):
            if job[0].world == world:
                place = folder / str(number)
                place.mkdir(exist_ok=True)
                made[number] = train(place, rank, job) if len(job) > 2 else score(place, rank, *job)
        return made

    @functools.lru_cache(maxsize=None)
    def on(world: int) -> list[dict[int, tuple[int, int]]]:
        return on_ranks(world, folder / str(world), all_of)

    return lambda job: [made[ALL.index(job)] for made in on(job[0].world)]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_a_training_step_needs_what_is_predicted(found: Any, job: Job) -> None:
    from flagbench.plan import memory, model

    length, micro, count = TOKENS[job.shape]
    step = model.Step(
        length,
        micro,
        count,
        job.precision,
        job.recompute,
        fused_attention=job.fused,
        distributed_optimizer=job.distributed,
    )
    layout = model.ParallelLayout(job.layout.tp, job.layout.pp, job.layout.dp)
    sizes = model.Model.of({**SHAPES[job.shape], "positions": length})
    for rank, (start, more) in enumerate(found(job)):
        stage = job.layout.coordinates(rank).pp
        told = memory.stage_memory(sizes, step, layout, stage, model.CPU)
        assert told.tensors == pytest.approx(start + more, rel=0.03)
        # What a step adds to weights, gradients and the optimizer's state.
        assert told.tensors - start == pytest.approx(more, rel=0.05)


@pytest.mark.parametrize("job", FORWARD, ids=str)
def test_a_forward_pass_needs_what_is_predicted(found: Any, job: Any) -> None:
    from flagbench.plan import memory, model

    layout, precision = job
    config = aquila_bench.configured()
    step = model.Step(config["data"]["sequence_length"], 1, 1, precision, fused_attention=False)
    told = memory.forward_memory(
        model.Model.of(config["model"]), step, model.ParallelLayout(layout.tp, 1, 1), model.CPU
    )
    for start, more in found(job):
        assert told.tensors == pytest.approx(start + more, rel=0.05)
        assert told.tensors - start == pytest.approx(more, rel=0.1)
