"""Reading TOML: the standard library's parser, which Python 3.10 lacks."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load_toml(text: str) -> dict[str, Any]:
    """A TOML document's data. Raises ValueError where it is invalid."""
    data: dict[str, Any] = tomllib.loads(text)
    return data
