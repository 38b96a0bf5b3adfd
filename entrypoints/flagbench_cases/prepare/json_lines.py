"""JSON lines, as data sets are published in."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, NamedTuple

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

REMEDY = "download the file again, or correct the line"


class Line(NamedTuple):
    """A line: its place for messages, its content, the bytes read so far, and the bytes of the file."""

    where: str
    content: Any
    done: int
    total: int


def objects(path: str) -> Iterator[Line]:
    """The lines that are not empty. Raises DataError naming a line that is not JSON."""
    try:
        total, done = os.stat(path).st_size, 0
        with open_file(path, "rb") as file:
            for number, line in enumerate(file, 1):
                done += len(line)
                if line.strip():
                    yield Line(f"{path}:{number}", _parse(f"{path}:{number}", line), done, total)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", REMEDY) from None


def texts(path: str, required: bool) -> Iterator[tuple[int, int, str]]:
    """The bytes read, the bytes of the file, and the text of every line.

    Lines without `text` are skipped unless it is `required`. Raises DataError naming the line.
    """
    for line in objects(path):
        text: Any = None
        if isinstance(line.content, dict):
            text = line.content.get("text")
        if text is None and not required:
            continue
        if not is_text(text):
            raise DataError(f"{line.where} has no valid `text`", REMEDY)
        yield line.done, line.total, text


def is_text(value: object) -> bool:
    """Whether a value is text that tokenizers accept: JSON may have lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _parse(where: str, line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON ({error})", REMEDY) from None
