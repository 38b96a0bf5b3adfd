"""The shipped tiny set of Llama2-7B LoRA: made as it says, tokenised as transformers does, not known beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flagbench_cases.cases.llama2_7b_lora import data, mmlu, samsum, tiny
from flagbench_cases.cases.llama2_7b_lora.tokens import BOS, EOS, Vocabulary

pytestmark = pytest.mark.image

FOLDER = Path(tiny.FOLDER)
SECTION = {"source": "shipped", "sequence_length": 128, "shots": 5}


@pytest.fixture(scope="module")
def sets() -> data.Sets:
    return data.load(SECTION, {"vocab_size": 512}, None, 0)


def test_ids_are_those_of_transformers() -> None:
    from transformers import LlamaTokenizer

    tokenizer = LlamaTokenizer.from_pretrained(str(FOLDER), add_bos_token=True)
    vocabulary = Vocabulary(str(FOLDER / "tokenizer.model"), 512)
    texts = [samsum.prompt(*pair) for pair in samsum.read(str(FOLDER / "samsum_dataset" / "val.json"))]
    texts += [mmlu.heading("farm_places"), "caf\u00e9  42 \U0001f600\r\n\ttab", "A"]
    for words in texts:
        assert tokenizer(words).input_ids == [BOS, *vocabulary.encode(words)]
        assert tokenizer(words + "</s>").input_ids == [BOS, *vocabulary.encode(words), EOS]
    letters = [tokenizer([letter]).input_ids[0][1] for letter in "ABCD"]  # as the publisher takes them
    assert letters == vocabulary.answer_tokens


def test_the_base_model_is_at_chance(sets: data.Sets) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**json.loads((FOLDER / "weights" / "config.json").read_text(encoding="utf-8")))
    model = LlamaForCausalLM(config).float().eval()
    model.load_state_dict(load_file(str(FOLDER / "weights" / "weights-00001.safetensors")))
    questions = sets.mmlu
    letters = questions.answer_tokens.tolist()
    right = 0
    with torch.no_grad():
        for item in (questions[index] for index in range(len(questions))):
            answer = int(model(item.tokens[None]).logits[0, -1].argmax())
            assert answer in letters  # it knows the form
            right += letters.index(answer) == item.answer
        losses = [float(model(block[None], labels=block[None]).loss) for block in sets.validation]
    assert 0.2 <= right / len(questions) <= 0.3
    assert 0.2 <= sum(losses) / len(losses) <= 0.4  # nats a token; 6.2 for random weights
