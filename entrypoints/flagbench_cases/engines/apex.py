"""Hides an Apex without kernels from the libraries that would use it.

Apex is NVIDIA's library of kernels, which the publishers used. Built from its source without a compiler, it is Python
code alone: it can be imported, but raises RuntimeError when a kernel is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

EXTENSION = "amp_C"
"""An extension that Apex has whenever it has any CUDA extension."""
UNUSABLE = "not used: its CUDA extensions cannot be imported"
"""Why Apex is not used, as a record states it."""


def hide_if_unusable() -> str | None:
    """Let later imports of Apex fail as if it were not installed, if it has no CUDA extensions.

    Other libraries import it, too, and handle ImportError alone. Returns UNUSABLE; None if Apex is usable or not
    installed.
    """
    if "apex" not in sys.modules and importlib.util.find_spec("apex") is None:
        return None
    try:
        importlib.import_module(EXTENSION)
    except ImportError:
        sys.modules["apex"] = None  # type: ignore[assignment]  # an import of it then raises ImportError
        return UNUSABLE
    return None
