"""What must not get into a record or a log: the secrets that an argument may carry."""

import re
from typing import List

# Of a scheme, however long, its end is enough; without the bound a long word would take the square of its length.
ADDRESS = re.compile(r"[A-Za-z0-9+.-]{1,64}:/[^\s'\"]*")


def redact(text: str) -> str:
    """The text with every URL in it cut to what is no secret: no user, no query."""
    return ADDRESS.sub(lambda found: _address(found.group()), text)


def _address(address: str) -> str:
    """All before the last @ is a user and a secret, which may hold a slash; the path of file:// may hold an @."""
    scheme, separator, rest = re.split(r"(:/+)", address, maxsplit=1)
    if scheme.lower() != "file":
        rest = rest.rpartition("@")[2]
    return scheme + separator + rest.split("?", 1)[0]


def option_names(argv: List[str]) -> List[str]:
    """Of arguments that were not understood only the options' names: anything else may be a misplaced secret."""
    return [argument.split("=", 1)[0] for argument in argv if argument.startswith("-")]
