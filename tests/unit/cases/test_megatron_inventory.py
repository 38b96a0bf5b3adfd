"""What a step of the split models computes and does, against its re-enactment: equal losses, operators by count."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("megatron.core", reason="the models are Megatron-Core's")
if not hasattr(torch.amp, "custom_fwd"):
    pytest.skip("the re-enactments need torch 2.4", allow_module_level=True)

from flagbench_cases.contract import INFER
from flagbench_cases.shared.config import load_case, load_stack, merge, resolve
from reenact import inventory, verdict
from workloads import on_ranks, set_up

pytestmark = pytest.mark.image

STEPS = 5
# The rate rises, falls and stays at its end within five steps. Losses are of micro-batches of two sequences, so that
# every axis counts; the operators that the quirks list are those of one of one sequence.
TRAIN = {"warmup_share": 0.25, "clip": 0.5}
LOSSES = {**TRAIN, "micro_batch_size": 2, "batch_size": 6, "schedule_samples": 24}
OPERATORS = {**TRAIN, "micro_batch_size": 1, "batch_size": 1, "schedule_samples": 4}
# Done by Aquila's loop or loader, which are not run here; ours, less the publisher's.
OUTSIDE = {"aten.clone.default", "aten.detach.default", "aten.stack.default", "aten.lift_fresh.default"}
TOLERANCE = {"fp32": 2e-6, "bf16": 5e-4}
"""After an update: gradients are summed in another order."""


def both(case: str, folder: Path, precision: str, train: dict[str, Any]) -> tuple[Any, Callable[[], float], Any]:
    """The workload of a case at the tiny size on random data, a step of it, and the publisher's loop from the same
    weights."""
    from megatron.core import parallel_state

    options = {"nodes": 1, "gpus": 1, "preset": "tiny", "division": "faithful", "source": "synthetic", "steps": 9}
    unset = dict.fromkeys(("seed", "max_samples"))
    whole, stack, name = load_case(case), load_stack("cpu"), case.replace("-", "_")
    config = resolve(whole, stack, precision=precision, weights=False, full=False, settings=[], **options, **unset)
    infers = "train" not in config
    parallel_state.destroy_model_parallel()  # of the workload before
    folder.mkdir(parents=True, exist_ok=True)
    build = importlib.import_module(f"flagbench_cases.cases.{name}.workload").build
    work = set_up(build, config if infers else merge(config, {"train": train}), folder)
    if infers:
        with torch.no_grad():
            for key, parameter in work.module.named_parameters():
                if "linear_qkv" in key:
                    parameter.mul_(20)  # so that attention matters
    batches: Iterator[Any] = itertools.chain.from_iterable(
        work.batches(INFER if infers else epoch) for epoch in itertools.count()
    )

    def step() -> float:
        batch = work.to_device(next(batches))
        loss = work.infer(batch) if infers else work.step(batch)
        work.after_step()
        if infers:
            work.work(batch)
        return loss

    theirs = importlib.import_module(f"reenact.{name}").steps(
        work.config, torch.device("cpu"), copy.deepcopy(work.module.state_dict())
    )
    assert next(theirs) is None
    return work, step, theirs


def losses(case: str, precision: str, folder: Path, rank: int, world: int) -> list[tuple[float, float]]:
    """The losses of the case and of the publisher's loop."""
    _, step, theirs = both(case, folder / "run", precision, LOSSES)
    return [(float(step()), float(next(theirs))) for _ in range(STEPS)]


def operators(case: str, folder: Path, rank: int, world: int) -> tuple[Any, Any, int]:
    """What a step of both does, and the number of layers."""
    work, step, theirs = both(case, folder / "run", "bf16", OPERATORS)
    return inventory.of_step(step), inventory.of_step(lambda: next(theirs)), work.shape.layers


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("case", ["aquila-33b", "llama2-70b"])
def test_the_same_losses_from_the_same_weights(tmp_path: Path, case: str, precision: str) -> None:
    """To the last bit, before the first update."""
    (found,) = on_ranks(1, tmp_path, functools.partial(losses, case, precision))
    ours, theirs = zip(*found)
    assert ours[0] == theirs[0]
    assert ours == (theirs if case == "aquila-33b" else pytest.approx(theirs, abs=TOLERANCE[precision]))
    assert max(ours) - min(ours) > 0.01


@pytest.mark.parametrize("case", ["aquila-33b", "llama2-70b"])
def test_operators_differ_by_the_listed_quirks(tmp_path: Path, case: str) -> None:
    """Those of one micro-batch, the bytes kept for its backward pass included."""
    ((ours, publisher, layers),) = on_ranks(1, tmp_path, functools.partial(operators, case))
    differences = verdict.differences({"ours": ours, "publisher": publisher})
    counts = {name: entry["count"] for name, entry in differences.items()}
    listed: dict[str, int] = {}
    for quirk in verdict.listed(load_case(case), layers).values():
        for name, count in quirk.items():
            listed[name] = listed.get(name, 0) + count
    skipped: set[str] = set()
    if case == "aquila-33b":
        listed["aten._local_scalar_dense.default"] -= 1  # the loop reads the loss
        skipped = OUTSIDE | {name for name in counts if not name.startswith("aten")}
    assert {name: count for name, count in counts.items() if count and name not in skipped} == {
        name: count for name, count in listed.items() if count and name not in skipped
    }
    assert ours["saved_bytes"] == publisher["saved_bytes"]
