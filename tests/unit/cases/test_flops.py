"""The FLOPs of a real step of each case are those that torch counts: forward, backward and what is recomputed."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.contract import INFER, Work
from flagbench_cases.shared.config import load_case, load_stack, merge, resolve
from running import need_imports
from workloads import on_ranks, set_up

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(find_spec("torch.utils.flop_counter") is None, reason="torch counts FLOPs from 2.1 on"),
]

STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "aquila-33b": ("aquila-33b", {}),
    "distilbert": ("distilbert", {}),
    **{f"glm, recompute {on}": ("glm", {"model": {"recompute": on}}) for on in (False, True)},
    **{f"lora, recompute {on}": ("llama2-7b-lora", {"train": {"recompute": on}}) for on in (False, True)},
    # On a processor torch does not count attention in one kernel.
    **{
        f"llama2-70b, recompute {how}": ("llama2-70b", {"train": {"recompute": how, "flash_attention": False}})
        for how in ("none", "selective", "full")
    },
}
"""A case, and changes of its tiny preset."""


def counted(case: str, changes: dict[str, Any], folder: Path, rank: int, world: int) -> tuple[Any, int]:
    """The work of a step, and the FLOPs that torch counts in it."""
    from torch.utils.flop_counter import FlopCounterMode

    options = {"nodes": 1, "gpus": 1, "preset": "tiny", "division": "faithful", "source": "synthetic", "steps": 9}
    unset = dict.fromkeys(("precision", "seed", "max_samples"))
    config = resolve(load_case(case), load_stack("cpu"), weights=False, full=False, settings=[], **options, **unset)
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % case.replace("-", "_"))
    work = set_up(module.build, merge(config, changes), folder)
    infers = hasattr(work, "infer")
    batch = next(iter(work.batches(INFER if infers else 0)))
    with FlopCounterMode(display=False) as counter:
        (work.infer if infers else work.step)(work.to_device(batch))
    return tuple(work.work(batch)), counter.get_total_flops()


@pytest.mark.parametrize("name", STEPS)
def test_flops_are_those_that_torch_counts(tmp_path: Path, name: str) -> None:
    case, changes = STEPS[name]
    need_imports(case)
    ((work, total),) = on_ranks(1, tmp_path, functools.partial(counted, case, changes))
    done = Work(*work)
    assert done.flops_executed + done.flops_recomputed == pytest.approx(total, rel=1e-3)
    assert (done.flops_recomputed > 0) == name.endswith(("True", "selective", "full"))
