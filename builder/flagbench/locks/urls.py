"""URLs of package indexes and distributions, as options give them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from flagbench.errors import FlagbenchError

WEB = ("http", "https")
# What ends a line, a word or a text of a configuration file, or begins a variable.
_UNSAFE = re.compile(r"[\s\"'\\<>^`{|}]")


def check_url(url: str, option: str, schemes: Iterable[str] = WEB) -> str:
    """A URL that is safe in a line of a configuration file. Raises FlagbenchError (usage).

    The URL may hold credentials, so no message repeats it.
    """
    if not _is_safe(url, schemes):
        raise FlagbenchError(
            f"{option} is not a URL of {' or '.join(schemes)}",
            remedy="write it like https://mirror.example/simple; percent-encode what a URL cannot hold",
        )
    return url


def _is_safe(url: str, schemes: Iterable[str]) -> bool:
    if not (url.isascii() and url.isprintable()) or _UNSAFE.search(url):
        return False
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return parts.scheme in schemes and (has_host or parts.scheme == "file")
