"""Apex, whose kernels the publishers used. Built from its source without a compiler, it is Python code alone: then it
can be imported, but raises RuntimeError where a kernel is needed."""

from __future__ import annotations

import importlib
import importlib.util
import sys

EXTENSION = "amp_C"
"""Built whenever any of Apex's CUDA extensions is."""
UNUSABLE = "not used: its CUDA extensions cannot be imported"


def hide_if_unusable() -> str | None:
    """Without its CUDA extensions, let later imports of Apex fail as if it were not installed, those of other
    libraries too, which handle ImportError alone. Returns why; None if it is usable or not installed."""
    if "apex" not in sys.modules and importlib.util.find_spec("apex") is None:
        return None
    try:
        importlib.import_module(EXTENSION)
    except ImportError:
        sys.modules["apex"] = None  # type: ignore[assignment]
        return UNUSABLE
    return None
