"""File modes that commands set, and which of them open a file to everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import basename

from flagbench.render.shell import TALKS, Call

_OCTAL = re.compile(r"([-+=]?)([0-7]{1,5})")
_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+)")
_ACTION = re.compile(r"([-+=])([ugo]|[rwxXst]*)")
_CHMOD_OPTION = re.compile(r"-(?![rwxXstugo0-7][rwxXstugoa0-7,+=-]*$)")
_MODE_OPTION = re.compile(r"(?:-[bcCdDpsTvZ]*m|--mode=)(.*)")
_WORLD_WRITABLE, _STICKY, _SET_ID = 0o002, 0o1000, 0o6000
_BEFORE = 0o775
"""The mode that a symbolic one is taken to change: of a file that its group may write."""
_CLASSES = {"u": (6, 0o4700), "g": (3, 0o2070), "o": (0, 0o1007)}
"""By how much each class's bits are shifted, and all bits that it has a say in."""
_BITS = {"r": 0o444, "w": 0o222, "x": 0o111, "X": 0o111, "s": 0o6000, "t": 0o1000}


def too_open(mode: str) -> bool:
    """Whether a mode, as chmod takes it, lets everybody write without the sticky bit, or sets the user or group id.

    False for what is no mode.
    """
    after = _apply(mode)
    return bool(after & _SET_ID) or bool(after & _WORLD_WRITABLE and not after & _STICKY)


def modes(call: Call) -> Iterator[str]:
    """The modes that a command sets: chmod, also behind `find -exec`, `install -m`, `mkdir -m` and umask."""
    names = [basename(word) for word in call.words]
    if call.name not in TALKS and "chmod" in names:
        operands = (word for word in call.words[names.index("chmod") + 1 :] if not _CHMOD_OPTION.match(word))
        yield next(operands, "")
    if call.name == "umask":
        yield from (_left_by_umask(word) for word in call.words[1:] if word not in ("-S", "-p"))
    if call.name in ("install", "mkdir", "mkfifo", "mknod"):
        for word, following in zip(call.words, (*call.words[1:], ""), strict=True):
            if word == "--mode":
                yield following
            elif option := _MODE_OPTION.fullmatch(word):
                yield option[1] or following


def _apply(mode: str) -> int:
    """What a mode makes of the permissions before, as GNU's chmod reads it; what is no mode changes nothing."""
    if octal := _OCTAL.fullmatch(mode):
        bits = int(octal[2], 8)
        return {"-": _BEFORE & ~bits, "+": _BEFORE | bits}.get(octal[1], bits)
    after = _BEFORE
    for clause in map(_CLAUSE.fullmatch, mode.split(",")):
        if clause is None:
            return _BEFORE
        who = "ugo" if "a" in clause[1] else clause[1]
        # Without a `who`, the umask keeps others from writing.
        reach = sum(_CLASSES[name][1] for name in set(who)) if who else 0o7777 & ~_WORLD_WRITABLE
        for operator, permissions in _ACTION.findall(clause[2]):
            if permissions in _CLASSES and permissions:
                bits = (after >> _CLASSES[permissions][0] & 7) * 0o111
            else:
                bits = sum(_BITS[letter] for letter in set(permissions.replace("X", "x")))
            changed = after & ~(reach if operator == "=" else 0)
            after = changed & ~(bits & reach) if operator == "-" else changed | (bits & reach)
    return after


def _left_by_umask(mask: str) -> str:
    """The mode of what is made under a umask; a symbolic one says what it leaves."""
    if re.fullmatch(r"[0-7]+", mask):
        return "a+rwx" if not int(mask, 8) & _WORLD_WRITABLE else ""
    return re.sub(r"(^|,)(?=[-+=])", r"\1a", mask)
