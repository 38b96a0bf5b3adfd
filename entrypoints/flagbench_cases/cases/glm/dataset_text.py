"""Converts ReCoRD's JSONL files (SuperGLUE's `train.jsonl` and `val.jsonl`) into the publisher's examples.

A line is a passage with the positions of its entities, and its queries:

    {"idx": 0, "passage": {"text": "...", "entities": [{"start": 0, "end": 3}, ...]},
     "qas": [{"idx": 0, "query": "... @placeholder ...", "answers": [{"text": "..."}, ...]}]}

Rules, as in THUDM's GLM (tasks/superglue): quotes and dashes become ASCII, and `@highlight` lines start with "- ". In
training there is an example for every right answer; its choices are that answer and at most nine wrong entities drawn
by Random(42). In evaluation there is one for every query, with all entities. Examples are sorted by their number of
choices. A row is the passage, the query up to the placeholder, [MASK], and the rest of the query; if a row is too
long for the model, the end of the passage is truncated. One rule differs from the publisher's: entities and right
answers are in the order of the file. The publisher takes both from Python sets, so their order, and the choice of
wrong entities, vary between runs.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from flagbench_cases.cases.glm.overlap import best_f1, normalised_words
from flagbench_cases.cases.glm.ragged import Builder, Special
from flagbench_cases.prepare import json_lines
from flagbench_cases.shared.errors import DataError

STANDARD = {0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0x2013: "-"}
PLACEHOLDER = "@placeholder"
MAX_TRAINING_CHOICES = 10
SHUFFLE_SEED = 42
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHUNK = 512
REMEDY = "download SuperGLUE's ReCoRD again, or correct the line"

Report = Callable[[str, int, int], None]


class Query(NamedTuple):
    """One example as text: `passage` is an index, `where` the line for messages, `answers` all right answers."""

    passage: int
    where: str
    before: str
    after: str
    choices: list[str]
    right: list[bool]
    answers: list[str]


class Counts(NamedTuple):
    """Numbers about a set."""

    examples: int
    truncated: int  # choices whose passage was truncated
    unanswerable: int  # examples without a right choice


def standardised(text: str) -> str:
    """Replace quotes and dashes by ASCII, one character each, so that the positions of entities stay valid."""
    return text.translate(STANDARD)


def read_queries(path: str, training: bool) -> tuple[list[str], list[Query]]:
    """The passages of a file, and its examples in the publisher's order. Raises DataError naming the line."""
    passages: list[str] = []
    queries: list[Query] = []
    shuffler = Random(SHUFFLE_SEED)
    for line in json_lines.objects(path):
        where = line.where
        text, entities = _passage(where, line.content)
        for question in _list(where, line.content, "qas"):
            query, answers = _question(where, question)
            before, after = query.split(PLACEHOLDER)
            for choices, right in _choices(entities, answers, training, shuffler):
                if not choices:
                    raise DataError(f"{where} has no entities to choose from", REMEDY)
                queries.append(Query(len(passages), where, before.rstrip(), after, choices, right, answers))
            if not training and not answers:
                raise DataError(f"{where}: a query has no answers", "use val.jsonl, which has answers")
        passages.append(text.replace("@highlight\n", "- "))
    if not queries:
        raise DataError(f"{path} has no examples", "download SuperGLUE's ReCoRD again")
    queries.sort(key=lambda query: len(query.choices))
    return passages, queries


def _list(where: str, parent: Any, key: str) -> list[dict[str, Any]]:
    objects = None
    if isinstance(parent, dict):
        objects = parent.get(key)
    if not isinstance(objects, list) or not all(isinstance(element, dict) for element in objects):
        raise DataError(f"{where}: {key} is not a list of objects", REMEDY)
    return objects


def _text(where: str, parent: Any, key: str) -> str:
    text = None
    if isinstance(parent, dict):
        text = parent.get(key)
    if not json_lines.is_text(text):
        raise DataError(f"{where}: {key} is not text", REMEDY)
    return standardised(str(text))


def _passage(where: str, line: Any) -> tuple[str, list[str]]:
    """The text of a passage, and its distinct entities in order."""
    passage = None
    if isinstance(line, dict):
        passage = line.get("passage")
    text = _text(where, passage, "text")
    entities: dict[str, None] = {}
    for entity in _list(where, passage, "entities"):
        start, end = entity.get("start"), entity.get("end")
        if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
            raise DataError(f"{where}: an entity has no valid position", REMEDY)
        if start >= len(text):
            raise DataError(f"{where}: an entity is outside of its passage", REMEDY)
        entities[text[start : end + 1]] = None  # `end` is the last character
    return text, list(entities)


