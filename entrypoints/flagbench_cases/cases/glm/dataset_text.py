"""ReCoRD's JSONL files (`train.jsonl`, `val.jsonl` as SuperGLUE ships them), rebuilt into what the publisher's held.

One line is a passage with the places of its entities, and its queries:

    {"idx": 0, "passage": {"text": "...", "entities": [{"start": 0, "end": 3}, ...]},
     "qas": [{"idx": 0, "query": "... @placeholder ...", "answers": [{"text": "..."}, ...]}]}

Rules, as THUDM's GLM has them (tasks/superglue): quotes and dashes become ASCII, `@highlight` lines begin with "- ".
In training there is an example for every right answer, its choices that answer and at most nine wrong entities drawn
by Random(42); in evaluation one for every query with all entities. Examples are sorted by their number of choices.
A row is passage, query up to the blank, [MASK], query after it; the passage alone is cut, at its end, where a row
would be too long for the model. One rule is ours: entities and right answers are taken in the order of the file. The
publisher takes both from Python sets, so that their order, and which nine wrong entities of more are drawn, differ
from run to run.
"""

import json
from array import array
from random import Random
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from flagbench_cases.cases.glm.overlap import best_f1, normalised_words
from flagbench_cases.cases.glm.ragged import Builder, Special
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

STANDARD = {0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0x2013: "-"}
PLACEHOLDER = "@placeholder"
MAX_TRAINING_CHOICES = 10
SHUFFLE_SEED = 42
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHUNK = 512
REPAIR = "fetch SuperGLUE's ReCoRD again, or correct that line"

Report = Callable[[str, int, int], None]


class Query(NamedTuple):
    """One example as text. `passage` is its number, `where` its line for messages, `answers` all right answers."""

    passage: int
    where: str
    before: str
    after: str
    choices: List[str]
    right: List[bool]
    answers: List[str]


class Counts(NamedTuple):
    """What is worth knowing of a set that was read."""

    examples: int
    truncated: int  # choices whose passage was cut
    unanswerable: int  # examples without a right choice


def standardised(text: str) -> str:
    """Quotes and dashes as ASCII; one character each, so that an entity's place stays its place."""
    return text.translate(STANDARD)


def read_queries(path: str, training: bool) -> Tuple[List[str], List[Query]]:
    """The passages of a file and its examples in the publisher's order. Raises DataError naming the line."""
    passages: List[str] = []
    queries: List[Query] = []
    shuffler = Random(SHUFFLE_SEED)
    for where, line in _lines(path):
        text, entities = _passage(where, line)
        for question in _list(where, line, "qas"):
            query, answers = _question(where, question)
            before, after = query.split(PLACEHOLDER)
            for choices, right in _choices(entities, answers, training, shuffler):
                if not choices:
                    raise DataError("%s has no entities to choose from" % where, REPAIR)
                queries.append(Query(len(passages), where, before.rstrip(), after, choices, right, answers))
            if not training and not answers:
                raise DataError("%s: a query has no answers" % where, "give val.jsonl, whose answers are known")
        passages.append(text.replace("@highlight\n", "- "))
    if not queries:
        raise DataError("%s holds no examples" % path, "fetch SuperGLUE's ReCoRD again")
    queries.sort(key=lambda query: len(query.choices))
    return passages, queries


