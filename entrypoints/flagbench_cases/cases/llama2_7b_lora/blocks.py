"""The format llama-blocks/v1: samsum's blocks and MMLU's prompts as memory-mapped arrays of token ids.

train_blocks, validation_blocks   int32 [n, L]
mmlu_tokens, mmlu_offsets         int32 [tokens], int64 [questions + 1]
mmlu_answers                      int8 [questions]: 0 to 3
mmlu_subject_ids, mmlu_shots      int16, int8 [questions]
"""

from typing import Any, Callable, Dict, NamedTuple, Tuple

import numpy as np

from flagbench_cases.cases.llama2_7b_lora import mmlu, samsum
from flagbench_cases.cases.llama2_7b_lora.tokens import CHOICES, Vocabulary
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
PREPARE_REMEDY = (
    "prepare it again: flagbench prepare llama2-7b-lora --data SOURCE --vocabulary tokenizer.model -o OUT --force"
)


class Tokenised(NamedTuple):
    """The arrays of the format and its facts, plain data."""

    arrays: Dict[str, np.ndarray]
    facts: Dict[str, Any]


def tokenise(
    dialogues: str,
    questions: str,
    vocabulary: Vocabulary,
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
    """Open the arrays of a prepared folder, memory-mapped. Raises DataError if they are invalid."""
    arrays = {}
    for name, kind in ARRAYS.items():
        path = place.path(name + ".npy")
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError("%s cannot be read (%s)" % (path, str(error).split("\n")[0]), PREPARE_REMEDY) from None
        if array.dtype != kind or array.ndim != (2 if name.endswith("_blocks") else 1):
            raise DataError("%s is %s of %d dimensions" % (path, array.dtype, array.ndim), PREPARE_REMEDY)
        arrays[name] = array
    return Tokenised(arrays, place.facts)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _is_answers(value: Any) -> bool:
    return isinstance(value, list) and len(value) == len(CHOICES) and all(_is_count(token) for token in value)


# The facts that a run reads: name, expected type as text, and its test.
FACTS: Tuple[Tuple[str, str, Callable[[Any], bool]], ...] = (
    ("sequence_length", "a whole number", _is_count),
    ("train.dialogues", "a whole number", _is_count),
    ("validation.dialogues", "a whole number", _is_count),
    ("mmlu.subjects", "a list of names", _is_names),
    ("mmlu.questions", "a whole number", _is_count),
    ("mmlu.shots", "a whole number", _is_count),
    ("vocabulary.llama2", "true or false", lambda value: isinstance(value, bool)),
    ("vocabulary.answer_tokens", "a list of %d whole numbers" % len(CHOICES), _is_answers),
)


def check_facts(where: str, facts: Dict[str, Any]) -> None:
    """Raise DataError if a fact is missing or has the wrong type. Facts are not covered by a checksum."""
    for name, what, fits in FACTS:
        value: Any = facts
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not fits(value):
            raise DataError("%s: the fact %s is missing or is not %s" % (where, name, what), PREPARE_REMEDY)


def check(where: str, made: Tokenised, length: int, vocabulary_size: int) -> None:
    """Raise DataError for arrays that are inconsistent or do not fit the preset's model."""
    arrays, facts = made
    check_facts(where, facts)
    prepared, subjects = facts["sequence_length"], facts["mmlu"]["subjects"]
    tokens = facts["vocabulary"]["answer_tokens"]
    if prepared != length:
        raise DataError(
            "%s was prepared for blocks of %s tokens, but this preset has %d" % (where, prepared, length),
            "use --preset reference, or prepare the data again",
        )
    for name in ("train_blocks", "validation_blocks"):
        if arrays[name].shape[0] < 1 or arrays[name].shape[1] != length:
            raise DataError("%s: %s has the shape %s" % (where, name, arrays[name].shape), PREPARE_REMEDY)
    for name in ("train_blocks", "validation_blocks", "mmlu_tokens"):
        if arrays[name].size:
            _in_range("%s: %s" % (where, name), arrays[name], vocabulary_size)
    lengths = np.diff(arrays["mmlu_offsets"])
    if (
        len(lengths) < 1
        or len(lengths) != facts["mmlu"]["questions"]
        or int(arrays["mmlu_offsets"][0]) != 0
        or int(arrays["mmlu_offsets"][-1]) != len(arrays["mmlu_tokens"])
        or int(lengths.min()) < 1
        or int(lengths.max()) > length
        or any(len(arrays["mmlu_" + name]) != len(lengths) for name in ("answers", "subject_ids", "shots"))
    ):
        raise DataError("%s: the arrays of MMLU are inconsistent" % where, PREPARE_REMEDY)
    _in_range("%s: mmlu_answers" % where, arrays["mmlu_answers"], len(CHOICES))
    _in_range("%s: mmlu_subject_ids" % where, arrays["mmlu_subject_ids"], len(subjects))
    _in_range("%s: the tokens of the answers" % where, np.array(tokens), vocabulary_size)


def _in_range(what: str, values: np.ndarray, limit: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
        raise DataError(
            "%s: %d is out of range: 0 to %d" % (what, low if low < 0 else high, limit - 1), PREPARE_REMEDY
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