def _question(where: str, question: dict[str, Any]) -> tuple[str, list[str]]:
    query = _text(where, question, "query")
    if query.count(PLACEHOLDER) != 1:
        raise DataError(f"{where}: a query does not have exactly one {PLACEHOLDER}", REMEDY)
    answers: list[dict[str, Any]] = []
    if question.get("answers") is not None:
        answers = _list(where, question, "answers")
    return query, list(dict.fromkeys(_text(where, answer, "text") for answer in answers))


def _choices(
    entities: list[str], answers: list[str], training: bool, shuffler: Random
) -> Iterator[tuple[list[str], list[bool]]]:
    if not training:
        yield entities, [entity in answers for entity in entities]
        return
    for answer in answers:
        wrong = [entity for entity in entities if entity not in answers]
        if len(wrong) > MAX_TRAINING_CHOICES - 1:
            shuffler.shuffle(wrong)
            wrong = wrong[: MAX_TRAINING_CHOICES - 1]
        yield [answer, *wrong], [True] + [False] * len(wrong)


def special_tokens(vocabulary: dict[str, int]) -> Special:
    """The ids of the special tokens; GLM adds two after the vocabulary."""
    size = len(vocabulary)
    return Special(vocabulary["[PAD]"], vocabulary["[CLS]"], vocabulary["[MASK]"], size, size + 1)


class Encoder:
    """Encodes text as WordPiece ids, in lower case like bert-large-uncased."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        from tokenizers import BertWordPieceTokenizer

        self._tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
        self._known: dict[str, list[int]] = {}

    def many(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def choice(self, text: str) -> list[int]:
        """Ids of an entity, cached."""
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._known[text]


def build(
    path: str, training: bool, vocabulary: dict[str, int], length: int, builder: Builder, report: Report
) -> Counts:
    """Read a file and add its examples, with at most `length` tokens per choice, to `builder`."""
    passages, queries = read_queries(path, training)
    encoder, special = Encoder(vocabulary), special_tokens(vocabulary)
    split = "train" if training else "eval"
    encoded: list[Sequence[int]] = []
    for first in range(0, len(passages), CHUNK):
        encoded.extend(array("i", ids) for ids in encoder.many(passages[first : first + CHUNK]))
        report(f"{split} passages", len(encoded), len(passages))
    truncated = 0
    for first in range(0, len(queries), CHUNK):
        chunk = queries[first : first + CHUNK]
        befores = encoder.many([query.before for query in chunk])
        afters = encoder.many([query.after for query in chunk])
        for query, before, after in zip(chunk, befores, afters):
            answers = [encoder.choice(choice) for choice in query.choices]
            truncated += _add(builder, special, length, query, encoded[query.passage], before, after, answers)
        report(f"{split} examples", first + len(chunk), len(queries))
    return Counts(len(queries), truncated, sum(not any(query.right) for query in queries))


def _add(
    builder: Builder,
    special: Special,
    length: int,
    query: Query,
    passage: Sequence[int],
    before: list[int],
    after: list[int],
    answers: list[list[int]],
) -> int:
    """Add an example to `builder`; returns the number of choices whose passage was truncated."""
    contexts: list[list[int]] = []
    context, kept_before = [], -1
    for answer in answers:  # an answer without tokens is scored only by its end token, as published
        # 4: [CLS], [MASK], the [PAD] that ends part A, and <|startofpiece|>.
        room = length - 4 - len(before) - len(after) - len(answer)
        if room < 0:
            raise DataError(f"{query.where}: a query and its answer have more than {length} tokens", REMEDY)
        kept = passage[:room]
        if len(kept) != kept_before:
            context = [special.cls, *kept, *before, special.mask, *after, special.pad]
            kept_before = len(kept)
        contexts.append(context)
    words = [normalised_words(answer) for answer in query.answers]
    builder.add(
        contexts,
        [context.index(special.mask) for context in contexts],
        answers,
        query.right,
        [best_f1(normalised_words(choice), words) for choice in query.choices],
    )
    return sum(len(context) < len(passage) + len(before) + len(after) + 3 for context in contexts)
