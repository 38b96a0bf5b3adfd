"""The tiny set: text in the formats of samsum and MMLU, tokenised at the start by the code of `prepare`."""

import os
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
WEIGHTS = os.path.join(FOLDER, "weights")


def tokenised(length: int, shots: int, vocabulary_size: int) -> Any:
    """Tokenise the set for the length and number of shots of a preset. Takes a few tenths of a second."""
    from flagbench_cases.cases.llama2_7b_lora import blocks, mmlu, samsum
    from flagbench_cases.cases.llama2_7b_lora.tokens import Vocabulary

    vocabulary = Vocabulary(os.path.join(FOLDER, "tokenizer.model"), vocabulary_size)
    return blocks.tokenise(samsum.find(FOLDER), mmlu.find(FOLDER), vocabulary, length, shots, lambda *_: None)
