"""The tiny set of DistilBERT: labelled sentences in the shape of SST-2, from the grammar in distilbert_text.py.

They are the same in all Python versions.
"""

import re
import string
import zlib
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

from tools.tiny import common
from tools.tiny import distilbert_text as grammar
from tools.tiny.common import Draw

SHIPPED = common.CASES / "distilbert" / "tiny"
SEED = 20
SIZES = {"train": 6000, "dev": 800}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# One in DEV_SHARE templates is used for dev.
DEV_SHARE = 5
LONG_SUBJECT_CHANCE = 0.3
ASIDE_CHANCE = 0.3
OPENER_CHANCE = 0.15
TAIL_CHANCE = 0.15
# Probability of a negated predicate in constructions that do not determine it.
NEGATED_MAIN_CLAUSE = 0.25
NEGATED_CLAUSE_OF_PAIR = 0.1

# A slot, with the polarity of its word if it has one: {A+}, {A-}.
SLOT = re.compile(r"\{(\w)([+-]?)\}")
POSITIVE = 1


class Example(NamedTuple):
    """A sentence, its label (0 negative, 1 positive), the template it was filled from and its split."""

    sentence: str
    label: int
    template: str
    split: str


def _turn(pattern: str, polarity: int) -> str:
    """The pattern with the polarity (0 or 1) added to its polar slots."""
    sign = "+" if polarity == POSITIVE else "-"
    return re.sub(r"\{([AVvT])\}", rf"{{\g<1>{sign}}}", pattern)


def _subject(draw: Draw) -> str:
    if draw.chance(LONG_SUBJECT_CHANCE):
        return draw.pick(grammar.LONG_SUBJECTS)
    return draw.pick(grammar.SHORT_SUBJECTS)


def _predicate(draw: Draw, label: int, negated_chance: float) -> str:
    """A predicate that expresses `label`: with a word of that polarity, or with a negated word of the other."""
    if draw.chance(negated_chance):
        return _turn(draw.pick(grammar.FLIPS), 1 - label)
    return _turn(draw.pick(grammar.HOLDS), label)


def plain(draw: Draw, label: int) -> str:
    """One clause with the polarity of its polar word."""
    return f"{_subject(draw)} {_predicate(draw, label, 0.0)}"


def negation(draw: Draw, label: int) -> str:
    """One clause whose predicate negates its polar word."""
    return f"{_subject(draw)} {_predicate(draw, label, 1.0)}"


def _report(draw: Draw, reports: Sequence[str], polarity: int) -> str:
    reported = draw.pick(grammar.REPORTED).replace("{subject}", _subject(draw))
    aside = draw.pick(grammar.ASIDES) if draw.chance(ASIDE_CHANCE) else ""
    return _join(draw.pick(reports), aside, _turn(reported, polarity))


def report(draw: Draw, label: int) -> str:
    """A speaker affirms a clause."""
    return _report(draw, grammar.REPORTS_HOLD, label)


def distant_negation(draw: Draw, label: int) -> str:
    """A speaker denies a clause: the cue at the start negates a word much later in the sentence."""
    return _report(draw, grammar.REPORTS_FLIP, 1 - label)


def relative_clause(draw: Draw, label: int) -> str:
    """A relative clause contradicts the main predicate, which determines the label."""
    against = "{A-}" if label == POSITIVE else "{A+}"
    subject = draw.pick(grammar.DISTRACTING_SUBJECTS).replace("{B}", against)
    return f"{subject} {_predicate(draw, label, NEGATED_MAIN_CLAUSE)}"


def _pair(draw: Draw, frames: Sequence[str], conceded_label: int, label: int) -> str:
    """Two clauses: {d} expresses `label`, {c} `conceded_label`; at most one is about the film as a whole."""
    first = draw.pick(grammar.WHOLE_SUBJECTS + grammar.PART_SUBJECTS)
    second = draw.pick(grammar.PART_SUBJECTS)
    subjects = (first, second) if draw.chance(0.5) else (second, first)
    deciding, conceded = (
        f"{subject} {_predicate(draw, polarity, NEGATED_CLAUSE_OF_PAIR)}"
        for subject, polarity in zip(subjects, (label, conceded_label))
    )
    return draw.pick(frames).replace("{d}", deciding).replace("{c}", conceded)


