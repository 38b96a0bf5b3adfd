"""How Kubernetes rewrites `$` in arguments and environment values, and how a value passes unchanged.

`$(NAME)` becomes the value of NAME, or stays as it is where there is no such variable; `$$` becomes `$`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def escape(text: str) -> str:
    """`text` written so that the container gets `text`."""
    return text.replace("$", "$$")


def expand(text: str, environment: Mapping[str, str]) -> str:
    """What the container gets for `text`, given the variables defined before it."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else environment.get(name, match[0])

    return _REFERENCE.sub(replaced, text)
