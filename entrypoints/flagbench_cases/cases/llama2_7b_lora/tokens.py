"""The vocabulary of the case: Llama's, and its tokens for the answers of MMLU."""

from typing import List

from flagbench_cases.prepare.llama import vocabulary
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS, UNK, VOCABULARY_REMEDY
from flagbench_cases.shared.errors import DataError

__all__ = ["BOS", "CHOICES", "EOS", "UNK", "VOCABULARY_REMEDY", "Vocabulary"]

CHOICES = ("A", "B", "C", "D")


class Vocabulary(vocabulary.Vocabulary):
    """Also knows the tokens of the letters A to D."""

    def __init__(self, path: str, pieces: int) -> None:
        """Raises DataError also if a letter has no piece."""
        super().__init__(path, pieces)
        self.answer_tokens = self._answers()

    def _answers(self) -> List[int]:
        """The ids of A to D, as used by the publisher: the first id of each letter as a separate text."""
        ids = [self.encode(letter)[0] for letter in CHOICES]
        if len(set(ids)) < len(CHOICES) or UNK in ids:
            raise DataError("%s has no separate pieces for the letters A to D" % self.path, VOCABULARY_REMEDY)
        return ids
