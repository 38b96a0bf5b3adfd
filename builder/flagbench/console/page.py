"""Renders pages of text and aligned tables: fitted to the width of a terminal, in full in a pipe.

Commands make blocks, `Table` and `Lines`, and print them with output.print_page.
"""

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
"""The space between two columns."""
_NARROWEST = 24
"""The characters that a column that wraps keeps at least; also, its longest word. Narrower text is hard to read."""
_WIDEST = 200
"""The most characters of a column. Longer cells overflow it, so that a cell of megabytes does not pad every row."""
_PLACEHOLDERS = ("", "-")
"""The texts of a cell that has no value."""
_SGR = {"bold green": "1;32", "bold red": "1;31", "bold yellow": "1;33", "bold": "1"}
"""The styles of a page as the numbers of an ANSI escape sequence."""


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns.

    On a terminal that is too narrow, the table is changed in these steps until it fits: columns without any text are
    left out, cells become shorter (`short`), columns wrap (`wrap`), columns are left out (`drop`), and columns move
    below the rows (`below`). Text is never cut, and columns that a reader decides by are never in `drop`.
    """

    columns: Sequence[str]
    """The names of the columns, which are their headings."""
    rows: Sequence[Sequence[str]]
    """The cells of each row, in the order of the columns."""
    right: frozenset[str] = frozenset()
    """The columns that are set flush right."""
    styles: Mapping[str, str] = field(default_factory=dict)
    """The styles of cells, keys of _SGR, by the whole text of a cell."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Shorter texts of cells, by their whole text."""
    wrap: Sequence[str] = ()
    """The columns whose cells may take several lines, broken between words."""
    drop: Sequence[str] = ()
    """The columns that may be left out, the first one first."""
    below: Sequence[str] = ()
    """The columns that may move to a line under each row, the first one first."""
    title: str = ""
    """A line above the columns; empty for none."""


@dataclass(frozen=True)
class Lines:
    """Lines of text. On a terminal they wrap between words, but not within `a command`."""

    lines: tuple[str, ...]
    style: str = ""
    """The style of all lines, a key of _SGR; empty for none."""


Block = Table | Lines
"""A part of a page."""


def render(blocks: Sequence[Block], stream: TextIO | None = None, *, wide: bool = False) -> str:
    """The text of blocks for `stream` (default stdout), with a blank line between them.

    Each line and cell is made `visible`. Blocks without lines or rows are left out. Styles are for a terminal, unless
    NO_COLOR or TERM=dumb is set. Tables are fitted to a terminal, unless `wide` asks for them in full.
    """
    if stream is None:
        stream = sys.stdout
    is_terminal = stream.isatty()
    colour = is_terminal and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    width = None  # unlimited
    if is_terminal and not wide:
        width = shutil.get_terminal_size().columns
    texts = []
    for block in without_empty_blocks(blocks):
        lines = _block_lines(block, width, colour=colour)
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


def without_empty_blocks(blocks: Iterable[Block]) -> list[Block]:
    """The blocks that have lines or rows."""
    return [block for block in blocks if not _is_empty(block)]


def _is_empty(block: Block) -> bool:
    if isinstance(block, Lines):
        return not block.lines
    return not block.rows


def without_empty_columns(table: Table) -> Table:
    """The table without the columns in which no row has a value; the first column stays in any case."""
    indices = [0]
    for index in range(1, len(table.columns)):
        if any(row[index] not in _PLACEHOLDERS for row in table.rows):
            indices.append(index)
    columns = [table.columns[index] for index in indices]
    rows = []
    for row in table.rows:
        rows.append([row[index] for index in indices])
    return dataclasses.replace(table, columns=columns, rows=rows)


def width_of(table: Table) -> int:
    """The number of characters that a table takes in full."""
    return _total_width(_full_layout(table).widths)


def _block_lines(block: Block, width: int | None, *, colour: bool) -> list[str]:
    if isinstance(block, Table):
        return _table_lines(block, width, colour=colour)
    lines: list[str] = []
    for line in block.lines:
        lines += wrap_text(visible(line), width)
    return [_styled(line, block.style, colour=colour) for line in lines]


@dataclass(frozen=True)
class _Layout:
    """How the cells of a table are shown."""

    heading: Mapping[str, str]
    """The printed heading of each column, by its name."""
    rows: Sequence[Mapping[str, str]]
    """The printed cells of each row, by the names of their columns."""
    widths: Mapping[str, int]
    """The width in characters of each column that is shown in the rows, in order."""
    wrapped: frozenset[str] = frozenset()
    """The columns that are narrower than their text."""
    below: Sequence[str] = ()
    """The columns on the lines under the rows, in order."""
    left_out: Sequence[str] = ()
    """The columns that have text and are not shown."""
    is_abbreviated: bool = False
    """Whether cells are shown by their shorter text."""


