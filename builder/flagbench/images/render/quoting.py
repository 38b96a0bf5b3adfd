"""Values that are written to a Dockerfile: each is quoted for the grammar of its place, or refused.

The first four functions are filters of templates. The others check values that stand unquoted.
"""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Sequence

from flagbench.errors import FlagbenchError
from flagbench.image_reference import try_parse_reference


def sh_quote(value: object) -> str:
    """Quote a value as one word of a shell command in a RUN instruction.

    Raises FlagbenchError (USAGE) for a control character: a line break ends the instruction even inside quotes.
    """
    return shlex.quote(_printable(str(value), "a shell word"))


def env_value(value: object) -> str:
    """Quote the value of one key of an ENV instruction, in double quotes.

    ENV's grammar is neither the shell's nor JSON's: inside double quotes a backslash escapes a quote, a dollar sign
    and itself, `$NAME` is expanded, and a line break ends the instruction.

    Raises FlagbenchError (USAGE) for a control character.
    """
    text = _printable(str(value), "the value of an environment variable")
    return '"' + re.sub(r'([\\"$])', r"\\\1", text) + '"'


def one_line(value: object) -> str:
    """Turn a value into text for a comment.

    White space of any kind becomes one space, and other characters that cannot be printed are left out.
    """
    visible = "".join(character for character in str(value) if character.isprintable() or character.isspace())
    return " ".join(visible.split())


def exec_form(words: Sequence[str]) -> str:
    """Write the words of an ENTRYPOINT as a JSON array, which the engine runs without a shell."""
    return json.dumps([_printable(word, "a word of the entry point") for word in words], separators=(",", ":"))


def image_reference(value: object) -> str:
    """Check that a value is the reference of an image, `[host[:port]/]path[:tag][@sha256:...]`.

    A reference contains nothing that ARG or FROM would expand. Raises FlagbenchError (USAGE) if it is none.
    """
    if try_parse_reference(str(value)) is None:
        raise _refused(str(value), "an image reference")
    return str(value)


def _checker(pattern: str, description: str) -> Callable[[object], str]:
    """Make a function that returns a value as text if it matches a pattern.

    For any other value the function raises FlagbenchError (USAGE), which calls it not to be `description`.
    """

    def check(value: object) -> str:
        text = str(value)
        if not re.fullmatch(pattern, text):
            raise _refused(text, description)
        return text

    return check


apt_name = _checker(r"[a-z0-9][a-z0-9+.-]+", "the name of a Debian package")
"""Checks the name of a Debian package (Debian policy 5.6.1), which cannot be read as an option of apt-get."""
absolute_path = _checker(r"(/[A-Za-z0-9._+-]+)+", "an absolute path of plain characters")
"""Checks a path that needs no quotes in any grammar."""
plain_name = _checker(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a plain name")
"""Checks the name of a case, a stack or a Python package."""
variable_name = _checker(r"[A-Z_][A-Z0-9_]*", "the name of an environment variable")
"""Checks the name of an environment variable."""
python_version = _checker(r"3\.[0-9]+", "a minor version of Python, like 3.11")
"""Checks a minor version of Python."""
index_url = _checker(
    r"https://[A-Za-z0-9.-]+(:[0-9]+)?([/?#][A-Za-z0-9._~:/?#%&=+,-]*)?",
    "the https address of a package index without an account",
)
"""Checks the URL of a package index. It stays in the image's history, so it must not contain credentials."""
_CONTROL_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that no value may have. Cc: line breaks, NUL and escapes. Zl and Zp: line and
paragraph separators, which some readers take for a line break. Cs: surrogates, which cannot be encoded."""


def _printable(text: str, description: str) -> str:
    """Return a text that has no control characters. Raises FlagbenchError (USAGE) if it has one."""
    if any(unicodedata.category(character) in _CONTROL_CATEGORIES for character in text):
        raise _refused(text, f"{description}, which has no line breaks or other control characters")
    return text


def _refused(text: str, description: str) -> FlagbenchError:
    """Build the error for a value that cannot be written to a Dockerfile."""
    return FlagbenchError(
        f"{text!r} is not {description}", remedy="correct it in the manifest, the lock or the option it comes from"
    )
