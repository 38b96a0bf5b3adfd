"""A page of text and aligned tables: fitted to a terminal's width, whole in a pipe; no boxes."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from flagbench.console.terminal import visible

_GAP = "  "
_NARROWEST = 12
"""Columns that are cut keep at least this many characters."""
_WIDEST = 200
"""Longer cells overflow their column, so that a cell of megabytes does not pad every row."""

_SGR = {"bold green": "1;32", "bold red": "1;31", "bold yellow": "1;33", "bold": "1"}
"""The styles of a page as the numbers of an ANSI escape sequence."""


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns; those in `right` are set flush right.

    On a terminal too narrow for it, cells in `short` become their shorter text, then the columns in `cut` are
    shortened, then those in `drop` are left out one after the other. A column in neither, like that of the ids, is
    always shown in full. `styles` are by the whole text of a cell. The title is a line above the columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
    styles: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    cut: Sequence[str] = ()
    drop: Sequence[str] = ()
    title: str = ""


@dataclass(frozen=True)
class Lines:
    """Lines of text, with a style for all of them. On a terminal they wrap between words, not in `a command`."""

    lines: tuple[str, ...]
    style: str = ""


Block = Table | Lines
"""A part of a page."""


def render(blocks: Sequence[Block], stream: TextIO | None = None, *, wide: bool = False) -> str:
    """Blocks as text for `stream` (default stdout), a blank line between them; each line and cell is `visible`.

    A block without lines or rows is left out.
    Styles are for a terminal, unless NO_COLOR or TERM=dumb says otherwise. With `wide` tables are shown in full on a
    terminal too, as they always are in a pipe.
    """
    out = sys.stdout if stream is None else stream
    terminal = out.isatty()
    colour = terminal and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size().columns if terminal and not wide else None
    ellipsis = "\N{HORIZONTAL ELLIPSIS}" if "utf" in (out.encoding or "").lower() else "..."
    shown = ("\n".join(_lines(block, width, ellipsis, colour=colour)) for block in filled(blocks))
    return "\n\n".join(shown) + "\n"


def filled(blocks: Iterable[Block]) -> list[Block]:
    """Those with lines or rows."""
    return [block for block in blocks if (block.lines if isinstance(block, Lines) else block.rows)]


def _lines(block: Block, width: int | None, ellipsis: str, *, colour: bool) -> Iterable[str]:
    if isinstance(block, Lines):
        lines: list[str] = []
        for line in block.lines:
            lines += _wrapped(visible(line), width)
        return [_styled(line, block.style, colour=colour) for line in lines]
    shown = [[visible(cell) for cell in row] for row in (block.columns, *block.rows)]
    natural = _natural(block.columns, shown)
    shortened = False
    if width is not None and block.short and _total(natural) > width:
        shown = [[visible(block.short.get(cell, cell)) for cell in row] for row in (block.columns, *block.rows)]
        natural = _natural(block.columns, shown)
        shortened = True
    widths = natural if width is None else _fitted(block, natural, width)
    lines = [_styled(visible(block.title), "bold", colour=colour)] if block.title else []
    for row in shown:
        texts = []
        for name, cell in zip(block.columns, row, strict=True):
            if (space := widths.get(name)) is None:
                continue
            text = _shortened(cell, space, ellipsis) if space < natural[name] else cell
            padding = " " * (space - _cells(text))
            text = _styled(text, block.styles.get(cell, ""), colour=colour)
            texts.append(padding + text if name in block.right else text + padding)
        lines.append(_GAP.join(texts).rstrip())
    missing = [name for name in block.columns if name not in widths]
    if missing or shortened or widths != natural:
        what = f"left out: {', '.join(missing)}" if missing else "cut to the terminal"
        lines.append(f"({what}; --wide shows everything)")
    return lines


def _natural(columns: Sequence[str], shown: Sequence[Sequence[str]]) -> dict[str, int]:
    """How wide each column is."""
    return {
        name: min(_WIDEST, max(map(_cells, column)))
        for name, column in zip(columns, zip(*shown, strict=True), strict=True)
    }


def _with_text(table: Table) -> set[str]:
    """The first column, and those in which a row has more than a placeholder."""
    columns = zip(table.columns, zip(*table.rows, strict=True), strict=True)
    return {table.columns[0]} | {name for name, cells in columns if not {*cells} <= {"", "-"}}


def _wrapped(line: str, width: int | None) -> list[str]:
    """A line in pieces of at most `width` characters, broken at spaces that are not between backquotes."""
    if width is None or _cells(line) <= width:
        return [line]
    joined = re.sub("`[^`]*`", lambda quoted: quoted[0].replace(" ", "\0"), line)
    pieces = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [piece.replace("\0", " ") for piece in pieces]


def _total(widths: Mapping[str, int]) -> int:
    """How many characters columns take, with the gaps between them."""
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _fitted(table: Table, natural: Mapping[str, int], width: int) -> dict[str, int]:
    """The columns that are shown in `width` characters, each with its own. Those without any text go first."""
    filled = _with_text(table) if _total(natural) > width else {*natural}
    widths = {name: space for name, space in natural.items() if name in filled}
    for name in ("", *table.drop):
        widths = {column: natural[column] for column in widths if column != name}
        excess = _total(widths) - width
        for column in sorted(widths.keys() & set(table.cut), key=lambda c: natural[c], reverse=True):
            if excess > 0:
                least = min(natural[column], max(_NARROWEST, _cells(column)))
                saved = min(excess, natural[column] - least)
                widths[column] -= saved
                excess -= saved
        if excess <= 0:
            break
    return widths


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes: two for a Chinese character, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _shortened(text: str, space: int, ellipsis: str) -> str:
    if _cells(text) <= space:
        return text
    text = text[:space]
    while text and _cells(text) + len(ellipsis) > space:
        text = text[:-1]
    return text + ellipsis


def _styled(text: str, style: str, *, colour: bool) -> str:
    return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if colour and style and text else text
