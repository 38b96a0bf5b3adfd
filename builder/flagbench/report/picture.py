"""A verdict as a picture: what `flagbench verify` prints on a terminal, as SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from flagbench.record.model import Record
from flagbench.report.tables import verdict_table
from flagbench.verify import VerifyResult

_COLUMNS = 116
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
