"""Converts ReCoRD's JSONL files (SuperGLUE's `train.jsonl` and `val.jsonl`) into the publisher's examples.

A line is a passage with the positions of its entities, and its queries:

    {"idx": 0, "passage": {"text": "...", "entities": [{"start": 0, "end": 3}, ...]},
     "qas": [{"idx": 0, "query": "... @placeholder ...", "answers": [{"text": "..."}, ...]}]}

Rules, as in THUDM's GLM (tasks/superglue): quotes and dashes become ASCII, and `@highlight` lines start with "- ". In
training there is an example for every right answer; its choices are that answer and at most nine wrong entities drawn
by Random(42). In evaluation there is one for every query, with all entities. Examples are sorted by their number of
choices. A row is the passage, the query up to the placeholder, [MASK], and the rest of the query; if a row is too
long for the model, the end of the passage is truncated.

One rule differs from the publisher's: entities and right answers are in the order of the file. The publisher takes
both from Python sets, so their order, and the choice of wrong entities, vary between runs.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import Any, Iterator, NamedTuple, Sequence

from flagbench_cases.cases.glm.overlap import best_f1, normalised_words
from flagbench_cases.cases.glm.ragged import Builder
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.prepare import json_lines
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report

ASCII_PUNCTUATION = {0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0x2013: "-"}
"""The ASCII characters that replace typographic quotes and dashes, for str.translate."""
PLACEHOLDER = "@placeholder"
"""The blank in a query."""
MAX_TRAINING_CHOICES = 10
SHUFFLE_SEED = 42
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The special tokens that the vocabulary must have."""
FRAME = 4
"""Tokens of a row that are from neither its texts nor its answer: [CLS], [MASK], [PAD] and <|startofpiece|>."""
CHUNK = 512
"""Texts that are encoded at a time, so that progress is reported often."""
REMEDY = "download SuperGLUE's ReCoRD again, or correct the line"


class Choices(NamedTuple):
    """The choices of one example."""

    entities: list[str]
    right: list[bool]
    """Whether each choice is a right answer."""


class Query(NamedTuple):
    """One example as text."""

    passage: int
    """The index of its passage."""
    where: str
    """FILE:LINE, for messages."""
    before: str
    """The query up to the placeholder."""
    after: str
    """The query after the placeholder."""
    choices: Choices
    answers: list[str]
    """All right answers of the query."""


class Counts(NamedTuple):
    """Numbers about a set."""

    examples: int
    truncated: int
    """Choices whose passage was truncated."""
    unanswerable: int
    """Examples without a right choice."""


def standardise(text: str) -> str:
    """Replace quotes and dashes by ASCII, one character each, so that the positions of entities stay valid."""
    return text.translate(ASCII_PUNCTUATION)


def read_queries(path: str, training: bool) -> tuple[list[str], list[Query]]:
    """Read the passages of a file, and its examples in the publisher's order. Raises DataError naming the line."""
    passages: list[str] = []
    queries: list[Query] = []
    shuffler = Random(SHUFFLE_SEED)
    for line in json_lines.objects(path):
        where = line.where
        text, entities = _read_passage(where, line.content)
        for question in _read_list(where, line.content, "qas"):
            query, answers = _read_question(where, question)
            before, after = query.split(PLACEHOLDER)
            for choices in _make_choices(entities, answers, training, shuffler):
                if not choices.entities:
                    raise DataError(f"{where} has no entities to choose from", REMEDY)
                queries.append(Query(len(passages), where, before.rstrip(), after, choices, answers))
            if not training and not answers:
                raise DataError(f"{where}: a query has no answers", "use val.jsonl, which has answers")
        passages.append(text.replace("@highlight\n", "- "))
    if not queries:
        raise DataError(f"{path} has no examples", "download SuperGLUE's ReCoRD again")
    queries.sort(key=lambda query: len(query.choices.entities))
    return passages, queries


def _read_list(where: str, parent: Any, key: str) -> list[dict[str, Any]]:
    """Return the list of objects under a key of `parent`. Raises DataError if it is anything else."""
    objects = None
    if isinstance(parent, dict):
        objects = parent.get(key)
    if not isinstance(objects, list) or not all(isinstance(element, dict) for element in objects):
        raise DataError(f"{where}: {key} is not a list of objects", REMEDY)
    return objects


def _read_text(where: str, parent: Any, key: str) -> str:
    """Return the text under a key of `parent`, standardised. Raises DataError if it is anything else."""
    text = None
    if isinstance(parent, dict):
        text = parent.get(key)
    if not json_lines.is_text(text):
        raise DataError(f"{where}: {key} is not text", REMEDY)
    return standardise(str(text))


def _read_passage(where: str, line: Any) -> tuple[str, list[str]]:
    """Return the text of a line's passage, and its distinct entities in order. Raises DataError."""
    passage = None
    if isinstance(line, dict):
        passage = line.get("passage")
    text = _read_text(where, passage, "text")
    entities: dict[str, None] = {}  # a set that keeps the order
    for entity in _read_list(where, passage, "entities"):
        start = entity.get("start")
        end = entity.get("end")
        if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
            raise DataError(f"{where}: an entity has no valid position", REMEDY)
        if start >= len(text):
            raise DataError(f"{where}: an entity is outside of its passage", REMEDY)
        entities[text[start : end + 1]] = None  # `end` is the last character
    return text, list(entities)


