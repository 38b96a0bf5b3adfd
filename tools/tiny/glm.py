"""The tiny set of GLM: passages and queries in ReCoRD's format, the same in all Python versions."""

import json
import string
import zlib
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from tools.tiny import common
from tools.tiny.common import Draw

SHIPPED = common.CASES / "glm" / "tiny"
SEED = 7
PASSAGES = {"train": 520, "val": 100}
SENTENCES = 5
# One in this many pairs occurs only in val.
VAL_SHARE = 5

PERSONS = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karla", "Leo")
PLACES: Tuple[str, ...] = ("garden", "kitchen", "cellar", "old barn", "library", "fish market", "harbour", "bus stop")
PLACES += ("town hall", "museum", "north gate", "attic")
DOINGS: Tuple[str, ...] = (
    "reads",
    "sings",
    "works",
    "waits",
    "sleeps",
    "paints",
    "talks",
    "rests",
    "cooks",
    "writes",
    "dances",
)
DOINGS += ("listens",)
PERSON_QUERIES = ("The story is about @placeholder.", "We hear most of @placeholder.")
PLACE_QUERIES = ("Most of it happens in the @placeholder.", "The story is set in the @placeholder.")
HIGHLIGHT = "\n@highlight\n"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def pair(draw: Draw, names: Sequence[str], split: str) -> Tuple[str, str]:
    """Two different names in random order, whose pair belongs to `split`."""
    while True:
        first, second = draw.pick(names), draw.pick(names)
        if first != second and split_of(first, second) == split:
            return first, second


def split_of(first: str, second: str) -> str:
    """The split in which this pair occurs, in either order."""
    checksum = zlib.crc32(" ".join(sorted((first, second))).encode("ascii"))
    if checksum % VAL_SHARE == 0:
        return "val"
    return "train"


def passage(draw: Draw, index: int, split: str) -> Dict[str, Any]:
    """One line of a file: a passage about one person and one place, except for one sentence each."""
    person, other_person = pair(draw, PERSONS, split)
    place, other_place = pair(draw, PLACES, split)
    persons, places = [person] * SENTENCES, [place] * SENTENCES
    persons[draw.below(SENTENCES)] = other_person
    places[draw.below(SENTENCES)] = other_place
    sentences = [f"{who} {draw.pick(DOINGS)} in the {where}." for who, where in zip(persons, places)]
    text = " ".join(sentences[:-1]) + HIGHLIGHT + sentences[-1]
    starts = sorted((text.index(name), name) for name in (person, other_person, place, other_place))
    entities = [{"start": start, "end": start + len(name) - 1} for start, name in starts]
    queries = (
        (draw.pick(PERSON_QUERIES), person),
        (draw.pick(PLACE_QUERIES), place),
    )
    questions = [
        {"idx": 2 * index + number, "query": query, "answers": [{"text": answer}]}
        for number, (query, answer) in enumerate(queries)
    ]
    return {"idx": index, "passage": {"text": text, "entities": entities}, "qas": questions}


def lines(split: str) -> List[Dict[str, Any]]:
    """The lines of one split, without duplicate texts."""
    draw = Draw(SEED + zlib.crc32(split.encode("ascii")) % 1000)
    by_text: Dict[str, Dict[str, Any]] = {}
    while len(by_text) < PASSAGES[split]:
        line = passage(draw, len(by_text), split)
        by_text.setdefault(line["passage"]["text"], line)
    return list(by_text.values())


def vocabulary() -> List[str]:
    """Special tokens, then all words of the set, punctuation and single letters, sorted."""
    text = " ".join((*PERSONS, *PLACES, *DOINGS, *PERSON_QUERIES, *PLACE_QUERIES, "in the"))
    words = set(text.replace("@placeholder", "").replace(".", " . ").lower().split())
    return [*SPECIAL_TOKENS, *sorted(words.union(string.ascii_lowercase, "-"))]


def files() -> Dict[str, str]:
    """The text of each shipped file by its name."""
    contents = {"vocab.txt": "".join(f"{token}\n" for token in vocabulary())}
    for split in PASSAGES:
        rows = (json.dumps(line, separators=(",", ":")) for line in lines(split))
        contents[f"{split}.jsonl"] = "".join(f"{row}\n" for row in rows)
    return contents


def make(folder: Path) -> None:
    """Make everything in an empty folder."""
    common.write(files(), folder)


def check() -> List[str]:
    """The shipped files that are not those of this script."""
    return common.differing(files(), SHIPPED)
