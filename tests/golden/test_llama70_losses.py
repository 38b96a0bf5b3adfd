"""Losses of Llama2-70B's faithful division, held to four decimals over versions of Python, torch and Megatron-Core.

The first ten steps of the tiny preset in fp32 on its shipped set: on one rank, and split over two gloo ranks as
parts of layers and as stages, which must not differ. A change of these numbers is a change of the mathematics, of the
order of the data or of the shipped files. If it is intended, update them and say why in the commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_llama70_losses.py --update
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from flagbench_cases.rank.train_loop import Plan
from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import Step
from running import need_megatron
from unit.cases.llama2_70b.llama70_bench import trained
from workloads import on_ranks

pytestmark = pytest.mark.image

GOLDEN = Path(__file__).parent / "llama2_70b_losses.json"
TEN = Plan(1, warmup_steps=5, window_steps=5, target_acc=None, initial_evaluation=False)
LAYOUTS = {1: [Layout()], 2: [Layout(1, 2, 1), Layout(1, 1, 2)]}


def losses(folder: Path, rank: int, world: int) -> list[list[float]]:
    """The loss of each step, for each layout of so many ranks; NaN where the rank has none."""
    found = []
    for layout in LAYOUTS[world]:
        place = folder / str(layout).replace(" ", "-")
        place.mkdir(exist_ok=True)
        found.append([Step(*step).loss for step in trained(place, rank, layout, TEN)["steps"]])
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_losses_are_those_on_record(tmp_path: Path, world: int) -> None:
    need_megatron()
    golden = json.loads(GOLDEN.read_text())["losses"]
    assert len(golden) == 10
    for measured in on_ranks(world, tmp_path, losses)[-1]:  # the last rank is of the last stage
        assert measured == pytest.approx(golden, abs=5e-5)
    assert golden[0] - golden[-1] > 0.3  # it learns; random weights give about log(448) = 6.1


def update() -> None:
    """Write the losses of this environment."""
    with tempfile.TemporaryDirectory() as folder:
        ((found,),) = on_ranks(1, Path(folder) / "ranks", losses)
    GOLDEN.write_text(json.dumps({"losses": [round(loss, 6) for loss in found]}, indent=1) + "\n")


if __name__ == "__main__" and "--update" in sys.argv:
    update()
