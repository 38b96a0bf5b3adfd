"""Makes untrusted text safe to print on a terminal."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` as one line. Characters that cannot be printed are escaped: controls as `\\x1b`, line breaks as `\\n`.

    A record, a log or a name may come from anywhere; unescaped, it could clear the screen or forge a verdict.
    """
    if text.isprintable():
        return text
    characters = []
    for character in text:
        if character.isprintable():
            characters.append(character)
        else:
            characters.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(characters)


def brief(text: str, limit: int = 120) -> str:
    """`text` made visible, with its middle left out if it is longer than `limit` characters."""
    # Cut first: escaping megabytes would be wasted.
    if len(text) > limit:
        text = f"{text[: limit // 2]}...{text[-(limit // 2) :]}"
    return visible(text)
