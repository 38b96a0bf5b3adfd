"""The data sets of the case: token blocks for training, and MMLU prompts for evaluation.

A run uses token ids only: tokenised by `prepare` (format llama-blocks/v1), tokenised at the start from the tiny set
shipped here, or random (synthetic).
"""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from flagbench_cases.cases.llama2_7b_lora import blocks, synthetic
from flagbench_cases.cases.llama2_7b_lora.sets import BlockSet, MmluSet
from flagbench_cases.cases.llama2_7b_lora.tiny import tokenised
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama.random_blocks import RandomBlocks


def batch_of(blocks: Sequence[torch.Tensor]) -> Dict[str, torch.Tensor]:
    """The publisher's batch of blocks: tokens, a mask of ones and labels, each a separate int64 [B, L]."""
    tokens = torch.stack(list(blocks))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


class Sets(NamedTuple):
    """The sets, and the values of a claim's `data` and `mmlu` conditions for them.

    mmlu is None if the run asks no questions; mmlu_condition then is "none".
    """

    train: Union[BlockSet, RandomBlocks]
    validation: Union[BlockSet, RandomBlocks]
    mmlu: Optional[MmluSet]
    condition: str
    mmlu_condition: str
    facts: Dict[str, Any]


def load(data: Dict[str, Any], model: Dict[str, Any], folder: Optional[str], seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section. `folder` was written by `flagbench prepare`.

    Uses source, sequence_length, shots and, for synthetic data, train_blocks, validation_blocks and mmlu_items (0: no
    questions) of `data`, and vocab_size of `model`.
    """
    if data["source"] == "synthetic":
        return _synthetic(data, model, seed)
    if data["source"] == "shipped":
        made = tokenised(data["sequence_length"], data["shots"], model["vocab_size"])
        return _sets("the tiny set", made, data, model, ("shipped", "shipped"))
    place = prepared_folder.open_folder(folder or "", "llama2-7b-lora", "data", (blocks.FORMAT,))
    return _sets(place.folder, blocks.read(place), data, model, None)


def _sets(
    where: str, made: Any, data: Dict[str, Any], model: Dict[str, Any], conditions: Optional[Tuple[str, str]]
) -> Sets:
    blocks.check(where, made, data["sequence_length"], model["vocab_size"])
    arrays, facts = made
    questions = MmluSet(
        *(arrays["mmlu_" + name] for name in ("tokens", "offsets", "answers", "subject_ids", "shots")),
        facts["mmlu"]["subjects"],
        facts["vocabulary"]["answer_tokens"],
    )
    train, validation = BlockSet(arrays["train_blocks"]), BlockSet(arrays["validation_blocks"])
    return Sets(train, validation, questions, *(conditions or blocks.conditions(facts)), facts)


def _synthetic(data: Dict[str, Any], model: Dict[str, Any], seed: int) -> Sets:
    length, size = data["sequence_length"], model["vocab_size"]
    train = RandomBlocks(data["train_blocks"], length, size, seed)
    validation = RandomBlocks(data["validation_blocks"], length, size, seed + 1)
    facts: Dict[str, Any] = {
        "sequence_length": length,
        "train": {"blocks": len(train)},
        "validation": {"blocks": len(validation)},
    }
    if not data["mmlu_items"]:
        return Sets(train, validation, None, "synthetic", "none", facts)
    questions = synthetic.questions(data, model, seed + 2)
    facts["mmlu"] = {
        "questions": len(questions),
        "mean_shots": float(questions.shots.mean()),
        "mean_length": float(questions.lengths.mean()),
    }
    return Sets(train, validation, questions, "synthetic", "synthetic", facts)
