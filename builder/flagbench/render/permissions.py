"""File modes that commands set, and which of them open a file to everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flagbench.render.shell import Call

TALKS = frozenset({"echo", "printf", "grep", "sed", "test", "["})
"""Commands whose words are texts, whatever they say."""
_OCTAL = re.compile(r"[0-7]{1,5}")
_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=][rwxXst]*)+)")
_CHMOD_OPTION = re.compile(r"-(?![rwxXst]+$)")
_WORLD_WRITABLE, _STICKY, _SET_ID = 0o002, 0o1000, 0o6000


def too_open(mode: str) -> bool:
    """Whether a mode, as chmod takes it, lets everybody write without the sticky bit, or sets the user or group id.

    False for what is no mode.
    """
    if _OCTAL.fullmatch(mode):
        bits = int(mode, 8)
        return bool(bits & _SET_ID) or (bool(bits & _WORLD_WRITABLE) and not bits & _STICKY)
    given: set[str] = set()
    for clause in mode.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            return False
        added = "".join(re.findall(r"[+=]([rwxXst]*)", match[2]))
        # Without a `who`, the umask keeps others from writing.
        given |= {who + bit for who in match[1] or "u" for bit in added}
    kinds = {pair[1] for pair in given}
    return "s" in kinds or (bool(given & {"ow", "aw"}) and "t" not in kinds)


def modes(call: Call) -> Iterator[str]:
    """The modes that a command sets: chmod, also behind `find -exec`, `install -m`, `mkdir -m` and umask."""
    names = [word.rpartition("/")[2] for word in call.words]
    if call.name not in TALKS and "chmod" in names:
        operands = (word for word in call.words[names.index("chmod") + 1 :] if not _CHMOD_OPTION.match(word))
        yield next(operands, "")
    if call.name == "umask" and re.fullmatch(r"[0-7]+", mask := "".join(call.words[1:2])) and not int(mask, 8) & 2:
        yield "a+rwx"
    if call.name in ("install", "mkdir"):
        for word, following in zip(call.words, (*call.words[1:], ""), strict=True):
            if word in ("-m", "--mode"):
                yield following
            elif match := re.fullmatch(r"(?:-m|--mode=)(.+)", word):
                yield match[1]
