"""Where blocks of tokens begin in a sequence of documents: the only function that cases need of the compiled
extension of Megatron-Core's datasets, which its wheel 0.8 lacks for Python 3.8."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import numpy as np

_EXTENSION = "megatron.core.datasets.helpers"


def provide() -> None:
    """Let Megatron-Core find the function here, unless it has its own."""
    try:
        importlib.import_module(_EXTENSION)
    except ImportError:
        extension: Any = types.ModuleType(_EXTENSION)
        extension.build_sample_idx = build
        sys.modules[_EXTENSION] = extension


def build(
    sizes: Any, documents: Any, length: int, epochs: int, tokens: int, drop_last: bool = True, further: int = 1
) -> Any:
    """The place of each block's first token: int64 [blocks + 1, 2], an index into `documents` and an offset there.

    Args:
        sizes: int32, tokens of every document.
        documents: int32, the documents one after the other, each once for every epoch.
        length: tokens from the start of one block to that of the next.
        tokens: of an epoch.
        drop_last: must be true: the rest at the end, shorter than a block, is dropped.
        further: tokens at the end of a block that are also the first ones of the next.
    """
    assert drop_last
    starts = np.concatenate([[0], np.cumsum(np.asarray(sizes)[np.asarray(documents)], dtype=np.int64)])
    places = np.arange((epochs * tokens - further) // length + 1, dtype=np.int64) * length
    at = np.searchsorted(starts, places, side="right") - 1
    return np.stack([at, places - starts[at]], axis=1)
