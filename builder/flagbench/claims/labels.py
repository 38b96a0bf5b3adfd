"""What a publisher's own words say: the label of a configuration, a list of changed settings, a case's name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flagbench.catalog.model import Case
from flagbench.claims.columns import column
from flagbench.claims.numbers import is_blank

_DIGITS = {"\u5355": 1, "\u4e00": 1, "\u4e8c": 2, "\u4e24": 2, "\u53cc": 2, "\u4e09": 3, "\u56db": 4, "\u4e94": 5} | {
    **{"\u516d": 6, "\u4e03": 7, "\u516b": 8, "\u4e5d": 9, "\u5341": 10}
}
_WORD = rf"(\d{{1,7}}|[{''.join(_DIGITS)}])"
_MACHINES = re.compile(rf"{_WORD}\s*\u673a\s*(?:{_WORD}\s*\u5361)?")
_ENGLISH = re.compile(
    r"(\d{1,7})\s*(?:nodes?|machines?|hosts?)\s*[x\u00d7,]?\s*(\d{1,7})?\s*(?:gpus?|cards?|devices?)?", re.I
)
_GRID = re.compile(r"(?<![\w.])(\d{1,4})\s*[x\u00d7]\s*(\d{1,4})(?![\w.])|(?<=[A-Za-z0-9])x(\d{1,4})x(\d{1,4})(?!\d)")
_COUNT = re.compile(
    r"(?<![\w.])(\d{1,5})\s*[x\u00d7*]\s*(?=[A-Za-z])|(?<=[A-Za-z0-9])\s+[x\u00d7*]\s*(\d{1,5})(?![\w.])"
)
_CARDS = re.compile(rf"{_WORD}\s*(?:gpus?|cards?|devices?|accelerators?|\u5361)", re.I)
_LAYOUT = re.compile(r"(?<![A-Za-z])(dp|tp|pp)\s*[=:]?\s*(\d{1,7})", re.I)
_SETTING = re.compile(r"([^\s,;=:()\[\]]+(?: [A-Za-z]+)?)\s*[=:]\s*([^\s,;]+)")

PRECISIONS = {
    **dict.fromkeys(("fp32", "float32", "f32", "single", "fp32 (ieee)"), "fp32"),
    **dict.fromkeys(("tf32", "tensorfloat32", "tensorfloat-32"), "tf32"),
    **dict.fromkeys(("fp16", "float16", "f16", "half", "16bit", "16-bit"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("amp", "mixed", "mixed precision", "autocast"), "amp"),
    **dict.fromkeys(("fp8", "float8"), "fp8"),
}


@dataclass(frozen=True)
class Shape:
    """Nodes and devices as a label has them; None for what it does not say."""

    device: str = ""
    nodes: int | None = None
    devices: int | None = None
    cards: int | None = None
    """The number that stands before the word for cards."""


def read_label(text: str) -> Shape:
    """`A100 1x8`, `8 x A100`, `2 nodes x 8 GPUs`, FlagPerf's labels of machines, cards and `(2x8)`, its file names.

    A label that has both a grid and words is read by its grid; its `cards` then shows whether the words agree.
    """
    shown = unicodedata.normalize("NFKC", text)
    words = _MACHINES.search(shown)
    grid = _GRID.search(shown)
    nodes = devices = cards = None
    if words:
        nodes = _count(words[1])
        cards = _count(words[2]) if words[2] else None
        devices = cards
    if grid:
        nodes = int(grid[1] or grid[3])
        devices = nodes * int(grid[2] or grid[4])
    elif not words and (english := _ENGLISH.search(shown)):
        nodes = int(english[1])
        devices = nodes * int(english[2]) if english[2] else None
    elif not words and (count := _COUNT.search(shown)):
        devices = int(count[1] or count[2])
    elif not words and (count := _CARDS.search(shown)):
        devices = _count(count[1])
    starts = [match.start() for match in (words, grid, _ENGLISH.search(shown), _CARDS.search(shown)) if match]
    device = re.sub(r"(?i)^config_", "", shown[: min(starts)] if starts else _COUNT.sub(" ", shown))
    return Shape(re.split(r"[,;|(]", device)[0].strip(" _-"), nodes, devices, cards)


def read_settings(text: str) -> dict[str, str]:
    """`bs=16, lr=1e-05` as conditions by name; what is not known is left out."""
    found: dict[str, str] = {}
    for name, value in _SETTING.findall(unicodedata.normalize("NFKC", text)):
        known = column(name)
        if known and not is_blank(value):
            found.setdefault(known.field, value.rstrip(")"))
    return found


def read_layout(text: str) -> dict[str, int]:
    """`TP8PP4DP1` as degrees by name."""
    return {name.lower(): int(degree) for name, degree in _LAYOUT.findall(text)}


def read_precision(text: str) -> str:
    """A precision by the name the manifests have; unchanged where it is not one of those."""
    lowered = unicodedata.normalize("NFKC", text).strip().lower()
    if lowered in PRECISIONS:
        return PRECISIONS[lowered]
    first = re.match(r"[a-z]*\d*", lowered)
    return PRECISIONS.get(first[0] if first else "", lowered)


def find_case(text: str, cases: Mapping[str, Case]) -> Case | None:
    """The case that a publisher's name of a model means: `llama2_70B`, `DistilBERT SST-2`, `glm:pytorch`; or None."""
    words = re.findall(r"[a-z0-9]+", unicodedata.normalize("NFKC", text).lower())
    starts = {"".join(words[:count]) for count in range(1, len(words) + 1)}
    aliases = {alias: case for case in cases.values() for alias in _aliases(case)}
    best = max(starts & aliases.keys(), key=len, default=None)
    return None if best is None else aliases[best]


def _aliases(case: Case) -> Iterable[str]:
    names = [case.name, case.published["path"].split("/")[2], str(case.presets["reference"]["model"]["name"])]
    names += [case.title.split()[0]]
    # `llama2-70b` is one name; `aquila` alone means the only case of that family.
    family = re.split(r"[-_\d]", case.name)[0]
    if family not in ("llama",):
        names.append(family)
    return {re.sub(r"[^a-z0-9]", "", name.lower()) for name in names}


def _count(word: str) -> int:
    return _DIGITS.get(word) or int(word)
