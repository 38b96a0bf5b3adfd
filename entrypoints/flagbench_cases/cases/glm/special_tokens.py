"""The ids of the special tokens of a vocabulary of GLM."""

from __future__ import annotations

from typing import NamedTuple


class SpecialTokens(NamedTuple):
    """Ids of the special tokens; the defaults are those of the published vocabulary."""

    pad: int = 0
    cls: int = 101
    mask: int = 103
    sop: int = 30522
    """<|startofpiece|>"""
    eop: int = 30523
    """<|endofpiece|>"""
