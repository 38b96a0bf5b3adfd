"""A small vocabulary in the three files that Aquila's is published in."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ["<|startofpiece|>", "[MASK]", "[CLS]", "</s>"]


def byte_letters() -> dict[int, str]:
    """GPT-2's letter for every byte: itself if it can be seen, else one after U+0100, in order."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {**{byte: chr(byte) for byte in seen}, **{byte: chr(256 + n) for n, byte in enumerate(hidden)}}


LETTERS = byte_letters()
MERGES = [
    "t h",
    "th e",
    "Ġ the",
    "h e",
    "Ġ h",
    "Ġh e",
    "l l",
    "he ll",
    "hell o",
    "' s",
    "1 2",
    "Ġ Ġ",
    "Ċ Ċ",
    "ä \u00b8",
    "ä\u00b8 Ń",
    "ð Ł",
    "a b",
    "b c",
]
"""By the last two, "abc" is ab + c."""
PIECES = ["<|endoftext|>", *LETTERS.values(), *("".join(pair.split()) for pair in MERGES)]
SIZE = len(PIECES) + len(SPECIAL)
CLS, EOS = len(PIECES) + SPECIAL.index("[CLS]"), len(PIECES) + SPECIAL.index("</s>")


def write(folder: Path, newline: str = "\n", last: str = "\n") -> Path:
    """The three files. `newline` between lines, `last` after the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({piece: n for n, piece in enumerate(PIECES)}), encoding="utf-8")
    merges = newline.join(["#version: 0.2", *MERGES]) + last
    (folder / "merges.txt").write_bytes(merges.encode("utf-8"))
    (folder / "special_tokens.txt").write_bytes((newline.join(SPECIAL) + last).encode("utf-8"))
    return folder
