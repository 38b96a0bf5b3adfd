"""Text that others wrote, on a person's terminal."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` as one line: what cannot be printed (an escape, a line break, a change of direction) as `\\x1b`, `\\n`.

    A record, a log or a name may come from anywhere, and could else clear the screen or forge a verdict.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def brief(text: str, limit: int = 120) -> str:
    """`text` as `visible` has it, its middle left out where it is longer than `limit` characters."""
    # Cut first: a text of megabytes would be escaped for nothing.
    if len(text) > limit:
        text = f"{text[: limit // 2]}...{text[-(limit // 2) :]}"
    return visible(text)
