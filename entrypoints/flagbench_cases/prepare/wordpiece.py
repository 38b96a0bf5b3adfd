"""WordPiece vocabularies: vocab.txt of BERT's checkpoints, a token on every line."""

from __future__ import annotations

from typing import Sequence

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

REMEDY = "use the unmodified vocab.txt of the checkpoint"


def read_vocabulary(path: str, special: Sequence[str]) -> dict[str, int]:
    """The tokens with their ids. Raises DataError for a duplicate, and if one of `special` is missing."""
    try:
        with open_file(path, encoding="utf-8", newline="\n") as file:
            tokens = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error})", REMEDY) from error
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        first = vocabulary.setdefault(token, index)
        if first != index:
            text = ascii(token)[1:-1][:60]
            raise DataError(f"{path} has {text} twice, in lines {first + 1} and {index + 1}", REMEDY)
    missing = [token for token in special if token not in vocabulary]
    if missing:
        names = ", ".join(missing)
        raise DataError(f"{path} has no token {names}", REMEDY)
    return vocabulary
