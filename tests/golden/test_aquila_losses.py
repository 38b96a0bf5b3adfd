"""Losses of Aquila-33B's faithful division, held to four decimals over versions of Python, torch and Megatron-Core.

The tiny preset in fp32 on its shipped set: the loss of each of the 64 sentences in the case's own order, and their
mean, on one rank and split over two gloo ranks, which must not differ. A change of these numbers is a change of the
mathematics, of the order of the data or of the shipped files. If it is intended, update them and say why in the
commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_aquila_losses.py --update
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import Step
from running import need_megatron
from unit.cases.aquila_33b.aquila_bench import scored
from workloads import on_ranks

pytestmark = pytest.mark.image

GOLDEN = Path(__file__).parent / "aquila_33b_losses.json"


def losses(folder: Path, rank: int, world: int) -> dict[str, Any]:
    """The loss of each sentence, and of all."""
    found = scored(folder, rank, Layout(1, world, 1))
    mean = found["evaluation"]["extra"][0]["value"]
    return {"mean": mean, "sentences": [Step(*step).loss for step in found["steps"]]}


@pytest.mark.parametrize("world", [1, 2])
def test_losses_are_those_on_record(tmp_path: Path, world: int) -> None:
    need_megatron()
    golden = json.loads(GOLDEN.read_text())
    assert len(golden["sentences"]) == 64
    found = on_ranks(world, tmp_path, losses)
    assert len(found) == world
    for measured in found:
        assert measured["sentences"] == pytest.approx(golden["sentences"], abs=5e-5)
        assert measured["mean"] == pytest.approx(golden["mean"], abs=5e-5)
    assert golden["mean"] == pytest.approx(sum(golden["sentences"]) / 64, abs=1e-6)
    assert golden["mean"] < 1  # it was trained; random weights give log(448) = 6.1


def update() -> None:
    """Write the losses of this environment."""
    with tempfile.TemporaryDirectory() as folder:
        (found,) = on_ranks(1, Path(folder) / "ranks", losses)
    found["sentences"] = [round(loss, 6) for loss in found["sentences"]]
    GOLDEN.write_text(json.dumps({**found, "mean": round(found["mean"], 6)}, indent=1) + "\n")


if __name__ == "__main__" and "--update" in sys.argv:
    update()
