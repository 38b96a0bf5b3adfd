"""Taking credentials out of what an engine or a package manager prints, before anybody keeps it."""

from __future__ import annotations

import re

# The user part of a URL, which reaches to the last `@` before the path.
_USERINFO = re.compile(r"(?<=://)[^\s/?#'\"<>]+(?=@)")


def redact(text: str) -> str:
    """The text with the user part of every URL replaced: `https://***@host/`."""
    return _USERINFO.sub("***", text) if "@" in text else text
