"""The format llama-blocks/v1: samsum's blocks and MMLU's prompts as memory-mapped arrays of token ids.

train_blocks, validation_blocks   int32 [n, L]
mmlu_tokens, mmlu_offsets         int32 [tokens], int64 [questions + 1]
mmlu_answers                      int8 [questions]: 0 to 3
mmlu_subject_ids, mmlu_shots      int16, int8 [questions]
"""

from typing import Any, Callable, Dict, NamedTuple, Tuple

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

    arrays: Dict[str, np.ndarray]
    facts: Dict[str, Any]


def tokenise(
    dialogues: str,
    questions: str,
    vocabulary: MmluVocabulary,
    length: int,
    shots: int,
    report: Callable[[str, int, int], None],
) -> Tokenised:
    """samsum's folder and MMLU's folder as blocks and prompts of `length` tokens. Raises DataError."""
    arrays: Dict[str, np.ndarray] = {}
    facts: Dict[str, Any] = {"sequence_length": length}
    for split, name in samsum.FILES.items():
        path = "%s/%s" % (dialogues, name)
        made = samsum.cut(path, samsum.read(path), vocabulary, length, report)
        arrays[split + "_blocks"] = made.blocks
        facts[split] = {
            "dialogues": made.dialogues,
            "tokens": made.tokens,
            "blocks": len(made.blocks),
            "tokens_dropped": made.tokens - made.blocks.size,
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


def write(made: Tokenised, writer: Any) -> None:
    """Write the arrays and facts through a Writer."""
    writer.format(FORMAT)
    for name, kind in ARRAYS.items():
        np.save(writer.path(name + ".npy"), made.arrays[name].astype(kind), allow_pickle=False)
    writer.fact(**made.facts)


def read(place: Any) -> Tokenised:
    """Open the arrays of a prepared folder, memory-mapped. Raises DataError."""
    return Tokenised({name: place.array(name + ".npy") for name in ARRAYS}, place.facts)


def check(where: str, made: Tokenised, length: int, vocabulary_size: int) -> None:
    """Raise DataError for a set of another sequence length or a larger vocabulary than the preset's."""
    arrays, facts = made
    if facts["sequence_length"] != length:
        raise DataError(
            "%s was prepared for blocks of %s tokens, but this preset has %d"
            % (where, facts["sequence_length"], length),
            "use --preset reference, or prepare the data again",
        )
    names = ("train_blocks", "validation_blocks", "mmlu_tokens")
    highest = max(int(arrays[name].max(initial=0)) for name in names)
    if highest >= vocabulary_size:
        raise DataError(
            "%s has the token %d, but the model has %d tokens" % (where, highest, vocabulary_size),
            "prepare the data for this model",
        )


def conditions(facts: Dict[str, Any]) -> Tuple[str, str]:
    """The values of a claim's `data` and `mmlu` conditions for a prepared folder."""
    published = facts["vocabulary"]["llama2"] and all(
        facts[split]["dialogues"] == count for split, count in samsum.PUBLISHED.items()
    )
    prompts = facts["mmlu"]
    words = "%d-shot cut to %d" % (prompts["shots"], facts["sequence_length"])
    count = "%d subjects" % len(prompts["subjects"])
    if (len(prompts["subjects"]), prompts["questions"]) != (mmlu.SUBJECTS, mmlu.QUESTIONS):
        count += ", %d questions" % prompts["questions"]
    return "samsum" if published else "files", "%s, %s" % (count, words)
