"""samsum: dialogues with summaries, as one stream of tokens divided into blocks.

The archive has train.json, val.json and test.json, each a list of {"id", "dialogue", "summary"}. The publisher trains
on the first; the second is for validation.
"""

import json
import os
from typing import Any, Callable, List, NamedTuple, Tuple

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
        raise DataError("there is no folder %s" % folder, "set --data to the folder with samsum and MMLU")
    for place in PLACES:
        path = os.path.normpath(os.path.join(folder, place))
        if any(os.path.exists(os.path.join(path, name)) for name in FILES.values()):
            return path
    for place in PLACES:
        archive = os.path.normpath(os.path.join(folder, place, ARCHIVE))
        if os.path.exists(archive):
            raise DataError(
                "%s is still packed" % archive, "unpack it first: 7z x -o%s %s" % (os.path.dirname(archive), archive)
            )
    raise DataError(
        "%s has no %s of samsum" % (folder, " or ".join(FILES.values())),
        "put the files of samsum's %s into its folder samsum_dataset" % ARCHIVE,
    )


def read(path: str) -> List[Tuple[str, str]]:
    """(dialogue, summary) of each entry of one JSON file. Raises DataError naming the file and the entry."""
    try:
        with open_file(path, encoding="utf-8") as file:
            entries = json.load(file)
    except FileNotFoundError:
        raise DataError("%s does not exist" % path, "unpack all of samsum's %s there" % ARCHIVE) from None
    except UnicodeDecodeError as error:
        raise DataError("%s is not UTF-8 (%s)" % (path, error), "unpack %s again" % ARCHIVE) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            "%s cannot be read (%s)" % (path, error), "unpack %s again: it is truncated or not JSON" % ARCHIVE
        ) from None
    if not isinstance(entries, list) or not entries:
        raise DataError("%s is not a list of dialogues" % path, "unpack %s again" % ARCHIVE)
    return [_pair(path, number, entry) for number, entry in enumerate(entries, start=1)]


def _pair(path: str, number: int, entry: Any) -> Tuple[str, str]:
    texts = [entry.get(key) if isinstance(entry, dict) else None for key in ("dialogue", "summary")]
    if not all(map(is_text, texts)):
        raise DataError(
            "%s: entry %d has no valid texts `dialogue` and `summary`" % (path, number), "unpack %s again" % ARCHIVE
        )
    return texts[0], texts[1]  # type: ignore[return-value]


def prompt(dialogue: str, summary: str) -> str:
    """The published text of an example, without the final </s>."""
    return "Summarize this dialog:\n%s\n---\nSummary:\n%s" % (dialogue, summary)


def cut(
    path: str,
    pairs: List[Tuple[str, str]],
    vocabulary: Vocabulary,
    length: int,
    report: Callable[[str, int, int], None],
) -> Blocks:
    """Concatenate all examples, each between <s> and </s>, in the file's order, and divide them into blocks of
    `length`.

    The rest is dropped, as published.
    """
    stream: List[np.ndarray] = []
    what = "tokenise %s" % os.path.basename(path)
    for index, pair in enumerate(pairs):
        stream.append(np.array([BOS] + vocabulary.encode(prompt(*pair)) + [EOS], dtype=np.int32))
        if index % 500 == 499:
            report(what, index + 1, len(pairs))
    report(what, len(pairs), len(pairs))
    tokens = np.concatenate(stream)
    count = len(tokens) // length
    if count == 0:
        raise DataError(
            "%s has only %d tokens, fewer than a block of %d" % (path, len(tokens), length), "use the complete samsum"
        )
    return Blocks(tokens[: count * length].reshape(count, length), len(pairs), len(tokens))
