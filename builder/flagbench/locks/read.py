"""Reading a lock: strictly, for what it says ends in a Dockerfile and on pip's command line."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from flagbench.errors import FlagbenchError
from flagbench.files import read_text
from flagbench.locks.model import NO_BASE, TITLE, UNRESOLVED, Lock, LockEntry, Unresolved, inputs_digest

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

_NAME = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_VERSION = r"[0-9][0-9A-Za-z.!+]*"
_SHA256 = r"sha256:[0-9a-f]{64}"
STACK = re.compile(r"[a-z0-9][a-z0-9.-]*")
PYTHON = re.compile(r"3\.\d+")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
SHA256 = re.compile(_SHA256)
PIN = re.compile(rf"(?P<name>{_NAME})==(?P<version>{_VERSION})")
_ENTRY = re.compile(PIN.pattern + r" \\")
_HASH = re.compile(rf"    --hash=(?P<hash>{_SHA256})(?P<more> \\)?")
_UNRESOLVED = re.compile(rf"# unresolved: {PIN.pattern} \((?P<reason>[^\r\n]+)\)")
_NOT_EDITED = (
    "a lock is not edited by hand: `git checkout` it, or write a new one with `flagbench lock STACK --upgrade`"
)


def lock_path(stack: str, images: Path) -> Path:
    """Where the lock of a stack is, under an images folder."""
    return images / "locks" / f"{stack}.txt"


def read_lock(stack: Stack, images: Path) -> Lock:
    """The lock of a stack, which fits the stack's manifest.

    Raises:
        FlagbenchError: (usage) there is none, a line of it is malformed, or it was made for another manifest.
    """
    path = lock_path(stack.name, images)
    lock = load_lock(path)
    if lock is None:
        raise FlagbenchError(
            f"the stack {stack.name} has no lock: there is no {path}",
            remedy=f"make it with `flagbench lock {stack.name}`",
        )
    if stale := is_stale(lock, stack):
        raise FlagbenchError(
            f"the lock {path} is stale: {stale}",
            remedy=f"lock the stack again with `flagbench lock {stack.name}`",
        )
    return lock


def load_lock(path: Path) -> Lock | None:
    """The lock in a file, whatever manifest it was made for; None where there is no file.

    Raises:
        FlagbenchError: (usage) the file cannot be read, or a line of it is malformed.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FlagbenchError(f"the lock {path} cannot be read: {error}", remedy=_NOT_EDITED) from None
    return parse_lock(text, str(path))


def is_stale(lock: Lock, stack: Stack) -> str | None:
    """Why a lock does not fit a stack's manifest any more, or None if it fits."""
    if lock.stack != stack.name:
        return f"it is the lock of {lock.stack}, not of {stack.name}"
    if lock.python != stack.python:
        return f"it is for Python {lock.python}, the manifest says {stack.python}"
    if lock.base_image != stack.base_image:
        return f"its base is {lock.base_image or NO_BASE}, the manifest says {stack.base_image or NO_BASE}"
    if lock.inputs != inputs_digest(stack):
        return "packages, platform or indexes in the manifest changed since it was made"
    return None


def parse_lock(text: str, source: str) -> Lock:
    """The lock that `text` is; `source` names it in errors.

    Raises:
        FlagbenchError: (usage) a line is not as `flagbench lock` writes it, with its number.
    """
    return _Parser(text, source).lock()


class _Parser:
    """One pass over the lines of a lock."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        # Not splitlines(): only \n ends a line of a requirements file that was written here.
        self.lines = text.split("\n")
        self.at = 0

    def lock(self) -> Lock:
        """The whole file."""
        title, stack = self.next("a title"), self.header("stack", STACK)
        if title != TITLE.format(stack):
            self.at = 1
            self.fail(f"expected `{TITLE.format(stack)}`")
        python = self.header("python", PYTHON)
        base_image, base_digest = self.base()
        inputs = self.header("inputs", SHA256)
        lock = Lock(stack, python, base_image, base_digest, inputs, self.entries(), self.unresolved())
        self.held_against(lock)
        return lock

    def next(self, expected: str) -> str:
        """The next line; `expected` says what it should be, for the error at the end of the file."""
        self.at += 1
        if self.at >= len(self.lines):
            self.fail(f"the file ends where {expected} is expected")
        return self.lines[self.at - 1]

    def peek(self) -> str:
        """The next line, not taken; an empty one at the end."""
        return self.lines[self.at]

    def header(self, key: str, value: re.Pattern[str]) -> str:
        """The value of `# key: value`, which has to match."""
        line = self.next(f"`# {key}:`")
        name, _, found = line.partition(": ")
        if name != f"# {key}" or not value.fullmatch(found):
            self.fail(f"expected `# {key}: ` and a value like {value.pattern}")
        return found

    def base(self) -> tuple[str | None, str | None]:
        """Image and digest of `# base: IMAGE@DIGEST`."""
        line = self.header("base", re.compile(rf"{IMAGE.pattern}@(?:{UNRESOLVED}|{_SHA256})"))
        image, _, digest = line.partition("@")
        return (None if image == NO_BASE else image), (None if digest == UNRESOLVED else digest)

    def entries(self) -> tuple[LockEntry, ...]:
        """Every `name==version` with its hashes."""
        found = []
        while (line := self.peek()) and not line.startswith("#"):
            self.at += 1
            entry = _ENTRY.fullmatch(line)
            if entry is None:
                self.fail("expected `name==version` and a backslash, the name in lower case with single dashes")
            found.append(LockEntry(entry["name"], entry["version"], self.hashes()))
        return tuple(found)

    def hashes(self) -> tuple[str, ...]:
        """The hashes of one entry: one at least."""
        found = []
        while True:
            line = self.next("a hash")
            match = _HASH.fullmatch(line)
            if match is None:
                self.fail("expected `--hash=sha256:` and 64 hexadecimal digits, indented by four")
            found.append(match["hash"])
            if not match["more"]:
                return tuple(found)

    def unresolved(self) -> tuple[Unresolved, ...]:
        """Every `# unresolved: name==version (reason)`, to the end of the file."""
        found = []
        while self.at < len(self.lines) - 1:
            match = _UNRESOLVED.fullmatch(self.next("the end"))
            if match is None:
                self.fail("expected `# unresolved: name==version (reason)`, or the end of the file")
            found.append(Unresolved(match["name"], match["version"], reason=match["reason"]))
        return tuple(found)

    def held_against(self, lock: Lock) -> None:
        """Names are sorted and unique over both kinds, and nothing stands in the file that was not read."""
        for entries in (lock.entries, lock.unresolved):
            names = [entry.name for entry in entries]
            for before, after in itertools.pairwise(names):
                if before >= after:
                    self.at = self._line_of(after)
                    self.fail(f"{after} stands after {before}: names are sorted, and each stands once")
        both = {entry.name for entry in lock.entries} & {entry.name for entry in lock.unresolved}
        if both:
            name = min(both)
            self.at = self._line_of(name)
            self.fail(f"{name} is both locked and unresolved")
        if lock.text != self.text:
            self.at = len(self.lines)
            self.fail("the last line has no line break")

    def _line_of(self, name: str) -> int:
        """The last line that pins a name, from 1."""
        marks = (f"{name}==", f"# unresolved: {name}==")
        return max(number for number, line in enumerate(self.lines, 1) if line.startswith(marks))

    def fail(self, message: str) -> NoReturn:
        """The error for the line that was taken last."""
        raise FlagbenchError(
            f"{self.source}:{self.at}: {message}",
            remedy=_NOT_EDITED,
        )
