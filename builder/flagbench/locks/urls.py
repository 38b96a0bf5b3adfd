"""Addresses of packages: what may be one, and whose account goes with which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from flagbench.errors import FlagbenchError

WEB = ("http", "https")
_PORTS = {"http": 80, "https": 443}
# What ends a line, a word or a text of a configuration file, or begins a variable.
_UNSAFE = re.compile(r"[\s\"'\\<>^`{|}]")
_INDEX_NAME = re.compile(r"[A-Za-z0-9_.-]+=(?=[A-Za-z][A-Za-z0-9+.-]*://)")

Origin = tuple[str, str, int]
"""Scheme, host and port: an account is for one of these, and never leaves it."""


def check_url(url: str, option: str, schemes: Iterable[str] = WEB) -> str:
    """A URL that is safe in a line of a configuration file. Raises FlagbenchError (usage).

    The URL may hold credentials, so no message repeats it.
    """
    usable = url.isprintable() and url.isascii() and not _UNSAFE.search(url)
    if usable:
        try:
            parts = urlsplit(url)
            named = bool(parts.hostname) and (parts.port or 1) > 0
            usable = parts.scheme in schemes and (named or parts.scheme == "file")
        except ValueError:
            usable = False
    if not usable:
        raise FlagbenchError(
            f"{option} is not a URL of {' or '.join(schemes)}",
            remedy="write it like https://mirror.example/simple; percent-encode what a URL cannot hold",
        )
    return url


def origin(url: str) -> Origin | None:
    """What an account of this address is for; None where there is no host to have one."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port else None


def index_urls(environment: Mapping[str, str]) -> list[str]:
    """The indexes that an environment names to uv, the default one first; their URLs may hold accounts."""
    urls = [*environment.get("UV_DEFAULT_INDEX", "").split(), *environment.get("UV_INDEX", "").split()]
    return [_INDEX_NAME.sub("", url, count=1) for url in urls]
