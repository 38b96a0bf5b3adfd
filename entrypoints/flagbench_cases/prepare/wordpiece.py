"""Reads WordPiece vocabularies: vocab.txt of BERT's checkpoints, with a token on every line."""

from __future__ import annotations

from typing import Sequence

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

REMEDY = "use the unmodified vocab.txt of the checkpoint"
MAX_TOKEN_LENGTH = 60
"""Most characters of a token that an error shows."""


def read_vocabulary(path: str, special: Sequence[str]) -> dict[str, int]:
    """Read the tokens with their ids. Raises DataError for a duplicate, and if a token in `special` is missing."""
    try:
        with open_file(path, encoding="utf-8", newline="\n") as file:
            tokens = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error})", REMEDY) from error
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        first_index = vocabulary.setdefault(token, index)
        if first_index != index:
            unquoted = ascii(token)[1:-1][:MAX_TOKEN_LENGTH]
            raise DataError(f"{path} has {unquoted} twice, in lines {first_index + 1} and {index + 1}", REMEDY)
    missing = [token for token in special if token not in vocabulary]
    if missing:
        names = ", ".join(missing)
        raise DataError(f"{path} has no token {names}", REMEDY)
    return vocabulary
