"""The shipped tiny set of Llama2-7B LoRA: made as it says, tokenised as transformers does, not known beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench_cases.cases.llama2_7b_lora import data, mmlu, samsum
from flagbench_cases.cases.llama2_7b_lora.mmlu import MmluVocabulary
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS

pytestmark = pytest.mark.image

FOLDER = Path(data.TINY)


def test_ids_are_those_of_transformers() -> None:
    from transformers import LlamaTokenizer

    tokenizer = LlamaTokenizer.from_pretrained(str(FOLDER), add_bos_token=True)
    vocabulary = MmluVocabulary(str(FOLDER / "tokenizer.model"), 512)
    texts = [samsum.format_example(*pair) for pair in samsum.read_pairs(str(FOLDER / "samsum_dataset" / "val.json"))]
    texts += [mmlu.format_heading("farm_places"), "caf\u00e9  42 \U0001f600\r\n\ttab", "A"]
    for words in texts:
        assert tokenizer(words).input_ids == [BOS, *vocabulary.encode(words)]
        assert tokenizer(words + "</s>").input_ids == [BOS, *vocabulary.encode(words), EOS]
    letters = [tokenizer([letter]).input_ids[0][1] for letter in "ABCD"]  # as the publisher takes them
    assert letters == vocabulary.answer_tokens