def _lines(path: str) -> Iterator[Tuple[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = "%s:%d" % (path, number)
                    try:
                        yield where, json.loads(line)
                    except (ValueError, RecursionError):
                        raise DataError("%s is not JSON: the file is cut or damaged" % where, REPAIR) from None
    except FileNotFoundError:
        raise DataError("%s does not exist" % path, "put train.jsonl and val.jsonl there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("%s cannot be read (%s)" % (path, error), "fetch it again") from error


def _list(where: str, parent: Any, key: str) -> List[Dict[str, Any]]:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DataError("%s: %s is not a list of objects" % (where, key), REPAIR)
    return value


def _text(where: str, parent: Any, key: str) -> str:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, str):
        raise DataError("%s: %s is not text" % (where, key), REPAIR)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON may name one half of a pair; no tokenizer takes it
        words = (where, key, ord(value[error.start]))
        raise DataError("%s: %s is not text: it has half a character, \\u%04x" % words, REPAIR) from None
    return standardised(value)


def _passage(where: str, line: Any) -> Tuple[str, List[str]]:
    """The text of a passage and its distinct entities in their order."""
    passage = line.get("passage") if isinstance(line, dict) else None
    text = _text(where, passage, "text")
    entities: Dict[str, None] = {}
    for entity in _list(where, passage, "entities"):
        start, end = entity.get("start"), entity.get("end")
        if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
            raise DataError("%s: an entity has no place in its passage" % where, REPAIR)
        if start >= len(text):
            raise DataError("%s: an entity lies outside of its passage" % where, REPAIR)
        entities[text[start : end + 1]] = None  # `end` is the last character
    return text, list(entities)


def _question(where: str, question: Dict[str, Any]) -> Tuple[str, List[str]]:
    query = _text(where, question, "query")
    if query.count(PLACEHOLDER) != 1:
        raise DataError("%s: a query has not one %s" % (where, PLACEHOLDER), REPAIR)
    answers = _list(where, question, "answers") if question.get("answers") is not None else []
    return query, list(dict.fromkeys(_text(where, answer, "text") for answer in answers))


def _choices(
    entities: List[str], answers: List[str], training: bool, shuffler: Random
) -> Iterator[Tuple[List[str], List[bool]]]:
    if not training:
        yield entities, [entity in answers for entity in entities]
        return
    for answer in answers:
        wrong = [entity for entity in entities if entity not in answers]
        if len(wrong) > MAX_TRAINING_CHOICES - 1:
            shuffler.shuffle(wrong)
            wrong = wrong[: MAX_TRAINING_CHOICES - 1]
        yield [answer, *wrong], [True] + [False] * len(wrong)


def read_vocabulary(path: str) -> Dict[str, int]:
    """The tokens of a WordPiece vocab.txt, one a line, with their ids; DataError for one that is there twice."""
    try:
        with open_file(path, encoding="utf-8", newline="\n") as file:
            tokens = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("%s cannot be read (%s)" % (path, error), "give a vocab.txt as UTF-8 text") from error
    vocabulary: Dict[str, int] = {}
    for index, token in enumerate(tokens):
        first = vocabulary.setdefault(token, index)
        if first != index:
            raise DataError(
                "%s has %s twice, in lines %d and %d" % (path, ascii(token)[1:-1][:60], first + 1, index + 1),
                "give the vocab.txt of bert-large-uncased, as it is",
            )
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise DataError("%s has no token %s" % (path, ", ".join(missing)), "give the vocab.txt of bert-large-uncased")
    return vocabulary


def special_tokens(vocabulary: Dict[str, int]) -> Special:
    """The ids that frame an example; the two that GLM adds come after the vocabulary's own."""
    size = len(vocabulary)
    return Special(vocabulary["[PAD]"], vocabulary["[CLS]"], vocabulary["[MASK]"], size, size + 1)


class Encoder:
    """Text to WordPiece ids, lower-cased, as bert-large-uncased does it."""

    def __init__(self, vocabulary: Dict[str, int]) -> None:
        from tokenizers import BertWordPieceTokenizer

        self._tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
        self._known: Dict[str, List[int]] = {}

    def many(self, texts: Sequence[str]) -> List[List[int]]:
        """Ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def choice(self, text: str) -> List[int]:
        """Ids of an entity; entities come back again and again."""
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._known[text]


def build(
    path: str, training: bool, vocabulary: Dict[str, int], length: int, builder: Builder, report: Report
) -> Counts:
    """Read one file and put its examples of at most `length` tokens a choice into `builder`."""
    passages, queries = read_queries(path, training)
    encoder, special = Encoder(vocabulary), special_tokens(vocabulary)
    split = "train" if training else "eval"
    encoded: List[Sequence[int]] = []
    for first in range(0, len(passages), CHUNK):
        encoded.extend(array("i", ids) for ids in encoder.many(passages[first : first + CHUNK]))
        report("%s passages" % split, len(encoded), len(passages))
    truncated = 0
    for first in range(0, len(queries), CHUNK):
        chunk = queries[first : first + CHUNK]
        befores = encoder.many([query.before for query in chunk])
        afters = encoder.many([query.after for query in chunk])
        for query, before, after in zip(chunk, befores, afters):
            answers = [encoder.choice(choice) for choice in query.choices]
            truncated += _add(builder, special, length, query, encoded[query.passage], before, after, answers)
        report("%s examples" % split, first + len(chunk), len(queries))
    return Counts(len(queries), truncated, sum(not any(query.right) for query in queries))


def _add(
    builder: Builder,
    special: Special,
    length: int,
    query: Query,
    passage: Sequence[int],
    before: List[int],
    after: List[int],
    answers: List[List[int]],
) -> int:
    """Put one example into `builder`; returns the number of choices whose passage was cut."""
    contexts: List[List[int]] = []
    context, kept_before = [], -1
    for answer in answers:  # one without tokens is scored by its end alone, as published
        # [CLS], [MASK], [PAD] for the end of part A, and <|startofpiece|> are beside text and answer.
        room = length - 4 - len(before) - len(after) - len(answer)
        if room < 0:
            raise DataError("%s: a query and its answer have more than %d tokens" % (query.where, length), REPAIR)
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
