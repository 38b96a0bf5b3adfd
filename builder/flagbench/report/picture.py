"""Pictures as SVG that ask no host for anything: a verdict as `flagbench verify` prints it, and badges."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from flagbench.record.model import Record
from flagbench.report.tables import verdict_table
from flagbench.verify import VerifyResult

_COLUMNS = 116
_CHARACTER, _PADDING, _HEIGHT = 6.6, 8, 20
"""Pixels: the width of a character of 11 px, the space beside a text, and the height of a badge."""
# Rich names its home page and loads its font from a host; a reader's monospaced font will do.
_EXTERNAL = re.compile(r"<!--.*?-->\s*|@font-face \{.*?\}\s*", re.DOTALL)


def verdict_svg(records: Sequence[Record], result: VerifyResult, command: str) -> str:
    """The output of `command` as SVG, without references to anything outside the file. Deterministic."""
    console = Console(width=_COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    shown = verdict_table(records, result, stream=io.StringIO(), colour=True)
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    console.print(Text.from_ansi(shown.rstrip("\n")))
    svg = console.export_svg(title="flagbench", theme=MONOKAI, unique_id="verdict")
    return _EXTERNAL.sub("", svg).replace("Fira Code, monospace", "monospace")


def badge(label: str, value: str) -> str:
    """A badge of a label and a value; `textLength` gives the texts their width in any font."""
    left, right = (round(len(text) * _CHARACTER) + 2 * _PADDING for text in (label, value))
    texts = "".join(
        f'<text x="{x}" y="14" textLength="{width - 2 * _PADDING}">{escape(text)}</text>'
        for text, x, width in ((label, _PADDING, left), (value, left + _PADDING, right))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img">'
        f"<title>{escape(label)}: {escape(value)}</title>"
        f'<rect width="{left + right}" height="{_HEIGHT}" rx="3" fill="#2b5797"/>'
        f'<rect width="{left}" height="{_HEIGHT}" rx="3" fill="#444"/>'
        f'<g fill="#fff" font-family="monospace" font-size="11">{texts}</g></svg>\n'
    )
