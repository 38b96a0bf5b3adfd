"""The workload: what is counted at each layout, the loss scale, and what is refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.engines.megatron import attention
from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.rank.train_loop import TrainPlan
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step
from flagbench_core.flops import batch_of, llama
from halves import needs_half
from unit.cases.llama2_70b.llama70_bench import configured, new, trained, workload
from unit.cases.refusal import refuses
from workloads import on_ranks

pytestmark = pytest.mark.image

LAYOUTS = {
    "whole": Layout(),
    "tp2": Layout(1, 2, 1),
    "pp2": Layout(1, 1, 2),
    "dp2": Layout(2, 1, 1),
    "tp2 pp2": Layout(1, 2, 2),
}
STEPS = 3


@pytest.fixture(scope="module")
def runs(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """`runs(NAME)`: what each rank of a layout did in three steps. Those of as many ranks share their processes."""
    folder = tmp_path_factory.mktemp("runs")

    def all_of(folder: Path, rank: int, world: int) -> dict[str, Any]:
        found = {}
        for name in [name for name, layout in LAYOUTS.items() if layout.world == world]:
            place = folder / name
            place.mkdir(exist_ok=True)
            found[name] = trained(place, rank, LAYOUTS[name])
        return found

    @functools.lru_cache(maxsize=None)
    def on(world: int) -> list[dict[str, Any]]:
        return on_ranks(world, folder / str(world), all_of)

    return lambda name: [found[name] for found in on(LAYOUTS[name].world)]


def steps_of(rank: dict[str, Any]) -> list[Step]:
    return [Step(*values) for values in rank["steps"]]


def total(field: str, steps: list[Step]) -> float:
    return sum(getattr(step, field) for step in steps)


# What is counted


@pytest.mark.parametrize("name", LAYOUTS)
def test_work_is_counted_once_per_replica(runs: Any, name: str) -> None:
    layout = LAYOUTS[name]
    steps: list[Step] = []
    for rank, values in enumerate(runs(name)):
        steps_of_rank = steps_of(values)
        assert len(steps_of_rank) == STEPS
        assert any(step.samples for step in steps_of_rank) == layout.counts(rank)
        steps += steps_of_rank
    samples = STEPS * 8 * layout.dp
    executed = llama({**configured()["model"], "vocab_size": 448}, batch_of(samples, 64)).executed
    assert total("samples", steps) == total("published_samples", steps) == samples
    assert total("tokens", steps) == total("tokens_useful", steps) == samples * 64
    assert total("flops_useful", steps) == pytest.approx(executed)
    assert total("flops_executed", steps) == pytest.approx(executed)
    assert total("flops_recomputed", steps) == 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_last_stage_has_the_loss(runs: Any, name: str) -> None:
    """Without data-parallel replicas it is that of the whole batch."""
    layout, ranks = LAYOUTS[name], runs(name)
    found = [[step.loss for step in steps_of(rank)] for rank in ranks]
    for rank, losses in enumerate(found):
        last = layout.coordinates(rank).pp == layout.pp - 1
        assert all((loss == loss) == last for loss in losses)
    chosen = [losses for rank, losses in enumerate(found) if layout.has_loss(rank)]
    if layout.dp == 1:
        wanted = [step.loss for step in steps_of(runs("whole")[0])]
        assert chosen[0] == pytest.approx(wanted, abs=1e-5)
        assert 5.9 < wanted[0] < 6.6  # log(448) = 6.1
    else:
        assert chosen[0] != pytest.approx(chosen[1], abs=1e-3)


def test_the_bubble_of_the_published_rows(tmp_path: Path) -> None:
    work = new(tmp_path, 0, Layout(), train={"micro_batch_size": 1, "batch_size": 44})
    work.context = work.context._replace(layout=Layout(1, 8, 4))
    assert work.predicted_bubble == pytest.approx(3 / 47)


@pytest.mark.parametrize("name", LAYOUTS)
def test_passes_are_measured_within_steps(runs: Any, name: str) -> None:
    for rank in runs(name):
        for step in steps_of(rank):
            if LAYOUTS[name].pp > 1:
                assert 0 < step.computing <= step.pipeline <= step.device
            else:
                assert math.isnan(step.computing)


def test_attention_in_one_kernel_is_not_recomputed_on_its_own(megatron: None, tmp_path: Path) -> None:
    """As published."""

    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, Layout(), train={"recompute": "selective"})
        again = work.work(next(iter(work.batches(0)))).flops_recomputed
        return work.attention != attention.UNFUSED, work.describe()["conditions"]["recompute"], again > 0

    (found,) = on_ranks(1, tmp_path, body)
    assert found in ((True, "none", False), (False, "selective", True))


# The loss scale


@needs_half
def test_the_measured_steps_in_fp16_update_the_parameters(megatron: None, tmp_path: Path) -> None:
    """From the first loss scale of the manifest; from Megatron's own, the record knows which steps were skipped."""
    train = load_case("llama2-70b")["presets"]["reference"]["train"]
    plan = TrainPlan(1, train["warmup_steps"], train["window_steps"], target_acc=None, initial_evaluation=False)

    def body(folder: Path, rank: int, world: int) -> Any:
        found = []
        for scale, length in ((train["loss_scale"], plan), (2.0**32, plan._replace(window_steps=4))):
            place = folder / str(scale)
            place.mkdir()
            of_one_layer = {"model": {"layers": 1}, "train": {"loss_scale": scale}}
            found.append(trained(place, rank, Layout(), length, precision="fp16", **of_one_layer))
        return found

    ((ours, megatrons),) = on_ranks(1, tmp_path, body)
    steps = plan.capacity(1)
    assert (ours["skipped"], ours["facts"]["updates"]) == ([], steps)
    assert [step.loss for step in steps_of(ours)][-1] < steps_of(ours)[0].loss - 0.3
    assert megatrons["skipped"] == list(range(megatrons["facts"]["skipped_steps"]))
    assert len(megatrons["skipped"]) > plan.warmup_steps
    assert megatrons["facts"]["loss_scale"] < 2.0**32


# What is refused


def test_a_minimum_of_the_rate_above_its_maximum(tmp_path: Path) -> None:
    with refuses(UsageError, "min_learning_rate 0.01", "learning_rate 0.004"):
        new(tmp_path, 0, Layout(), train={"min_learning_rate": 0.01})


def test_weights_are_refused(tmp_path: Path) -> None:
    with refuses(DataError, "random weights"):
        new(tmp_path, 0, Layout(), weights="/weights").setup()


# What the record is told


@pytest.mark.parametrize("name", LAYOUTS)
def test_facts_of_the_updates(runs: Any, name: str) -> None:
    layout = LAYOUTS[name]
    done = STEPS * 8 * layout.dp  # of 96 samples, in which the rate rises
    for rank in runs(name):
        facts = rank["facts"]
        assert (facts["updates"], facts["skipped_steps"]) == (STEPS, 0)
        assert facts["learning_rate"] == pytest.approx(4e-3 * done / 96)
        bubble = (layout.pp - 1) / (4 + layout.pp - 1)
        assert facts.get("predicted_bubble", 0.0) == pytest.approx(bubble)
        assert ("predicted_bubble" in facts) is (layout.pp > 1)


def test_the_published_size() -> None:
    model = load_case("llama2-70b")["presets"]["reference"]["model"]
    assert shape_of(model).parameters == 68_976_648_192
    assert shape_of(model).padded_vocabulary(8) == 32768