def _table_lines(table: Table, width: int | None, *, colour: bool) -> list[str]:
    """The lines of a table in `width` characters, with a last line that says if something is not shown."""
    layout = _choose_layout(table, width)
    lines = []
    if table.title:
        lines.append(_styled(visible(table.title), "bold", colour=colour))
    lines += _row_lines(layout, layout.heading, table, colour=colour)
    for row in layout.rows:
        lines += _row_lines(layout, row, table, colour=colour)
        lines += _lines_below(layout, row, width)
    if layout.left_out:
        lines.append(f"(left out: {', '.join(layout.left_out)}; --wide shows everything)")
    elif layout.is_abbreviated:
        lines.append("(shortened; --wide shows everything)")
    return lines


def _choose_layout(table: Table, width: int | None) -> _Layout:
    """The layout of a table in `width` characters; None: in full."""
    full_layout = _full_layout(table)
    if width is None or _total_width(full_layout.widths) <= width:
        return full_layout
    table = without_empty_columns(table)
    layout = _full_layout(table)
    if _total_width(layout.widths) > width and table.short:
        layout = _abbreviated_layout(table)
    return _narrow_layout(layout, table, width)


def _abbreviated_layout(table: Table) -> _Layout:
    """The layout of a table in full, except for cells that have a shorter text."""
    rows = []
    for row in table.rows:
        rows.append([table.short.get(cell, cell) for cell in row])
    layout = _full_layout(dataclasses.replace(table, rows=rows))
    return dataclasses.replace(layout, is_abbreviated=True)


def _narrow_layout(layout: _Layout, table: Table, width: int) -> _Layout:
    """A layout in `width` characters: columns wrap, then are left out, then move below the rows."""
    full_widths = dict(layout.widths)
    least_widths = {name: _least_width(layout, name) for name in table.wrap if name in full_widths}
    widths = _shrink(full_widths, least_widths, width)
    for name in (*table.drop, *table.below):
        if _total_width(widths) <= width:
            break
        if name in full_widths:
            del full_widths[name]
            widths = _shrink(full_widths, least_widths, width)
    below = []
    left_out = []
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


def _full_layout(table: Table) -> _Layout:
    """The layout of a table with every column as wide as its text, at most `_WIDEST`."""
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
    """The fewest characters that a column can take without a break inside a word."""
    longest = 0
    for row in (layout.heading, *layout.rows):
        for word in _words(row[name]):
            longest = max(longest, _display_width(word.lstrip(" ")))
    return min(layout.widths[name], max(_NARROWEST, longest))


def _shrink(full_widths: Mapping[str, int], least_widths: Mapping[str, int], width: int) -> dict[str, int]:
    """The widths of columns after shrinking them until they fit into `width`, if possible.

    Only the columns in `least_widths` shrink, and not below these widths; the widest column first.
    """
    widths = dict(full_widths)
    while _total_width(widths) > width:
        shrinkable = [name for name in widths if widths[name] > least_widths.get(name, widths[name])]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda name: widths[name])
        widths[widest] -= 1
    return widths


def _row_lines(layout: _Layout, row: Mapping[str, str], table: Table, *, colour: bool) -> list[str]:
    """The lines of a row: as many as the cell that wraps most has."""
    lines_of_cells = [_cell_lines(layout, name, row[name], table, colour=colour) for name in layout.widths]
    height = max(map(len, lines_of_cells))
    for lines, cell_width in zip(lines_of_cells, layout.widths.values(), strict=True):
        missing_lines = height - len(lines)
        lines += [" " * cell_width] * missing_lines
    return [_GAP.join(parts).rstrip() for parts in zip(*lines_of_cells, strict=True)]


def _cell_lines(layout: _Layout, name: str, cell: str, table: Table, *, colour: bool) -> list[str]:
    """The lines of a cell, padded to the width of its column."""
    cell_width = layout.widths[name]
    texts = [cell]
    if name in layout.wrapped:
        texts = wrap_text(cell, cell_width)
    lines = []
    for text in texts:
        padding = " " * (cell_width - _display_width(text))
        styled = _styled(text, table.styles.get(cell, ""), colour=colour)
        if name in table.right:
            lines.append(padding + styled)
        else:
            lines.append(styled + padding)
    return lines


def _lines_below(layout: _Layout, row: Mapping[str, str], width: int | None) -> list[str]:
    """The lines under a row: the cells of the columns that moved there, as `name: text; name: text`."""
    texts = []
    for name in layout.below:
        if row[name] not in _PLACEHOLDERS:
            texts.append(f"{name.lower()}: {row[name]}")
    if not texts or width is None:
        return []
    return [_GAP + line for line in wrap_text("; ".join(texts), width - len(_GAP))]


def wrap_text(text: str, width: int | None) -> list[str]:
    """Break a text between words into lines of at most `width` characters. A longer word gets a line for itself."""
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


def _total_width(widths: Mapping[str, int]) -> int:
    """The number of characters that columns take, with the gaps between them."""
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _display_width(text: str) -> int:
    """The columns of a terminal that a text takes: two for a Chinese character, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    if unicodedata.east_asian_width(character) in ("W", "F"):  # wide, full-width
        return 2
    return 1


def _styled(text: str, style: str, *, colour: bool) -> str:
    """A text with the escape sequences of a style, if there is a style and `colour` is allowed."""
    if not text or not style or not colour:
        return text
    return f"\x1b[{_SGR[style]}m{text}\x1b[0m"
