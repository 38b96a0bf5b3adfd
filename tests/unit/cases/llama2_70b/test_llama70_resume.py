"""Resuming a model that is split over ranks: the same losses, bit by bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.rank import checkpoint, checkpoint_writer
from flagbench_cases.rank.train_loop import TrainLoop
from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import SpoolReader
from halves import HALF, needs_half
from running import need_megatron
from unit.cases.llama2_70b.llama70_bench import WINDOW, workload
from unit.cases.rank.toy_loop import job_of
from unit.cases.refusal import refuses
from workloads import on_ranks

pytestmark = pytest.mark.image

CPU = torch.device("cpu")
STEPS, SAVED = 4, 2
"""Steps of the whole run, and the step of its checkpoint, from which another one resumes."""
PLAIN = {"distributed_optimizer": False}
RUNS: dict[str, tuple[Layout, dict[str, Any], list[int]]] = {
    "tp2 pp2": (Layout(1, 2, 2), {}, [0, 1, 2, 3]),
    "dp2 tp2, plain, bf16": (Layout(2, 2, 1), {"train": PLAIN, "precision": "bf16"}, [0, 1]),
    "dp2": (Layout(2, 1, 1), {}, [0, 1]),
    "dp2, fp16": (Layout(2, 1, 1), {"precision": "fp16"}, [0, 1]),
    "dp2, fp16, no update": (Layout(2, 1, 1), {"precision": "fp16"}, [0, 1]),
}
"""A layout, changes of the tiny preset, and the ranks that write their tensors."""
if not HALF:
    RUNS = {name: run for name, run in RUNS.items() if "fp16" not in name}
SCALES = {"dp2, fp16": 2.0**12, "dp2, fp16, no update": 2.0**26}
"""Loss scales of the first step: with the larger one, gradients overflow, so that steps are skipped."""


def train(folder: Path, rank: int, name: str, resume: str | None = None) -> dict[str, Any]:
    """Train as RankRun does; checkpoints go to folder/out. What this rank has at the end."""
    layout, changes, _ = RUNS[name]
    place = folder / ("resumed" if resume else "whole")
    place.mkdir(parents=True, exist_ok=True)
    settings = {"batch_size": 4, "checkpoint_every_steps": SAVED, **changes.get("train", {})}
    work = workload(place, rank, layout, **{**changes, "train": settings, "model": {"layers": 2}})
    if name in SCALES:
        work.trainer.only_optimizer.grad_scaler._scale.fill_(SCALES[name])
    config = dict(work.config, nodes=1, gpus=layout.world)
    plan = {"config": config, "resume": resume, "checkpoints": str(folder / "out"), "run_id": "r"}
    saved, save = checkpoint.prepare(plan, job_of(rank, layout.world), CPU, work)
    restore = None
    if saved is not None:
        restore = functools.partial(checkpoint.restore_generators, CPU, saved.generators, rank)
    first = saved.step if saved else 0
    loop_plan = WINDOW._replace(window_steps=STEPS - first, first_step=first, checkpoint_every=SAVED)
    spool = work.context.spool
    spool.reserve(loop_plan.capacity(work.steps_per_epoch()))
    counts = layout.counts(rank)
    TrainLoop(work, loop_plan, spool, work.context.device, work.context.probe, save, restore, counts).run()
    return {
        "losses": [step.loss for step in SpoolReader(str(place), rank).steps()],
        "parameters": {key: tensor.detach().clone() for key, tensor in work.module.named_parameters()},
        "generators": checkpoint_writer.generator_states(CPU),
        "state": work.state(),
        "facts": work.training_facts(),
        "refused": refused(work) if name in ("dp2", "dp2, fp16") and resume else [],
        "group counts": counted_by_group(work) if name == "dp2" and resume else [],
    }


def refused(work: Any) -> list[str]:
    """The messages with which the state of another rank, case or moment is refused."""
    tensors, facts = work.state()
    work.check_state(tensors, facts)
    first = next(iter(tensors))
    moment = first + ".exp_avg"
    found: list[str] = []
    for others, of_others in (
        ({**tensors, first + "x": tensors[first]}, facts),
        ({key: tensor for key, tensor in tensors.items() if key != moment}, facts),
        ({**tensors, moment: tensors[moment][:-1]}, facts),
        ({**tensors, first: tensors[first].half()}, facts),
        (tensors, {**facts, "updates": 0}),
        (tensors, {**facts, "samples": None}),
        (tensors, {**facts, "scaler": None if facts["scaler"] else {"scale": 1.0}}),
    ):
        with refuses(DataError) as caught:
            work.check_state(others, of_others)
        found.append(caught.value.message)
    return found


def counted_by_group(work: Any) -> list[int]:
    """The updates of each group of parameters, restored to an optimizer that counts them so, as Apex's does."""
    from flagbench_cases.engines.megatron import training_state

    tensors, facts = work.state()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    optimizer = work.trainer.only_optimizer
    optimizer.optimizer.__class__ = type("FusedAdam", (torch.optim.Optimizer,), {})
    optimizer.optimizer.state.clear()
    training_state.restore(kept, work.module, optimizer, facts["updates"])
    assert all("step" not in state for state in optimizer.optimizer.state.values())
    return [group["step"] for group in optimizer.optimizer.param_groups]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[dict[str, Any]]]]:
    """`run(NAME)`: the folder of a run and what each rank found; runs on as many ranks share their processes."""
    need_megatron()
    folder = tmp_path_factory.mktemp("resumed")

    def both(folder: Path, rank: int, name: str) -> dict[str, Any]:
        whole = train(folder, rank, name)
        torch.manual_seed(rank)  # as in a new process
        return {"whole": whole, "resumed": train(folder, rank, name, str(folder / "out" / ("step-%08d" % SAVED)))}

    def all_of(folder: Path, rank: int, world: int) -> dict[str, Any]:
        return {name: both(folder / name, rank, name) for name, (layout, *_) in RUNS.items() if layout.world == world}

    @functools.lru_cache(maxsize=None)
    def on(world: int) -> list[dict[str, Any]]:
        return on_ranks(world, folder / str(world), all_of)

    def one(name: str) -> tuple[Path, list[dict[str, Any]]]:
        world = RUNS[name][0].world
        return folder / str(world) / name, [found[name] for found in on(world)]

    return one


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_has_the_losses_of_the_whole(run: Any, name: str) -> None:
    """And at the end the same weights, moments, generators and counts, all bit by bit."""
    layout = RUNS[name][0]
    for rank, found in enumerate(run(name)[1]):
        whole, resumed = found["whole"], found["resumed"]
        if layout.coordinates(rank).pp == layout.pp - 1:
            assert len(whole["losses"]) == STEPS
            assert resumed["losses"] == whole["losses"][SAVED:]
            assert len(set(whole["losses"])) > SAVED
        assert resumed["facts"] == whole["facts"]
        (tensors, facts), (others, of_others) = whole["state"], resumed["state"]
        assert facts == of_others
        pairs = [(whole[kind], resumed[kind]) for kind in ("parameters", "generators")]
        for one, other in ((tensors, others), *pairs):
            assert one.keys() == other.keys()
            assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())


