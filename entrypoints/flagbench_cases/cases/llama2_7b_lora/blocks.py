"""The format llama-blocks/v1: samsum's blocks and MMLU's prompts as memory-mapped arrays of token ids.

train_blocks, validation_blocks   int32 [n, L]
mmlu_tokens, mmlu_offsets         int32 [tokens], int64 [questions + 1]
mmlu_answers                      int8 [questions]: 0 to 3
mmlu_subject_ids, mmlu_shots      int16, int8 [questions]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flagbench_cases.cases.llama2_7b_lora import mmlu, samsum
from flagbench_cases.cases.llama2_7b_lora.mmlu import MmluVocabulary
from flagbench_cases.prepare.prepared_folder import PreparedFolder
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report

FORMAT = "llama-blocks/v1"
"""The name and version of the format, which a prepared folder states."""
ARRAYS = {
    "train_blocks": np.int32,
    "validation_blocks": np.int32,
    "mmlu_tokens": np.int32,
    "mmlu_offsets": np.int64,
    "mmlu_answers": np.int8,
    "mmlu_subject_ids": np.int16,
    "mmlu_shots": np.int8,
}
"""The arrays of the format with their types, one .npy file each."""


class Tokenised(NamedTuple):
    """A data set in the format."""

    arrays: dict[str, np.ndarray]
    """The arrays by the names above."""
    facts: dict[str, Any]
    """Sizes of the sets and facts about the vocabulary, JSON values that `prepared.json` and the record state."""


class Conditions(NamedTuple):
    """The conditions of a run with a data set, which are compared with those of a published result."""

    data: str
    mmlu: str


def tokenise(
    dialogues: str,
    questions: str,
    vocabulary: MmluVocabulary,
    length: int,
    shots: int,
    report: Report,
) -> Tokenised:
    """Tokenise samsum's and MMLU's folders as blocks and prompts of at most `length` tokens. Raises DataError.

    `shots`: the solved examples before each question, if they fit.
    """
    arrays: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {"sequence_length": length}
    for split, name in samsum.FILES.items():
        path = f"{dialogues}/{name}"
        stream = samsum.cut_into_blocks(path, samsum.read_pairs(path), vocabulary, length, report)
        arrays[split + "_blocks"] = stream.blocks
        facts[split] = {
            "dialogues": stream.dialogues,
            "tokens": stream.tokens,
            "blocks": len(stream.blocks),
            "tokens_dropped": stream.tokens - stream.blocks.size,
        }
    prompts = mmlu.make_prompts(questions, vocabulary, length, shots, report)
    arrays["mmlu_tokens"] = prompts.tokens
    arrays["mmlu_offsets"] = prompts.offsets
    arrays["mmlu_answers"] = prompts.answers
    arrays["mmlu_subject_ids"] = prompts.subject_ids
    arrays["mmlu_shots"] = prompts.shot_counts
    facts["mmlu"] = {
        "subjects": prompts.subjects,
        "questions": len(prompts.answers),
        "shots": shots,
        "mean_shots": float(prompts.shot_counts.mean()),
        "mean_length": float(np.diff(prompts.offsets).mean()),
        "questions_cut": prompts.questions_cut,
    }
    facts["vocabulary"] = {
        "sha256": vocabulary.sha256,
        "pieces": vocabulary.pieces,
        "llama2": vocabulary.is_llama2,
        "answer_tokens": vocabulary.answer_tokens,
    }
    return Tokenised(arrays, facts)


def write(tokenised: Tokenised, writer: Writer) -> None:
    """Write the arrays and facts through a Writer."""
    writer.format(FORMAT)
    for name, kind in ARRAYS.items():
        np.save(writer.path(name + ".npy"), tokenised.arrays[name].astype(kind), allow_pickle=False)
    writer.fact(**tokenised.facts)


def read(prepared: PreparedFolder) -> Tokenised:
    """Open the arrays of a prepared folder, memory-mapped. Raises DataError."""
    return Tokenised({name: prepared.array(name + ".npy") for name in ARRAYS}, prepared.facts)


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


def conditions(facts: dict[str, Any]) -> Conditions:
    """Return the conditions of a run with a prepared folder, according to its facts."""
    is_published = facts["vocabulary"]["llama2"]
    for split, count in samsum.PUBLISHED.items():
        if facts[split]["dialogues"] != count:
            is_published = False
    prompts = facts["mmlu"]
    subjects = len(prompts["subjects"])
    questions = prompts["questions"]
    size = f"{subjects} subjects"
    if (subjects, questions) != (mmlu.SUBJECTS, mmlu.QUESTIONS):
        size += f", {questions} questions"
    return Conditions(
        data="samsum" if is_published else "files",
        mmlu=f"{size}, {prompts['shots']}-shot cut to {facts['sequence_length']}",
    )
