"""Losses of Llama2-7B LoRA's faithful division, held to four decimals over versions of Python, torch, transformers
and peft.

A small model without dropout, in fp32, with weights from numpy, on random blocks in the case's own order: 20 steps on
one rank, and on two gloo ranks. All sizes are written in tests/unit/cases/llama2_7b_lora/lora_bench.py. A change of
these numbers is a change of the mathematics or of the order of the data. If it is intended, update them and say
why in the commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_lora_losses.py --update
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the case needs it")
pytest.importorskip("peft", reason="the case needs it")

from unit.cases.llama2_7b_lora.lora_bench import train, workload
from workloads import on_ranks

pytestmark = pytest.mark.image

GOLDEN = Path(__file__).parent / "llama2_7b_lora_losses.json"
STEPS = 20
BATCH = 4  # over all ranks


def losses(folder: Path, rank: int, world: int) -> Any:
    """The losses of one rank's first steps; they pass from one epoch to the next, and its lower learning rate."""
    changes = {"model": {"rope_theta": 5000.0}, "train": {"batch_size": BATCH // world, "learning_rate": 3e-4}}
    return train(workload(folder, rank, world, **changes), STEPS)


@pytest.mark.parametrize("world", [1, 2])
def test_losses_are_those_on_record(tmp_path: Path, world: int) -> None:
    expected = json.loads(GOLDEN.read_text())[f"ranks-{world}"]
    found = on_ranks(world, tmp_path, losses)
    assert len(found) == len(expected) == world
    for measured, golden in zip(found, expected):
        assert len(golden) == STEPS
        assert measured == pytest.approx(golden, abs=5e-5)
        assert sum(measured[-6:]) < sum(measured[:6])  # 24 blocks at 4 a step: each epoch sees the same ones


def update() -> None:
    """Write the losses of this environment."""
    found = {}
    for world in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            found[f"ranks-{world}"] = [[round(x, 6) for x in each] for each in on_ranks(world, Path(folder), losses)]
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__" and "--update" in sys.argv:
    update()
