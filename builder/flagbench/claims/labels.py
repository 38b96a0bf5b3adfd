"""What a published row's own words say: its label, its list of changed settings, its layout."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_DIGITS = {**dict(zip("一二三四五六七八九十", range(1, 11), strict=True)), "单": 1, "两": 2, "双": 2}
_WORD = rf"(\d{{1,7}}|[{''.join(_DIGITS)}])"
_MACHINES = re.compile(rf"{_WORD}\s*机\s*(?:{_WORD}\s*卡)?")
_GRID = re.compile(r"(?<![\w.])(\d{1,4})x(\d{1,4})(?![\w.])|(?<=[A-Za-z0-9])x(\d{1,4})x(\d{1,4})(?!\d)")
_LAYOUT = re.compile(r"(?<![A-Za-z])(dp|tp|pp)(\d{1,7})", re.IGNORECASE)
_SETTING = re.compile(r"(\w+)=")
_NAMES = {
    "bs": "batch_size",
    "local_batchsize": "batch_size",
    "lr": "learning_rate",
    "gas": "gradient_accumulation_steps",
}


@dataclass(frozen=True)
class Label:
    """A device and its numbers as a label has them; None for what it does not say."""

    device: str
    grid: int | None
    """Devices by `(2x8)`."""
    cards: int | None
    """The number before the word for cards."""


def read_label(text: str) -> Label:
    """FlagPerf's labels of machines, cards and `(2x8)`, and its file names: `config_A100x2x8`."""
    shown = unicodedata.normalize("NFKC", text)
    words, grid = _MACHINES.search(shown), _GRID.search(shown)
    first = min((match.start() for match in (words, grid) if match), default=len(shown))
    return Label(
        device=re.split(r"[|(]", shown[:first])[0].strip(),
        grid=int(grid[1] or grid[3]) * int(grid[2] or grid[4]) if grid else None,
        cards=_count(words[2]) if words and words[2] else None,
    )


def named_settings(text: str) -> set[str]:
    """The conditions that a list of changed hyper-parameters names, such as `bs=16, lr=1e-05`."""
    return {_NAMES.get(name, name) for name in _SETTING.findall(text.lower())}


def read_layout(text: str) -> dict[str, int]:
    """`dp1 tp4 pp8` as degrees by name."""
    return {name.lower(): int(degree) for name, degree in _LAYOUT.findall(text)}


def _count(word: str) -> int:
    return _DIGITS.get(word) or int(word)
