"""Prints and writes the output of commands: pages, JSON for scripts, errors and notes on stderr, and files."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flagbench.console.page import Block, render
from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.system.files import expanded, reason, require_replaceable, write_atomically
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact
from flagbench_core.scratch import scratch

Item = TypeVar("Item")
_COUNT_INTERVAL = 5.0
"""Seconds between two lines of `counted`."""
_KIB = 1024
"""Bytes of a KiB; also KiB of a MiB, and so on."""


def print_error(message: str, remedy: str) -> None:
    """Print what is wrong and what to do about it on stderr, without credentials.

    Control characters are shown as numbers.
    """
    lines = f"error: {redact(message)}\nfix: {redact(remedy)}".split("\n")
    print("\n".join(map(visible, lines)), file=sys.stderr)


def print_note(text: str) -> None:
    """Print a line on stderr, so that stdout holds the result alone. Control characters are shown as numbers."""
    print(visible(text), file=sys.stderr)


def counted(items: Iterable[Item], total: int, activity: str) -> Iterator[Item]:
    """Yield the items. Every few seconds a line on stderr says how many of `total` are done: `ACTIVITY: 7 of 9`."""
    next_note = time.monotonic() + _COUNT_INTERVAL
    for number, item in enumerate(items, 1):
        yield item
        if time.monotonic() > next_note:
            print_note(f"flagbench: {activity}: {number:,} of {total:,}")
            next_note = time.monotonic() + _COUNT_INTERVAL


def echo_json(value: Any) -> None:
    """Print one JSON document, indented, keys in the order they were given, invisible characters escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    _print_json(_escape_invisible(text))


def echo_json_text(text: str) -> None:
    """Print a stored JSON document byte for byte; on a terminal, with invisible characters escaped."""
    if sys.stdout.isatty():
        text = _escape_invisible(text)
    _print_json(text)


def _print_json(text: str) -> None:
    """Print JSON. If stdout's encoding lacks a character, escape it as JSON does."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = _escape(text, str.isascii)
    print(text)


def _escape_invisible(text: str) -> str:
    """A JSON document with controls, bidirectional marks and the like escaped; only its strings can contain them."""
    return _escape(text, _is_visible)


def _is_visible(character: str) -> bool:
    return character.isprintable() or character in "\t\n\r"


def _escape(text: str, is_kept: Callable[[str], bool]) -> str:
    """A JSON document in which characters for which `is_kept` is false are escaped as in JSON's strings."""
    characters = []
    for character in text:
        if is_kept(character):
            characters.append(character)
        else:
            characters.append(json.dumps(character)[1:-1])  # without its quotation marks
    return "".join(characters)


def size_text(count: float) -> str:
    """A number of bytes as text: `512 B`, `3.4 KiB`, `12.0 GiB`."""
    if count < _KIB:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= _KIB
        if count < _KIB:
            return f"{count:.1f} {unit}"
    return f"{count / _KIB:.1f} GiB"


def check_outputs(outputs: Mapping[str, Path | None], new: Collection[str] = ()) -> None:
    """Raise FlagbenchError (USAGE) unless all files can be written: finding out later would cost a run.

    Two options must not name one file, which would be overwritten.

    Args:
        outputs: the files by option; None: the option was not given.
        new: the options whose files must not exist.
    """
    options: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        _check_output(expanded(path), option, is_new=option in new)
        file = os.path.realpath(expanded(path))
        if file in options:
            raise FlagbenchError(f"{options[file]} and {option} are both {file!r}", remedy="name two files")
        options[file] = option


def _check_output(path: Path, option: str, *, is_new: bool) -> None:
    """Raise FlagbenchError (USAGE) unless the file that an option names can be written."""
    try:
        require_replaceable(path)
        if is_new and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it exists already")
        _check_folder(path)
    except (OSError, ValueError) as error:
        cause = str(error)
        if isinstance(error, OSError):
            cause = reason(error)
        raise FlagbenchError(f"{option} {str(path)!r} cannot be used: {cause}", remedy="name another file") from error


def _check_folder(path: Path) -> None:
    """Raise OSError unless a file can be written in the nearest existing folder above a path."""
    existing = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        # Write one: although the mode allows it, a read-only mount or a full disk may refuse.
        with scratch(str(existing), ".flagbench-") as folder:
            (Path(folder) / "probe").write_bytes(b"probe")
    except OSError as error:
        raise OSError(error.errno, f"{existing} takes no file: {reason(error)}") from error


def write_output(path: Path, content: bytes) -> None:
    """Write a file that a command was asked for, and its folder. Raises FlagbenchError (NOT_STORED)."""
    path = expanded(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise FlagbenchError(
            f"{path} cannot be written: {reason(error)}",
            remedy="name another place that you can write to, or free some space",
            code=ExitCode.NOT_STORED,
        ) from error


def print_page(*blocks: Block, wide: bool = False) -> None:
    """Print tables and lines on stdout, with a blank line between them. `wide`: tables in full on a terminal, too."""
    print(render(blocks, wide=wide), end="")
