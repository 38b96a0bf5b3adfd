"""Values on their way into a Dockerfile: quoted for the grammar they land in, or refused."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Sequence

from flagbench.errors import FlagbenchError
from flagbench.image_reference import find_reference


def sh_quote(value: object) -> str:
    """One word of a shell command in a RUN instruction.

    Raises FlagbenchError (usage) for a control character: a line break would end the instruction, however
    the shell would have read it.
    """
    return shlex.quote(_printable(str(value), "a shell word"))


def env_value(value: object) -> str:
    """The value of one ENV key, in double quotes.

    ENV's grammar is neither the shell's nor JSON's: inside double quotes a backslash escapes a quote, a
    dollar and itself, a `$NAME` is expanded, and a line ends the instruction.
    Raises FlagbenchError (usage) for a control character.
    """
    text = _printable(str(value), "the value of an environment variable")
    return '"' + re.sub(r'([\\"$])', r"\\\1", text) + '"'


def one_line(value: object) -> str:
    """Text for a comment: white space of any kind becomes one space; what else cannot be printed is left out."""
    visible = "".join(character for character in str(value) if character.isprintable() or character.isspace())
    return " ".join(visible.split())


def exec_form(words: Sequence[str]) -> str:
    """The JSON array of an ENTRYPOINT: no shell stands between the container and its first process."""
    return json.dumps([_printable(word, "a word of the entry point") for word in words], separators=(",", ":"))


def image_reference(value: object) -> str:
    """A base image: `[host[:port]/]path[:tag][@sha256:...]`, nothing that ARG or FROM could expand."""
    if find_reference(str(value)) is None:
        raise _refused(str(value), "an image reference")
    return str(value)


def _plain(pattern: str, what: str) -> Callable[[object], str]:
    """A function that returns a value as text if it matches, and else refuses it as not being `what`."""

    def checked(value: object) -> str:
        text = str(value)
        if not re.fullmatch(pattern, text):
            raise _refused(text, what)
        return text

    return checked


apt_name = _plain(r"[a-z0-9][a-z0-9+.-]+", "the name of a Debian package")
"""Debian policy 5.6.1; it cannot be an option of apt-get either."""
absolute_path = _plain(r"(/[A-Za-z0-9._+-]+)+", "an absolute path of plain characters")
plain_name = _plain(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a plain name")
"""Of a case, a stack or a Python package."""
variable_name = _plain(r"[A-Z_][A-Z0-9_]*", "the name of an environment variable")
python_version = _plain(r"3\.[0-9]+", "a minor version of Python, like 3.11")
index_url = _plain(
    r"https://[A-Za-z0-9.-]+(:[0-9]+)?([/?#][A-Za-z0-9._~:/?#%&=+,-]*)?",
    "the https address of a package index without an account",
)
"""It stays in the image's history, so nothing of an account may be in it."""


def _printable(text: str, what: str) -> str:
    # Cc: line breaks, NUL and escapes. Zl, Zp: what some readers take for a line break. Cs: not encodable.
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in text):
        raise _refused(text, f"{what}, which has no line breaks or other control characters")
    return text


def _refused(text: str, what: str) -> FlagbenchError:
    return FlagbenchError(
        f"{text!r} is not {what}", remedy="correct it in the manifest, the lock or the option it comes from"
    )
