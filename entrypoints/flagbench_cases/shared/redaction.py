"""Removes secrets that arguments and addresses may contain, before they get into a record or a log."""

from __future__ import annotations

import re
from typing import Iterable

from flagbench_core import redaction

ADDRESS = re.compile(r"[A-Za-z0-9+.-]{1,64}:/[^\s'\"]*")
"""A URL, or the end of one with a longer scheme: without the bound, a long word would take quadratic time."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without credentials.

    User and query are removed from every URL. Every other credential, and each of `secrets`, is replaced by `***`.
    """
    without_users = ADDRESS.sub(lambda match: _strip_address(match.group()), text)
    return redaction.redact(without_users, secrets)


def _strip_address(address: str) -> str:
    """A URL without user, password and query.

    Everything before the last @ is user and password, which may contain slashes; but the path of a file:// URL may
    contain @.
    """
    scheme, separator, rest = re.split(r"(:/+)", address, maxsplit=1)
    if scheme.lower() != "file":
        rest = rest.rpartition("@")[2]
    return scheme + separator + rest.split("?", 1)[0]


def option_names(argv: list[str]) -> list[str]:
    """The names of the options among arguments that could not be parsed: anything else may be a misplaced secret."""
    return [argument.split("=", 1)[0] for argument in argv if argument.startswith("-")]
