"""Exact match, by the publisher's rule, and F1, by ReCoRD's, of a choice against the right answers of its query.

Exact match: the choice is one of the right answers as given (ReCoRD's script normalises both before it compares). F1:
tokens are counted with repeats; with `same` the number of tokens that the choice and one right answer share,

    precision = same / tokens of the choice,  recall = same / tokens of the answer,
    F1 = 2 * precision * recall / (precision + recall), 0 where nothing is shared,

and the best over all right answers counts. Where there is text, tokens are its words as SQuAD normalises them: lower
case, punctuation removed, the articles a, an and the left out, split at white space. Published HDF5 holds no text:
with the vocabulary its words are put together from their pieces, where `o'neil` is two words, as punctuation is a
piece of its own; without it the tokens are WordPiece ids. A prepared folder says which under `f1_over`: `words` or
`wordpieces`.

Source: Zhang et al., ReCoRD, arXiv:1810.12885, section 5 (metrics as of SQuAD, Rajpurkar et al., arXiv:1606.05250).
"""

import re
import string
from collections import Counter
from typing import Hashable, List, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_words(text: str) -> List[str]:
    """The words of an answer that F1 counts."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def text_of(pieces: Sequence[str]) -> str:
    """The lower-cased text of WordPieces; one that begins with ## continues the word before it."""
    return " ".join(pieces).replace(" ##", "")


def token_f1(choice: Sequence[Hashable], answer: Sequence[Hashable]) -> float:
    """F1 of two lists of tokens, 0 to 1."""
    same = sum((Counter(choice) & Counter(answer)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(choice), same / len(answer)
    return 2 * precision * recall / (precision + recall)


def best_f1(choice: Sequence[Hashable], answers: Sequence[Sequence[Hashable]]) -> float:
    """F1 of a choice against the answer that it fits best; 0 without answers."""
    return max((token_f1(choice, answer) for answer in answers), default=0.0)
