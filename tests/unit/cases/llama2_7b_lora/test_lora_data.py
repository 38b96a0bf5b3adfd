"""The sets a run of Llama2-7B LoRA trains and is examined on, from each of their sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flagbench_cases.cases.llama2_7b_lora import data
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS
from flagbench_cases.shared.manifests import load_case

pytestmark = pytest.mark.image

PRESETS = load_case("llama2-7b-lora")["presets"]
MODEL = {"vocab_size": 32000}


def section(**changed: Any) -> dict[str, Any]:
    """The reference preset's `data` section, of synthetic data."""
    return {**PRESETS["reference"]["data"], "source": "synthetic", **changed}


def test_the_tiny_set() -> None:
    sets = data.load({**section(source="shipped"), **PRESETS["tiny"]["data"]}, PRESETS["tiny"]["model"], None, 0)
    assert (len(sets.train), len(sets.validation)) == (380, 38)
    assert (sets.condition, sets.mmlu_condition) == ("shipped", "shipped")
    block = sets.train[0]
    assert (block.dtype, block.shape) == (torch.int64, (128,))
    assert block[0] == BOS
    assert EOS in block
    assert len(sets.mmlu) == 96
    item = sets.mmlu[40]
    assert (item.subject, item.shots) == ("farm_places", 2)
    assert item.tokens.dtype == torch.int64
    assert len(item.tokens) == sets.mmlu.lengths[40] <= 128
    assert item.tokens[0] == BOS
    assert torch.equal(item.tokens, sets.mmlu[40].tokens)


def test_synthetic_sets_have_the_sizes_and_shapes_asked_for() -> None:
    sets = data.load(section(), MODEL, None, 42)
    assert (len(sets.train), len(sets.validation)) == (4096, 256)
    assert (sets.condition, sets.mmlu_condition) == ("synthetic", "synthetic")
    block = sets.train[4095]
    assert (block.dtype, block.shape) == (torch.int64, (512,))
    assert int(block.min()) > EOS
    assert int(block.max()) < 32000
    with pytest.raises(IndexError):
        sets.train[4096]


def test_synthetic_prompts_are_filled_with_shots() -> None:
    questions = data.load(section(), MODEL, None, 42).mmlu
    assert len(questions) == 14042
    assert questions.lengths.max() <= 512
    assert questions.lengths.min() >= 32
    assert set(np.unique(questions.shots)) == {0, 1, 2, 3, 4, 5}
    assert 300 <= questions.lengths.mean() <= 450
    assert set(np.unique(questions.answers)) == {0, 1, 2, 3}
    assert questions[7].tokens[0] == BOS
