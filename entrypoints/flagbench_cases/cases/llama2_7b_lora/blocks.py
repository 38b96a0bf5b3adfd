"""The format llama-blocks/v1: samsum's blocks and MMLU's prompts as memory-mapped arrays of token ids.

train_blocks, validation_blocks   int32 [n, L]
mmlu_tokens, mmlu_offsets         int32 [tokens], int64 [questions + 1]
mmlu_answers                      int8 [questions]: 0 to 3
mmlu_subject_ids, mmlu_shots      int16, int8 [questions]
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np

from flagbench_cases.cases.llama2_7b_lora import mmlu, samsum
from flagbench_cases.cases.llama2_7b_lora.mmlu import MmluVocabulary
from flagbench_cases.shared.errors import DataError

FORMAT = "llama-blocks/v1"
ARRAYS = {
    "train_blocks": np.int32,
    "validation_blocks": np.int32,
    "mmlu_tokens": np.int32,
    "mmlu_offsets": np.int64,
    "mmlu_answers": np.int8,
    "mmlu_subject_ids": np.int16,
    "mmlu_shots": np.int8,
}


class Tokenised(NamedTuple):
    """The arrays of the format and its facts, plain data."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


def tokenise(
    dialogues: str,
    questions: str,
    vocabulary: MmluVocabulary,
    length: int,
    shots: int,
    report: Callable[[str, int, int], None],
) -> Tokenised:
    """samsum's folder and MMLU's folder as blocks and prompts of `length` tokens. Raises DataError."""
    arrays: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {"sequence_length": length}
    for split, name in samsum.FILES.items():
        path = f"{dialogues}/{name}"
        stream = samsum.cut(path, samsum.read(path), vocabulary, length, report)
        arrays[split + "_blocks"] = stream.blocks
        facts[split] = {
            "dialogues": stream.dialogues,
            "tokens": stream.tokens,
            "blocks": len(stream.blocks),
            "tokens_dropped": stream.tokens - stream.blocks.size,
        }
    prompts = mmlu.prompts(questions, vocabulary, length, shots, report)
    for name in ("tokens", "offsets", "answers", "subject_ids", "shots"):
        arrays["mmlu_" + name] = getattr(prompts, name)
    facts["mmlu"] = {
        "subjects": prompts.subjects,
        "questions": len(prompts.answers),
        "shots": shots,
        "mean_shots": float(prompts.shots.mean()),
        "mean_length": float(np.diff(prompts.offsets).mean()),
        "questions_cut": prompts.cut,
    }
    facts["vocabulary"] = {
        "sha256": vocabulary.sha256,
        "pieces": vocabulary.pieces,
        "llama2": vocabulary.is_llama2,
        "answer_tokens": vocabulary.answer_tokens,
    }
    return Tokenised(arrays, facts)


def write(tokenised: Tokenised, writer: Any) -> None:
    """Write the arrays and facts through a Writer."""
    writer.format(FORMAT)
    for name, kind in ARRAYS.items():
        np.save(writer.path(name + ".npy"), tokenised.arrays[name].astype(kind), allow_pickle=False)
    writer.fact(**tokenised.facts)


def read(place: Any) -> Tokenised:
    """Open the arrays of a prepared folder, memory-mapped. Raises DataError."""
    return Tokenised({name: place.array(name + ".npy") for name in ARRAYS}, place.facts)


def check(where: str, tokenised: Tokenised, length: int, vocabulary_size: int) -> None:
    """Raise DataError for a set of another sequence length or a larger vocabulary than the preset's."""
    arrays, facts = tokenised
    if facts["sequence_length"] != length:
        raise DataError(
            f"{where} was prepared for blocks of {facts['sequence_length']} tokens, but this preset has {length}",
            "use --preset reference, or prepare the data again",
        )
    names = ("train_blocks", "validation_blocks", "mmlu_tokens")
    highest = max(int(arrays[name].max(initial=0)) for name in names)
    if highest >= vocabulary_size:
        raise DataError(
            f"{where} has the token {highest}, but the model has {vocabulary_size} tokens",
            "prepare the data for this model",
        )


def conditions(facts: dict[str, Any]) -> tuple[str, str]:
    """The values of a claim's `data` and `mmlu` conditions for a prepared folder."""
    published = facts["vocabulary"]["llama2"] and all(
        facts[split]["dialogues"] == count for split, count in samsum.PUBLISHED.items()
    )
    prompts = facts["mmlu"]
    words = f"{prompts['shots']}-shot cut to {facts['sequence_length']}"
    count = f"{len(prompts['subjects'])} subjects"
    if (len(prompts["subjects"]), prompts["questions"]) != (mmlu.SUBJECTS, mmlu.QUESTIONS):
        count += f", {prompts['questions']} questions"
    data = "samsum" if published else "files"
    return data, f"{count}, {words}"
