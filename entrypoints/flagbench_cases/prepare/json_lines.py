"""Reads data sets that are published as JSON lines: one JSON value on each line of a file."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, NamedTuple

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

REMEDY = "download the file again, or correct the line"


class Line(NamedTuple):
    """One line of a file."""

    where: str
    """FILE:NUMBER, for messages."""
    content: Any
    """The JSON value."""
    done: int
    """Bytes read so far, this line included."""
    total: int
    """Bytes of the file."""


class TextLine(NamedTuple):
    """The text of one line of a file."""

    done: int
    """Bytes read so far, this line included."""
    total: int
    """Bytes of the file."""
    text: str


def objects(path: str) -> Iterator[Line]:
    """Read the lines that are not empty. Raises DataError naming a line that is not JSON."""
    try:
        total = os.stat(path).st_size
        done = 0
        with open_file(path, "rb") as file:
            for number, line in enumerate(file, 1):
                done += len(line)
                if line.strip():
                    where = f"{path}:{number}"
                    yield Line(where, _parse(where, line), done, total)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", REMEDY) from None


def texts(path: str, required: bool) -> Iterator[TextLine]:
    """Read the field `text` of every line.

    Lines without it are skipped unless it is `required`. Raises DataError naming the line.
    """
    for line in objects(path):
        text: Any = None
        if isinstance(line.content, dict):
            text = line.content.get("text")
        if text is None and not required:
            continue
        if not is_text(text):
            raise DataError(f"{line.where} has no valid `text`", REMEDY)
        yield TextLine(line.done, line.total, text)


def is_text(value: object) -> bool:
    """Return whether a value is text that tokenizers accept. They refuse lone surrogates, which JSON may contain."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _parse(where: str, line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON ({error})", REMEDY) from None
