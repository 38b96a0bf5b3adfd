"""File modes as chmod takes them: which of them open a file to everybody."""

from __future__ import annotations

import re

_OCTAL = re.compile(r"[0-7]{1,5}")
_CLAUSE = re.compile(r"(?P<who>[ugoa]*)(?P<changes>(?:[-+=][rwxXst]*)+)")
_CHANGE = re.compile(r"([-+=])([rwxXst]*)")
_WORLD_WRITABLE, _STICKY, _SET_ID = 0o002, 0o1000, 0o6000


def too_open(mode: str) -> bool:
    """Whether a mode lets everybody write without the sticky bit, or sets the user or the group id.

    False for what is no mode.
    """
    if _OCTAL.fullmatch(mode):
        bits = int(mode, 8)
        return bool(bits & _SET_ID) or (bool(bits & _WORLD_WRITABLE) and not bits & _STICKY)
    clauses = [_CLAUSE.fullmatch(clause) for clause in mode.split(",")]
    given = {(who, bit) for clause in clauses if clause for who, bit in _given(clause)}
    if None in clauses:
        return False
    world_writable = bool({("o", "w"), ("a", "w")} & given)
    sticky = any(bit == "t" for _, bit in given)
    return any(bit == "s" for _, bit in given) or (world_writable and not sticky)


def _given(clause: re.Match[str]) -> list[tuple[str, str]]:
    """Who is given which bit. Without a `who`, the umask keeps others from writing."""
    return [
        (who, bit)
        for operator, bits in _CHANGE.findall(clause["changes"])
        if operator != "-"
        for who in clause["who"] or "u"
        for bit in bits
    ]
