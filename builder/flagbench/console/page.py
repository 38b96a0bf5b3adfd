"""A page of text and aligned tables: fitted to a terminal's width, whole in a pipe; no boxes."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from flagbench.console.terminal import visible

_GAP = "  "
_NARROWEST = 24
"""Columns that wrap keep at least this many characters, and their longest word."""
_WIDEST = 200
"""Longer cells overflow their column, so that a cell of megabytes does not pad every row."""

_PLACEHOLDERS = ("", "-")
"""What stands in a cell without a text."""

_SGR = {"bold green": "1;32", "bold red": "1;31", "bold yellow": "1;33", "bold": "1"}
"""The styles of a page as the numbers of an ANSI escape sequence."""


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns; those in `right` are set flush right.

    On a terminal too narrow for it, columns without any text are left out, cells in `short` become their shorter
    text, and those of the columns in `wrap` take several lines, broken between words. Where that is not enough, the
    columns in `drop` are left out one after the other; then those in `below` move, one after the other, from the rows
    to a line under each. What a reader decides by is not in `drop`: it is always there, and no text is ever cut.
    `styles` are by the whole text of a cell. The title is a line above the columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
    styles: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    wrap: Sequence[str] = ()
    drop: Sequence[str] = ()
    below: Sequence[str] = ()
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
    if stream is None:
        stream = sys.stdout
    terminal = stream.isatty()
    colour = terminal and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    width = None
    if terminal and not wide:
        width = shutil.get_terminal_size().columns
    texts = ["\n".join(_lines(block, width, colour=colour)) for block in filled(blocks)]
    return "\n\n".join(texts) + "\n"


def filled(blocks: Iterable[Block]) -> list[Block]:
    """Those with lines or rows."""
    return [block for block in blocks if not _is_empty(block)]


def _is_empty(block: Block) -> bool:
    if isinstance(block, Lines):
        return not block.lines
    return not block.rows


def without_empty_columns(table: Table) -> Table:
    """The table without the columns in which no row has more than a placeholder; its first column stays."""
    kept = [0]
    for place in range(1, len(table.columns)):
        if any(row[place] not in _PLACEHOLDERS for row in table.rows):
            kept.append(place)
    columns = [table.columns[place] for place in kept]
    rows = []
    for row in table.rows:
        rows.append([row[place] for place in kept])
    return dataclasses.replace(table, columns=columns, rows=rows)


def width_of(table: Table) -> int:
    """How many characters the widest row of a table takes, in full."""
    return _total(_in_full(table).widths)


def _lines(block: Block, width: int | None, *, colour: bool) -> list[str]:
    if isinstance(block, Table):
        return _table_lines(block, width, colour=colour)
    lines: list[str] = []
    for line in block.lines:
        lines += wrapped(visible(line), width)
    return [_styled(line, block.style, colour=colour) for line in lines]


@dataclass(frozen=True)
class _Layout:
    """Where the cells of a table are shown. Rows are by column, each cell as it is printed."""

    heading: Mapping[str, str]
    rows: Sequence[Mapping[str, str]]
    widths: Mapping[str, int]
    """Of the columns in the rows, in order: how many characters each takes."""
    wrapped: frozenset[str] = frozenset()
    """Columns narrower than their text."""
    below: Sequence[str] = ()
    """Columns on the lines under the rows, in order."""
    left_out: Sequence[str] = ()
    """Columns that have text and are not shown."""
    abbreviated: bool = False
    """Whether cells are shown by their shorter text."""


def _table_lines(table: Table, width: int | None, *, colour: bool) -> list[str]:
    """A table's title, columns and rows, and what of it is not shown in `width` characters."""
    layout = _layout(table, width)
    lines = []
    if table.title:
        lines.append(_styled(visible(table.title), "bold", colour=colour))
    lines += _row_lines(layout, layout.heading, table, colour=colour)
    for row in layout.rows:
        lines += _row_lines(layout, row, table, colour=colour)
        lines += _lines_below(layout, row, width)
    if layout.left_out:
        lines.append(f"(left out: {', '.join(layout.left_out)}; --wide shows everything)")
    elif layout.abbreviated:
        lines.append("(shortened; --wide shows everything)")
    return lines


def _layout(table: Table, width: int | None) -> _Layout:
    """How a table is shown in `width` characters; whole where that is None."""
    whole = _in_full(table)
    if width is None or _total(whole.widths) <= width:
        return whole
    table = without_empty_columns(table)
    layout = _in_full(table)
    if _total(layout.widths) > width and table.short:
        layout = _abbreviated(table)
    return _narrowed_layout(layout, table, width)


