"""Random prompts with the published shapes, which take as long as real ones."""

from typing import Any, Dict

import numpy as np

from flagbench_cases.cases.llama2_7b_lora.sets import MmluSet
from flagbench_cases.cases.llama2_7b_lora.tokens import BOS, CHOICES, EOS

# Tokens of a prompt's heading, and of a question with its choices: lognormal with this mean and sigma. Token counts
# of MMLU with Llama's tokeniser were not published; these are of the right order. Like real prompts, they are filled
# with solved examples as long as they fit.
HEADING = 16
MEAN_QUESTION, SIGMA_QUESTION, SHORTEST_QUESTION = 90.0, 0.6, 24


def questions(data: Dict[str, Any], model: Dict[str, Any], seed: int) -> MmluSet:
    """`mmlu_items` prompts with the lengths of few-shot prompts shortened to the sequence length."""
    count, limit, most = data["mmlu_items"], data["sequence_length"], data["shots"]
    generator = np.random.RandomState(seed)
    heading = min(HEADING, limit // 8)
    # A question and its solved examples are from the same subject and assumed to have the same length.
    mu = np.log(MEAN_QUESTION) - SIGMA_QUESTION**2 / 2
    drawn = np.rint(generator.lognormal(mu, SIGMA_QUESTION, size=count)).astype(np.int64)
    size = np.clip(drawn, min(SHORTEST_QUESTION, limit // 4), limit - heading)
    shots = np.minimum(most, (limit - heading) // size - 1)
    lengths = heading + (shots + 1) * size
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = generator.randint(EOS + 1, model["vocab_size"], size=int(offsets[-1])).astype(np.int32)
    tokens[offsets[:-1]] = BOS
    answers = generator.randint(0, len(CHOICES), size=count).astype(np.int8)
    letters = EOS + 1 + np.arange(len(CHOICES))
    return MmluSet(tokens, offsets, answers, np.zeros(count, np.int16), shots, ["synthetic"], letters.tolist())