def _read_question(where: str, question: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the text of a query, and its distinct right answers in order. Raises DataError."""
    query = _read_text(where, question, "query")
    if query.count(PLACEHOLDER) != 1:
        raise DataError(f"{where}: a query does not have exactly one {PLACEHOLDER}", REMEDY)
    answers: list[dict[str, Any]] = []
    if question.get("answers") is not None:
        answers = _read_list(where, question, "answers")
    return query, list(dict.fromkeys(_read_text(where, answer, "text") for answer in answers))


def _make_choices(entities: list[str], answers: list[str], training: bool, shuffler: Random) -> Iterator[Choices]:
    """Return the choices of each example that a query makes: one in evaluation, one for each answer in training."""
    if not training:
        yield Choices(entities, [entity in answers for entity in entities])
        return
    for answer in answers:
        wrong = [entity for entity in entities if entity not in answers]
        if len(wrong) > MAX_TRAINING_CHOICES - 1:
            shuffler.shuffle(wrong)
            wrong = wrong[: MAX_TRAINING_CHOICES - 1]
        yield Choices([answer, *wrong], [True] + [False] * len(wrong))


def special_tokens(vocabulary: dict[str, int]) -> SpecialTokens:
    """Return the ids of the special tokens; GLM adds two after the vocabulary."""
    size = len(vocabulary)
    return SpecialTokens(vocabulary["[PAD]"], vocabulary["[CLS]"], vocabulary["[MASK]"], size, size + 1)


class Encoder:
    """Encodes text as WordPiece ids, in lower case like bert-large-uncased."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        from tokenizers import BertWordPieceTokenizer

        self._tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
        self._entity_ids: dict[str, list[int]] = {}

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def encode_entity(self, text: str) -> list[int]:
        """Return the ids of an entity. They are cached, since entities repeat."""
        if text not in self._entity_ids:
            self._entity_ids[text] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._entity_ids[text]


class Tokens(NamedTuple):
    """Token ids of one example."""

    passage: Sequence[int]
    before: list[int]
    after: list[int]
    choices: list[list[int]]


def build(
    path: str, training: bool, vocabulary: dict[str, int], length: int, builder: Builder, report: Report
) -> Counts:
    """Read a file and add its examples, with at most `length` tokens per choice, to `builder`."""
    passages, queries = read_queries(path, training)
    encoder = Encoder(vocabulary)
    special = special_tokens(vocabulary)
    split = "train" if training else "eval"
    passage_ids: list[Sequence[int]] = []
    for first in range(0, len(passages), CHUNK):
        for ids in encoder.encode_texts(passages[first : first + CHUNK]):
            passage_ids.append(array("i", ids))  # smaller than a list
        report(f"{split} passages", len(passage_ids), len(passages))
    truncated = 0
    unanswerable = 0
    for first in range(0, len(queries), CHUNK):
        chunk = queries[first : first + CHUNK]
        befores = encoder.encode_texts([query.before for query in chunk])
        afters = encoder.encode_texts([query.after for query in chunk])
        for query, before, after in zip(chunk, befores, afters):
            choices = [encoder.encode_entity(entity) for entity in query.choices.entities]
            tokens = Tokens(passage_ids[query.passage], before, after, choices)
            truncated += _add_example(builder, special, length, query, tokens)
            if not any(query.choices.right):
                unanswerable += 1
        report(f"{split} examples", first + len(chunk), len(queries))
    return Counts(len(queries), truncated, unanswerable)


def _add_example(builder: Builder, special: SpecialTokens, length: int, query: Query, tokens: Tokens) -> int:
    """Add an example to `builder`; returns the number of choices whose passage was truncated."""
    query_length = len(tokens.before) + len(tokens.after)
    contexts: list[list[int]] = []
    context: list[int] = []
    context_passage_length = -1
    truncated = 0
    for choice in tokens.choices:  # a choice without tokens is scored only by its end token, as published
        room = length - FRAME - query_length - len(choice)
        if room < 0:
            raise DataError(f"{query.where}: a query and its answer have more than {length} tokens", REMEDY)
        passage = tokens.passage[:room]
        if len(passage) < len(tokens.passage):
            truncated += 1
        # Choices with equally long passages share one list, which the builder then stores once.
        if len(passage) != context_passage_length:
            context = [special.cls, *passage, *tokens.before, special.mask, *tokens.after, special.pad]
            context_passage_length = len(passage)
        contexts.append(context)
    answer_words = [normalised_words(answer) for answer in query.answers]
    builder.add(
        contexts,
        [context.index(special.mask) for context in contexts],
        tokens.choices,
        query.choices.right,
        [best_f1(normalised_words(entity), answer_words) for entity in query.choices.entities],
    )
    return truncated
