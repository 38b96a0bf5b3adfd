"""Reads locks of the format before pylock.toml, a requirements file; the next version will not."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.locks.model import NO_BASE, Lock, LockEntry, Unresolved
from flagbench.locks.pylock import NOT_EDITED, PIN, SHA256, checked

_HEADER = re.compile(r"# Made by .*\n# stack: (\S+)\n# python: (\S+)\n# base: (\S+)@(\S+)\n# inputs: (\S+)\n")
_ENTRY = re.compile(rf"^{PIN.pattern} \\\n(?P<hashes>(?:    --hash={SHA256.pattern}(?: \\)?\n)+)", re.MULTILINE)
_UNRESOLVED = re.compile(rf"^# unresolved: {PIN.pattern} \((?P<reason>[^\r\n]+)\)$", re.MULTILINE)


def parse_requirements(text: str, source: Path) -> Lock:
    """The lock in the text of a requirements file, which does not name the files of packages.

    Raises FlagbenchError (usage): a line is not as `flagbench lock` wrote it.
    """
    if header := _HEADER.match(text):
        stack, python, image, digest, inputs = header.groups()
        lock = Lock(
            stack=stack,
            python=python,
            base_image=None if image == NO_BASE else image,
            base_digest=None if digest == "unresolved" else digest,
            inputs=inputs,
            entries=tuple(
                LockEntry(found["name"], found["version"], tuple(SHA256.findall(found["hashes"])))
                for found in _ENTRY.finditer(text)
            ),
            unresolved=tuple(
                Unresolved(found["name"], found["version"], reason=found["reason"])
                for found in _UNRESOLVED.finditer(text)
            ),
        )
        # Every line was read if and only if they can all be written again.
        with suppress(ValueError):
            if checked(lock).requirements == text:
                _notice(source, stack)
                return lock
    raise FlagbenchError(f"{source} is not a lock as `flagbench lock` wrote it", remedy=NOT_EDITED)


@cache
def _notice(source: Path, stack: str) -> None:
    sys.stderr.write(
        f"flagbench: {source} has the old format of locks, which the next version does not read; "
        f"`flagbench lock {stack}` writes pylock.toml\n"
    )
