"""Aquila's tokeniser: byte-level BPE from vocab.json and merges.txt, and the special tokens of special_tokens.txt.

Special tokens follow the vocabulary: [CLS] and </s> of the published files are 100006 and 100007. In a text they are
single tokens. A piece that is not in the vocabulary is token 0. As in the publisher's reader, the first line of
merges.txt is a comment, and what follows the last line break of merges.txt and special_tokens.txt does not count.
"""

import json
import os
from typing import Any, Dict, List

from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import open_file

CLS, EOS = "[CLS]", "</s>"
VOCABULARY, MERGES, SPECIAL = FILES = ("vocab.json", "merges.txt", "special_tokens.txt")
REMEDY = "set --vocabulary to the published folder with vocab.json, merges.txt and special_tokens.txt"


class Tokeniser:
    """Text to token ids."""

    def __init__(self, folder: str, vocab_size: int) -> None:
        """Read the three files of a folder. Raises DataError if they are damaged or not those of a model with
        `vocab_size` tokens."""
        self.folder = folder
        vocabulary = _read_vocabulary(os.path.join(folder, VOCABULARY))
        self._special = _lines(os.path.join(folder, SPECIAL))
        self.size = len(vocabulary) + len(self._special)
        if self.size != vocab_size:
            raise DataError(
                "%s has %d tokens, but the model has %d" % (folder, self.size, vocab_size), "use the model's files"
            )
        for name in (CLS, EOS):
            if name not in self._special:
                raise DataError("%s has no %s" % (os.path.join(folder, SPECIAL), name), REMEDY)
        ids = {name: len(vocabulary) + index for index, name in enumerate(self._special)}
        self.cls, self.eos = ids[CLS], ids[EOS]
        self._bpe = _byte_level_bpe(os.path.join(folder, MERGES), vocabulary, ids)

    @property
    def paths(self) -> List[str]:
        """The files that were read."""
        return [os.path.join(self.folder, name) for name in FILES]

    def encode(self, text: str) -> List[int]:
        """The ids of a text, without [CLS] and </s>."""
        return self._bpe.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]


def _byte_level_bpe(path: str, vocabulary: Dict[str, int], special: Dict[str, int]) -> Any:
    try:
        import tokenizers
        from tokenizers import models, pre_tokenizers
    except ImportError:
        raise UsageError(
            "tokenising text requires the package tokenizers, which is not installed",
            "prepare in the image of this case (--via docker), or pip install tokenizers",
        ) from None
    lines = _lines(path)[1:]
    merges: List[Any] = [tuple(line.split()) for line in lines]
    wrong = next((line for line, pair in zip(lines, merges) if len(pair) != 2), None)
    if wrong is not None:
        raise DataError("%s: %r is not a pair of pieces" % (path, wrong[:80]), REMEDY)
    missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(vocabulary))
    if missing:  # tokenizers would omit what the publisher's reader makes token 0
        raise DataError("the vocabulary has no piece for %d of the 256 bytes" % len(missing), REMEDY)
    unknown = next((pair for pair in merges if "".join(pair) not in vocabulary), None)
    if unknown is not None:
        raise DataError("%s: %s %s gives a piece that is not in the vocabulary" % ((path,) + unknown), REMEDY)
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in special])
    strange = [name for name, index in special.items() if bpe.token_to_id(name) != index]
    if strange:
        raise DataError("%s is a piece of the vocabulary and a special token" % strange[0], REMEDY)
    return bpe


def _read_vocabulary(path: str) -> Dict[str, int]:
    try:
        found = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError("%s is not JSON (%s)" % (path, error), REMEDY) from None
    if not isinstance(found, dict) or sorted(map(_as_index, found.values())) != list(range(len(found))):
        raise DataError("%s does not number its pieces from 0 on" % path, REMEDY)
    return found


def _as_index(value: Any) -> int:
    return value if type(value) is int else -1


def _lines(path: str) -> List[str]:
    """The lines of a file that end with a line break."""
    lines = _read(path).split("\n")[:-1]
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def _read(path: str) -> str:
    try:
        with open_file(path, encoding="utf-8", newline="\n") as file:
            return file.read()  # type: ignore[no-any-return]
    except OSError as error:
        raise DataError("%s cannot be read (%s)" % (path, error.strerror), REMEDY) from None
    except UnicodeDecodeError:
        raise DataError("%s is not UTF-8" % path, REMEDY) from None
