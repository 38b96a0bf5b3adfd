"""Reads samsum, dialogues with summaries, and tokenises it as one stream of tokens divided into blocks.

The archive has train.json, val.json and test.json, each a list of {"id", "dialogue", "summary"}. The publisher,
FlagPerf, trains on the first; the second is for validation.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np

from flagbench_cases.prepare.json_lines import is_text
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS, Vocabulary
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report, open_file

FILES = {"train": "train.json", "validation": "val.json"}
"""The files of the two sets."""
PUBLISHED = {"train": 14732, "validation": 818}
"""Numbers of dialogues in the published archive."""
FOLDERS = (".", "samsum_dataset", "samsum", "corpus")
"""Where the files may be in a data folder; samsum_dataset is the publisher's name."""
ARCHIVE = "corpus.7z"
"""The name of samsum's published archive."""
REPORT_EVERY = 500
"""Dialogues after which progress is reported."""


class Blocks(NamedTuple):
    """A tokenised set."""

    blocks: np.ndarray
    """int32 [n, L]: n blocks of L token ids."""
    dialogues: int
    """The number of dialogues."""
    tokens: int
    """The number of tokens, including those after the last block, which are dropped."""


class Pair(NamedTuple):
    """An entry of samsum."""

    dialogue: str
    summary: str


def find_folder(folder: str) -> str:
    """Return the folder with the JSON files, which is a data folder or in it. Raises DataError."""
    if not os.path.isdir(folder):
        raise DataError(f"there is no folder {folder}", "set --data to the folder with samsum and MMLU")
    for subfolder in FOLDERS:
        path = os.path.normpath(os.path.join(folder, subfolder))
        if any(os.path.exists(os.path.join(path, name)) for name in FILES.values()):
            return path
    for subfolder in FOLDERS:
        archive = os.path.normpath(os.path.join(folder, subfolder, ARCHIVE))
        if os.path.exists(archive):
            raise DataError(
                f"{archive} is still packed", f"unpack it first: 7z x -o{os.path.dirname(archive)} {archive}"
            )
    raise DataError(
        f"{folder} has no {' or '.join(FILES.values())} of samsum",
        f"put the files of samsum's {ARCHIVE} into its folder samsum_dataset",
    )


def read_pairs(path: str) -> list[Pair]:
    """Read the entries of a JSON file. Raises DataError naming the file and the entry."""
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
    return [_parse_entry(path, number, entry) for number, entry in enumerate(entries, start=1)]


def _parse_entry(path: str, number: int, entry: Any) -> Pair:
    """Return the texts of entry `number` of a file, from its JSON value. Raises DataError."""
    if isinstance(entry, dict):
        dialogue: Any = entry.get("dialogue")
        summary: Any = entry.get("summary")
        if is_text(dialogue) and is_text(summary):
            return Pair(dialogue, summary)
    raise DataError(f"{path}: entry {number} has no valid texts `dialogue` and `summary`", f"unpack {ARCHIVE} again")


def format_example(dialogue: str, summary: str) -> str:
    """Return the published text of an example, without the final </s>."""
    return f"Summarize this dialog:\n{dialogue}\n---\nSummary:\n{summary}"


def cut_into_blocks(
    path: str,
    pairs: list[Pair],
    vocabulary: Vocabulary,
    length: int,
    report: Report,
) -> Blocks:
    """Concatenate all examples, each between <s> and </s>, in the file's order, and divide them into blocks.

    A block has `length` tokens. Tokens after the last complete block are dropped, as published. `path` is the file
    that the pairs are from. Raises DataError if there is not even one block.
    """
    stream: list[np.ndarray] = []
    phase = f"tokenise {os.path.basename(path)}"
    for done, pair in enumerate(pairs, start=1):
        ids = vocabulary.encode(format_example(pair.dialogue, pair.summary))
        stream.append(np.array([BOS] + ids + [EOS], dtype=np.int32))
        if done % REPORT_EVERY == 0:
            report(phase, done, len(pairs))
    report(phase, len(pairs), len(pairs))
    tokens = np.concatenate(stream)
    count = len(tokens) // length
    if count == 0:
        raise DataError(
            f"{path} has only {len(tokens)} tokens, fewer than a block of {length}", "use the complete samsum"
        )
    return Blocks(tokens[: count * length].reshape(count, length), len(pairs), len(tokens))
