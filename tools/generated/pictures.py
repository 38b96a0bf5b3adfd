"""Pictures as SVG that ask no host for anything: what a command prints."""

from __future__ import annotations

import re
import textwrap
from html import escape

from flagbench.report.verdict_page import STYLES

_COLUMNS = 116
_CHARACTER, _LINE, _PADDING = 6.6, 15, 8
"""Pixels: the width of a character of 11 px, the height of a line, the space beside a text."""
_COLOURS = {"bold green": "#a6e22e", "bold red": "#f92672", "bold yellow": "#fd971f", "bold": "#f8f8f2"}
_VERDICTS = re.compile("|".join(rf"\b{word}\b" for word in STYLES))


def terminal_svg(printed: str, command: str) -> str:
    """The output of `command` on a terminal of _COLUMNS, with its verdicts in colour. Deterministic."""
    lines: list[str] = []
    for line in (f"$ {command}", *printed.splitlines()):
        lines += textwrap.wrap(line, _COLUMNS) or [""]
    texts = []
    for number, line in enumerate(lines, 1):
        if line:
            text = _text(line, _PADDING, _LINE * number + _PADDING)
            texts.append(_VERDICTS.sub(_coloured, text))
    width, height = round(_COLUMNS * _CHARACTER) + 2 * _PADDING, _LINE * len(lines) + 3 * _PADDING
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="monospace" font-size="11" fill="#fff">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#282828"/>\n{"".join(texts)}</svg>\n'
    )


def _coloured(verdict: re.Match[str]) -> str:
    return f'<tspan fill="{_COLOURS[STYLES[verdict[0]]]}" font-weight="bold">{verdict[0]}</tspan>'


def _text(text: str, x: int, y: int) -> str:
    """A text whose `textLength` gives it its width in any font."""
    width = round(len(text) * _CHARACTER)
    return f'<text x="{x}" y="{y}" textLength="{width}" xml:space="preserve">{escape(text)}</text>\n'
