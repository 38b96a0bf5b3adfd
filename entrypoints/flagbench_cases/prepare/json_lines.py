"""Texts in JSON lines, as they are published: an object with `text` on every line."""

import json
import os
from typing import Iterator, Optional, Tuple

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

REMEDY = "correct or remove the line, or download the file again"


def texts(path: str, required: bool) -> Iterator[Tuple[int, int, str]]:
    """The bytes read, the bytes of the file, and the text of every line.

    Empty lines are skipped, and lines without `text` unless it is `required`. Raises DataError naming the line.
    """
    try:
        total, done = os.stat(path).st_size, 0
        with open_file(path, "rb") as file:
            for number, line in enumerate(file, 1):
                done += len(line)
                text = _text("%s, line %d," % (path, number), line, required) if line.strip() else None
                if text is not None:
                    yield done, total, text
    except OSError as error:
        raise DataError("%s cannot be read (%s)" % (path, error.strerror), "give JSON lines with `text`") from None


def is_text(value: object) -> bool:
    """Whether a value is text that tokenizers accept: JSON may have lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _text(where: str, line: bytes, required: bool) -> Optional[str]:
    try:
        entry = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError("%s is not JSON (%s)" % (where, error), REMEDY) from None
    text = entry.get("text") if isinstance(entry, dict) else None
    if (required or text is not None) and not is_text(text):
        raise DataError("%s has no valid `text`" % where, REMEDY)
    return text
