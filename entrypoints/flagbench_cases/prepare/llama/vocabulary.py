"""Tokenises text with the checkpoint's sentencepiece model.

transformers' tokenizer is not used: given only tokenizer.model, version 4 adds <s> and version 5 does not. Here the
ids are those of sentencepiece, and callers add <s> and </s>.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import open_file

UNK = 0
BOS = 1
EOS = 2
LLAMA2_SHA256 = "9e556afd44213b6bd1be2b850ebbbd98f5481437a8021afaf58ee7fb1818d347"
"""sha256 of the tokenizer.model of Llama and Llama 2; 499,723 bytes."""
VOCABULARY_REMEDY = "set --vocabulary to the tokenizer.model of the checkpoint"


class Vocabulary:
    """A sentencepiece model like Llama's: ids 0, 1, 2 are <unk>, <s>, </s>."""

    def __init__(self, path: str, pieces: int) -> None:
        """Read a tokenizer.model, or the one in a checkpoint folder.

        `pieces`: the rows of the model's embedding. Raises DataError if the file has another number of pieces, and
        UsageError if sentencepiece is not installed.
        """
        self.path = path
        if os.path.isdir(path):
            self.path = os.path.join(path, "tokenizer.model")
        self.pieces = pieces
        content = _read(self.path)
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._processor = _load(self.path, content)
        self._check()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without <s> and </s>."""
        return self._processor.encode(text)  # type: ignore[no-any-return]

    @property
    def is_llama2(self) -> bool:
        """Whether it is the file of Llama 2."""
        return self.sha256 == LLAMA2_SHA256

    def _check(self) -> None:
        pieces = self._processor.get_piece_size()
        if pieces != self.pieces:
            raise DataError(f"{self.path} has {pieces} pieces, but the model has {self.pieces}", VOCABULARY_REMEDY)
        special = (self._processor.unk_id(), self._processor.bos_id(), self._processor.eos_id())
        if special != (UNK, BOS, EOS):
            ids = ", ".join(map(str, special))
            raise DataError(
                f"{self.path} has the ids {ids} for <unk>, <s> and </s>, but Llama has 0, 1 and 2",
                VOCABULARY_REMEDY,
            )


def _read(path: str) -> bytes:
    try:
        with open_file(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", VOCABULARY_REMEDY) from None


def _load(path: str, content: bytes) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise UsageError(
            "tokenising text requires sentencepiece, which is not installed",
            "prepare in the image of this case (--via docker), or pip install sentencepiece",
        ) from None
    try:
        if not content:  # sentencepiece would accept it, and print errors on stderr for every call
            raise ValueError("it is empty")
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise DataError(f"{path} is not a sentencepiece model ({reason})", VOCABULARY_REMEDY) from None
