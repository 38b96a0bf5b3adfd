"""Computes F1 of a choice, compared with the right answers of its query, as defined by ReCoRD.

Exact match is the publisher's: the choice is one of the right answers as given (ReCoRD's script normalises both). F1
counts tokens with repetitions; `same` is the number of tokens that the choice and one right answer have in common:

    precision = same / tokens of the choice,  recall = same / tokens of the answer,
    F1 = 2 * precision * recall / (precision + recall), 0 if nothing is shared.

The maximum over all right answers is used. For text, tokens are words as normalised by SQuAD: lower case, without
punctuation and the articles a, an and the, split at white space. The published HDF5 has no text: with a vocabulary
its words are assembled from their pieces (`o'neil` becomes two words, since punctuation is a separate piece); without
one the tokens are WordPiece ids. The fact `f1_over` of a prepared folder says which: `words` or `wordpieces`.

Source: Zhang et al., ReCoRD, arXiv:1810.12885, section 5 (metrics as of SQuAD, Rajpurkar et al., arXiv:1606.05250).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Hashable, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_words(text: str) -> list[str]:
    """Return the words of an answer that F1 counts."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def text_of(pieces: Sequence[str]) -> str:
    """Return the lower-case text of WordPieces; a piece that starts with ## continues the previous word."""
    return " ".join(pieces).replace(" ##", "")


def token_f1(choice: Sequence[Hashable], answer: Sequence[Hashable]) -> float:
    """Return F1 of two lists of tokens, from 0 to 1."""
    same = sum((Counter(choice) & Counter(answer)).values())
    if same == 0:
        return 0.0
    precision = same / len(choice)
    recall = same / len(answer)
    return 2 * precision * recall / (precision + recall)


def best_f1(choice: Sequence[Hashable], answers: Sequence[Sequence[Hashable]]) -> float:
    """Return F1 of a choice and the answer that it fits best; 0 without answers."""
    return max((token_f1(choice, answer) for answer in answers), default=0.0)
