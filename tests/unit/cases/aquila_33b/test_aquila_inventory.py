"""What a step of aquila-33b computes and does, against its re-enactment: equal losses, and operators by count."""

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

from flagbench_cases.cases.aquila_33b import workload
from flagbench_cases.shared.config import load_case, load_stack, resolve
from reenact import aquila_33b as reenacted
from reenact import inventory, verdict
from workloads import on_ranks, set_up

pytestmark = pytest.mark.image

CASE = load_case("aquila-33b")
CPU = torch.device("cpu")
# Done by the loop or the loader, which are not run here; ours, less the publisher's.
OUTSIDE = {"aten.clone.default", "aten.detach.default", "aten.stack.default", "aten.lift_fresh.default"}


def both(folder: Path, precision: str) -> tuple[Any, Any]:
    """The workload at the tiny size with random weights, and the publisher's loop from the same weights."""
    options = {"nodes": 1, "gpus": 1, "preset": "tiny", "division": "faithful", "source": "synthetic", "steps": 9}
    unset = dict.fromkeys(("seed", "max_samples"))
    config = resolve(
        CASE, load_stack("cpu"), precision=precision, weights=False, full=False, settings=[], **options, **unset
    )
    work = set_up(workload.build, config, folder)
    with torch.no_grad():
        for name, parameter in work.module.named_parameters():
            if "linear_qkv" in name:
                parameter.mul_(20)  # so that attention matters
    theirs = reenacted.steps(config, CPU, copy.deepcopy(work.module.state_dict()))
    assert next(theirs) is None
    return work, theirs


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_same_losses_from_the_same_weights(tmp_path: Path, precision: str) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work, theirs = both(folder, precision)
        ours = [float(work.infer(batch)) for batch in itertools.islice(work.batches("infer"), 4)]
        return ours, [float(loss) for loss in itertools.islice(theirs, 4)]

    [(ours, theirs)] = on_ranks(1, tmp_path / "rank", body)
    assert ours == theirs
    assert len(set(ours)) == 4


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_operators_differ_by_the_listed_quirks(tmp_path: Path, precision: str) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work, theirs = both(folder, precision)
        batches = itertools.cycle(work.batches("infer"))

        def step() -> None:
            work.infer(work.to_device(next(batches)))
            work.after_step()
            work.work(next(batches))

        return inventory.of_step(step), inventory.of_step(lambda: next(theirs)), work.shape.layers

    [(ours, publisher, layers)] = on_ranks(1, tmp_path / "rank", body)
    found = verdict.differences({"ours": ours, "publisher": publisher})
    counts = {name: entry["count"] for name, entry in found.items() if name.startswith("aten") and entry["count"]}
    listed: dict[str, int] = {}
    for operators in verdict.listed(CASE, layers).values():
        for name, count in operators.items():
            listed[name] = listed.get(name, 0) + count
    listed["aten._local_scalar_dense.default"] -= 1  # the loop reads the loss
    assert {name: count for name, count in counts.items() if name not in OUTSIDE} == {
        name: count for name, count in listed.items() if name not in OUTSIDE
    }
    assert ours["saved_bytes"] == publisher["saved_bytes"] == 0
