"""What a step of llama2-70b computes and does, against its re-enactment: equal losses, and operators by count."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("megatron.core", reason="the model is Megatron-Core's")
if not hasattr(torch.amp, "custom_fwd"):
    pytest.skip("the re-enactment needs torch 2.4", allow_module_level=True)

from flagbench_cases.cases.llama2_70b import workload
from flagbench_cases.shared.config import load_case, load_stack, merge, resolve
from reenact import inventory, llama2_70b, verdict
from running import need_megatron
from workloads import on_ranks, set_up

pytestmark = pytest.mark.image

CASE = load_case("llama2-70b")
PRECISIONS = ("fp32", "bf16")
STEPS = 5
# Of two sequences, so that every axis counts; the operators that the quirks list are those of one of one sequence.
BATCHES = {"losses": {"micro_batch_size": 2, "batch_size": 6}, "operators": {"micro_batch_size": 1, "batch_size": 1}}


def both(folder: Path, precision: str, batches: str) -> tuple[Any, Any]:
    """The workload at the tiny size with synthetic data, and the publisher's loop from the same weights."""
    from megatron.core import parallel_state

    options = {"nodes": 1, "gpus": 1, "preset": "tiny", "division": "faithful", "source": "synthetic", "steps": 9}
    unset = dict.fromkeys(("seed", "max_samples"))
    config = resolve(
        CASE, load_stack("cpu"), precision=precision, weights=False, full=False, settings=[], **options, **unset
    )
    # The rate rises, falls and stays at its end within five steps.
    schedule = {"warmup_share": 0.25, "schedule_samples": 4 * BATCHES[batches]["batch_size"], "clip": 0.5}
    config = merge(config, {"train": {**BATCHES[batches], **schedule}})
    parallel_state.destroy_model_parallel()  # of the workload before
    folder.mkdir()
    work = set_up(workload.build, config, folder)
    theirs = llama2_70b.steps(config, torch.device("cpu"), copy.deepcopy(work.module.state_dict()))
    assert next(theirs) is None
    return work, theirs


def on_a_rank(folder: Path, rank: int, world: int) -> dict[str, Any]:
    """The losses of both in each precision, and what a step of both does."""
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        work, theirs = both(folder / precision, precision, "losses")
        batches = itertools.chain.from_iterable(work.batches(epoch) for epoch in itertools.count())
        ours = [work.step(batch) for batch in itertools.islice(batches, STEPS)]
        found[precision] = ours, list(itertools.islice(theirs, STEPS))
    work, theirs = both(folder / "operators", "bf16", "operators")
    batches = itertools.chain.from_iterable(work.batches(epoch) for epoch in itertools.count())

    def step() -> None:
        work.step(work.to_device(next(batches)))
        work.after_step()

    inventories = {"ours": inventory.of_step(step), "publisher": inventory.of_step(lambda: next(theirs))}
    return dict(found, inventories=inventories, layers=work.shape.layers)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need_megatron()
    (one,) = on_ranks(1, tmp_path_factory.mktemp("one") / "rank", on_a_rank)
    return one


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_losses_from_the_same_weights(found: Any, precision: str) -> None:
    """To the last bit before the first update; then only what gradients are summed in another order for."""
    ours, theirs = found[precision]
    assert ours[0] == theirs[0]
    assert ours == pytest.approx(theirs, abs={"fp32": 2e-6, "bf16": 5e-4}[precision])
    assert max(ours) - min(ours) > 0.01


def test_operators_differ_by_the_listed_quirks(found: Any) -> None:
    """Those of one micro-batch, the bytes kept for its backward pass included."""
    counts = {name: entry["count"] for name, entry in verdict.differences(found["inventories"]).items()}
    listed: dict[str, int] = {}
    for operators in verdict.listed(CASE, found["layers"]).values():
        for name, count in operators.items():
            listed[name] = listed.get(name, 0) + count
    assert {name: count for name, count in counts.items() if count} == {
        name: count for name, count in listed.items() if count
    }
    ours, publisher = found["inventories"]["ours"], found["inventories"]["publisher"]
    assert ours["saved_bytes"] == publisher["saved_bytes"] > 0
