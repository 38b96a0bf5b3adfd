"""samsum: dialogues with summaries, as one stream of tokens divided into blocks.

The archive has train.json, val.json and test.json, each a list of {"id", "dialogue", "summary"}. The publisher trains
on the first; the second is for validation.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, NamedTuple

import numpy as np

from flagbench_cases.prepare.json_lines import is_text
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS, Vocabulary
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

FILES = {"train": "train.json", "validation": "val.json"}
# Numbers of dialogues in the published archive.
PUBLISHED = {"train": 14732, "validation": 818}
# Where the files may be in a data folder; samsum_dataset is the publisher's name.
PLACES = (".", "samsum_dataset", "samsum", "corpus")
ARCHIVE = "corpus.7z"


class Blocks(NamedTuple):
    """Blocks int32 [n, L], the number of dialogues, and their number of tokens including the dropped rest."""

    blocks: np.ndarray
    dialogues: int
    tokens: int


def find(folder: str) -> str:
    """The folder with the JSON files, in a data folder. Raises DataError."""
    if not os.path.isdir(folder):
        raise DataError(f"there is no folder {folder}", "set --data to the folder with samsum and MMLU")
    for place in PLACES:
        path = os.path.normpath(os.path.join(folder, place))
        if any(os.path.exists(os.path.join(path, name)) for name in FILES.values()):
            return path
    for place in PLACES:
        archive = os.path.normpath(os.path.join(folder, place, ARCHIVE))
        if os.path.exists(archive):
            raise DataError(
                f"{archive} is still packed", f"unpack it first: 7z x -o{os.path.dirname(archive)} {archive}"
            )
    raise DataError(
        f"{folder} has no {' or '.join(FILES.values())} of samsum",
        f"put the files of samsum's {ARCHIVE} into its folder samsum_dataset",
    )


def read(path: str) -> list[tuple[str, str]]:
    """(dialogue, summary) of each entry of one JSON file. Raises DataError naming the file and the entry."""
    try:
        with open_file(path, encoding="utf-8") as file:
            entries = json.load(file)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", f"unpack all of samsum's {ARCHIVE} there") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error})", f"unpack {ARCHIVE} again") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({error})", f"unpack {ARCHIVE} again: it is truncated or not JSON"
        ) from None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path} is not a list of dialogues", f"unpack {ARCHIVE} again")
    return [_pair(path, number, entry) for number, entry in enumerate(entries, start=1)]


def _pair(path: str, number: int, entry: Any) -> tuple[str, str]:
    if isinstance(entry, dict):
        dialogue, summary = entry.get("dialogue"), entry.get("summary")
        if is_text(dialogue) and is_text(summary):
            return dialogue, summary  # type: ignore[return-value]
    raise DataError(f"{path}: entry {number} has no valid texts `dialogue` and `summary`", f"unpack {ARCHIVE} again")


def prompt(dialogue: str, summary: str) -> str:
    """The published text of an example, without the final </s>."""
    return f"Summarize this dialog:\n{dialogue}\n---\nSummary:\n{summary}"


def cut(
    path: str,
    pairs: list[tuple[str, str]],
    vocabulary: Vocabulary,
    length: int,
    report: Callable[[str, int, int], None],
) -> Blocks:
    """Concatenate all examples, each between <s> and </s>, in the file's order, and divide them into blocks of
    `length`.

    The rest is dropped, as published.
    """
    stream: list[np.ndarray] = []
    what = f"tokenise {os.path.basename(path)}"
    for index, pair in enumerate(pairs):
        stream.append(np.array([BOS] + vocabulary.encode(prompt(*pair)) + [EOS], dtype=np.int32))
        if index % 500 == 499:
            report(what, index + 1, len(pairs))
    report(what, len(pairs), len(pairs))
    tokens = np.concatenate(stream)
    count = len(tokens) // length
    if count == 0:
        raise DataError(
            f"{path} has only {len(tokens)} tokens, fewer than a block of {length}", "use the complete samsum"
        )
    return Blocks(tokens[: count * length].reshape(count, length), len(pairs), len(tokens))