def agreement(draw: Draw, label: int) -> str:
    """Two clauses that agree."""
    return _pair(draw, grammar.AGREEMENTS, label, label)


def contrast(draw: Draw, label: int) -> str:
    """X but Y: the second clause determines the label."""
    return _pair(draw, grammar.CONTRASTS, 1 - label, label)


def concession_first(draw: Draw, label: int) -> str:
    """Although X, Y: the second clause determines the label."""
    return _pair(draw, grammar.CONCESSIONS_FIRST, 1 - label, label)


def concession_last(draw: Draw, label: int) -> str:
    """Y even though X: the first clause determines the label."""
    return _pair(draw, grammar.CONCESSIONS_LAST, 1 - label, label)


# Number of sentences of each construction per hundred. Counting words only gives the right label for the first three.
CONSTRUCTIONS: Tuple[Tuple[Callable[[Draw, int], str], int], ...] = (
    (plain, 34),
    (report, 10),
    (agreement, 14),
    (negation, 14),
    (distant_negation, 9),
    (relative_clause, 4),
    (contrast, 4),
    (concession_first, 6),
    (concession_last, 5),
)


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _fill(draw: Draw, pattern: str) -> str:
    """The pattern with its slots filled: the same film throughout, and no other word twice."""
    film = draw.pick(grammar.NEUTRAL["N"])
    used: Set[str] = set()

    def word(match: "re.Match[str]") -> str:
        slot, sign = match.groups()
        if slot == "N":
            return film
        words = grammar.POLAR[slot][sign == "+"] if sign else grammar.NEUTRAL[slot]
        chosen = draw.pick([candidate for candidate in words if candidate not in used])
        used.add(chosen)
        return chosen

    return SLOT.sub(word, pattern)


def split_of(template: str) -> str:
    """The split of a template, determined by a checksum and so independent of the order of drawing."""
    if zlib.crc32(template.encode()) % DEV_SHARE == 0:
        return "dev"
    return "train"


def _example(draw: Draw, construction: Callable[[Draw, int], str], label: int) -> Example:
    pattern = construction(draw, label)
    unfilled = SLOT.sub(r"{\1}", pattern)
    template = f"{construction.__name__}: {unfilled}"
    opener = draw.pick(grammar.OPENERS) if draw.chance(OPENER_CHANCE) else ""
    tail = draw.pick(grammar.TAILS) if draw.chance(TAIL_CHANCE) else ""
    sentence = _fill(draw, _join(opener, pattern, tail, "."))
    return Example(sentence, label, template, split_of(template))


def generate() -> Iterator[Example]:
    """All examples of both splits, train first, without duplicates; the same in all Python versions.

    A template is a construction and its pattern with unfilled slots, without opener and tail: sentences that differ
    only in these share a template and therefore a split.
    """
    draw = Draw(SEED)
    sentences: Set[str] = set()
    kinds: List[Callable[[Draw, int], str]] = []
    for construction, share in CONSTRUCTIONS:
        kinds += [construction] * share
    for split, size in SIZES.items():
        for index in range(size):
            # 37 and 100 are coprime: a hundred steps use every share once, in mixed order. The label alternates with
            # each step and with each hundred, so that every construction gets both labels equally often.
            construction = kinds[index * 37 % len(kinds)]
            label = (index + index // len(kinds)) % 2
            example = _example(draw, construction, label)
            while example.split != split or example.sentence in sentences:
                example = _example(draw, construction, label)
            sentences.add(example.sentence)
            yield example


def files() -> Dict[str, str]:
    """The text of each shipped file by its name."""
    examples = list(generate())
    words = set(string.ascii_lowercase).union(*(example.sentence.split() for example in examples))
    contents = {"vocab.txt": "".join(f"{token}\n" for token in (*SPECIAL_TOKENS, *sorted(words)))}
    for split in SIZES:
        rows = ["sentence\tlabel\n"]
        for example in examples:
            if example.split == split:
                rows.append(f"{example.sentence}\t{example.label}\n")
        contents[f"{split}.tsv"] = "".join(rows)
    return contents


def make(folder: Path) -> None:
    """Make everything in an empty folder."""
    common.write(files(), folder)


def check() -> List[str]:
    """The shipped files that are not those of this script."""
    return common.differing(files(), SHIPPED)