@pytest.mark.parametrize("name", RUNS)
def test_no_byte_of_the_model_is_written_twice(run: Any, name: str) -> None:
    """Of every parameter its fp32 value and two moments, by one replica or shared by all of them."""
    layout, _, owners = RUNS[name]
    folder, ranks = run(name)
    one = folder / "out" / ("step-%08d" % SAVED)
    files = [file for file in checkpoint_facts.read(str(one))["files"] if file.startswith("tensors-")]
    assert sorted(files) == [checkpoint_facts.tensors_of(rank) for rank in owners]
    replica = [rank for rank in range(layout.world) if layout.coordinates(rank).dp == 0]
    numbers = sum(tensor.numel() for rank in replica for tensor in ranks[rank]["whole"]["parameters"].values())
    size = sum((one / file).stat().st_size for file in files)
    each = 4 if "no update" in name else 12
    assert each * numbers < size < each * numbers + len(files) * 64 * 1024  # names, and generators


@needs_half
def test_the_loss_scale_goes_on(run: Any) -> None:
    """It falls with every overflow, except the first one, whether or not the run is resumed."""
    for name, skipped, scale in (("dp2, fp16", 0, 2.0**12), ("dp2, fp16, no update", STEPS, 2.0**23)):
        for found in run(name)[1]:
            state = found["resumed"]["state"][1]
            assert (state["skipped"], state["updates"]) == (skipped, STEPS - skipped)
            assert state["scaler"]["scale"] == scale


def test_what_is_not_the_state_of_this_rank_is_refused(run: Any) -> None:
    for name in {"dp2", "dp2, fp16"} & RUNS.keys():
        for found in run(name)[1]:
            assert len(found["resumed"]["refused"]) == 7


def test_updates_counted_by_group_go_on(run: Any) -> None:
    for found in run("dp2")[1]:
        assert set(found["resumed"]["group counts"]) == {STEPS}
