"""Removes secrets that arguments may contain, before they get into a record or log."""

from __future__ import annotations

import re
from typing import Iterable

from flagbench_core import redaction

# The end of a long scheme is sufficient; without the bound, a long word would take quadratic time.
ADDRESS = re.compile(r"[A-Za-z0-9+.-]{1,64}:/[^\s'\"]*")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with user and query removed from every URL, and every other credential, and each of `secrets`,
    replaced by `***`."""
    return redaction.redact(ADDRESS.sub(lambda match: _address(match.group()), text), secrets)


def _address(address: str) -> str:
    """Everything before the last @ is user and password, which may contain slashes; a file:// path may contain @."""
    scheme, separator, rest = re.split(r"(:/+)", address, maxsplit=1)
    if scheme.lower() != "file":
        rest = rest.rpartition("@")[2]
    return scheme + separator + rest.split("?", 1)[0]


def option_names(argv: list[str]) -> list[str]:
    """Only the option names of arguments that could not be parsed: anything else may be a misplaced secret."""
    return [argument.split("=", 1)[0] for argument in argv if argument.startswith("-")]