def _abbreviated(table: Table) -> _Layout:
    """A table in full, but for cells that have a shorter text."""
    rows = []
    for row in table.rows:
        rows.append([table.short.get(cell, cell) for cell in row])
    layout = _in_full(dataclasses.replace(table, rows=rows))
    return dataclasses.replace(layout, abbreviated=True)


def _narrowed_layout(layout: _Layout, table: Table, width: int) -> _Layout:
    """A layout in `width` characters: columns wrap, then are left out, then move below the rows."""
    natural = dict(layout.widths)
    least = {name: _least_width(layout, name) for name in table.wrap if name in natural}
    widths = _narrowed(natural, least, width)
    for name in (*table.drop, *table.below):
        if _total(widths) <= width:
            break
        if name in natural:
            del natural[name]
            widths = _narrowed(natural, least, width)
    below, left_out = [], []
    for name in table.columns:
        if name in widths:
            continue
        if name in table.below:
            below.append(name)
        if name in table.drop:
            left_out.append(name)
    return dataclasses.replace(
        layout,
        widths=widths,
        wrapped=frozenset(name for name in widths if widths[name] < layout.widths[name]),
        below=below,
        left_out=left_out,
    )


def _in_full(table: Table) -> _Layout:
    """A table with every column as wide as its text, at most `_WIDEST`."""
    heading = {name: visible(name) for name in table.columns}
    rows = []
    for row in table.rows:
        rows.append(dict(zip(table.columns, map(visible, row), strict=True)))
    widths = {}
    for name in table.columns:
        widest = max(_display_width(row[name]) for row in (heading, *rows))
        widths[name] = min(_WIDEST, widest)
    return _Layout(heading, rows, widths)


def _least_width(layout: _Layout, name: str) -> int:
    """How narrow a column can be without a break inside a word."""
    longest = 0
    for row in (layout.heading, *layout.rows):
        for word in _words(row[name]):
            longest = max(longest, _display_width(word.lstrip(" ")))
    return min(layout.widths[name], max(_NARROWEST, longest))


def _narrowed(natural: Mapping[str, int], least: Mapping[str, int], width: int) -> dict[str, int]:
    """The widths of columns where those in `least`, always the widest first, give way until `width` is enough."""
    widths = dict(natural)
    while _total(widths) > width:
        able = [name for name in widths if widths[name] > least.get(name, widths[name])]
        if not able:
            break
        widths[max(able, key=lambda name: widths[name])] -= 1
    return widths


def _row_lines(layout: _Layout, row: Mapping[str, str], table: Table, *, colour: bool) -> list[str]:
    """A row, as many lines as the cell that wraps most."""
    columns = [_cell_lines(layout, name, row[name], table, colour=colour) for name in layout.widths]
    height = max(map(len, columns))
    for texts, space in zip(columns, layout.widths.values(), strict=True):
        texts += [" " * space] * (height - len(texts))
    return [_GAP.join(texts).rstrip() for texts in zip(*columns, strict=True)]


def _cell_lines(layout: _Layout, name: str, cell: str, table: Table, *, colour: bool) -> list[str]:
    """A cell of a column as lines that fill its width."""
    space = layout.widths[name]
    texts = [cell]
    if name in layout.wrapped:
        texts = wrapped(cell, space)
    lines = []
    for text in texts:
        padding = " " * (space - _display_width(text))
        styled = _styled(text, table.styles.get(cell, ""), colour=colour)
        if name in table.right:
            lines.append(padding + styled)
        else:
            lines.append(styled + padding)
    return lines


def _lines_below(layout: _Layout, row: Mapping[str, str], width: int | None) -> list[str]:
    """The cells of a row that stand under it, as `name: text; name: text`, wrapped between words."""
    texts = []
    for name in layout.below:
        if row[name] not in _PLACEHOLDERS:
            texts.append(f"{name.lower()}: {row[name]}")
    if not texts or width is None:
        return []
    return [_GAP + line for line in wrapped("; ".join(texts), width - len(_GAP))]


def wrapped(text: str, width: int | None) -> list[str]:
    """A text in lines of at most `width` characters. A longer word has a line of its own."""
    if width is None or _display_width(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in _words(text):
        if line and _display_width(line + word) > width:
            lines.append(line)
            line = word.lstrip(" ")
        else:
            line += word
    return [*lines, line]


def _words(text: str) -> list[str]:
    """The words of a text, each with the spaces before it; `a command` is one word."""
    return re.findall(r" *(?:`[^`]*`|[^ ])+", text)


def _total(widths: Mapping[str, int]) -> int:
    """How many characters columns take, with the gaps between them."""
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _display_width(text: str) -> int:
    """How many columns of a terminal a text takes: two for a Chinese character, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 1


def _styled(text: str, style: str, *, colour: bool) -> str:
    if not text or not style or not colour:
        return text
    return f"\x1b[{_SGR[style]}m{text}\x1b[0m"
