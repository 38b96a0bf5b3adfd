"""Files that are not records, to be named as one or left in a store: the name of each, and how to make it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unit.host.conftest import RECORD

MANY = 1_000_000


def _record(**changes: Any) -> bytes:
    return json.dumps({**RECORD, **changes}).encode()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # Bound by a short name: a socket's path is limited to some 100 bytes.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * MANY)


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "text-before": b"step 1\n" + _record(),
    "truncated": _record()[:-20],
    "nul-bytes": b"\0" * 1000,
    "byte-order-mark": b"\xef\xbb\xbf" + _record(),
    "utf-16": json.dumps(RECORD).encode("utf-16"),
    "nested": b"[" * MANY + b"]" * MANY,
    "nested-in-a-record": _record(config=json.loads("[" * 200 + "]" * 200)),
    "huge-integer": _record(x=0).replace(b'"x": 0', b'"x": ' + b"9" * 10_000),
    "many-digits": _record(x=0).replace(b'"x": 0', b'"x": 0.' + b"9" * MANY + b"e999"),
    "nan": _record(x=float("nan")),
    "near-the-largest-number": _record(metrics=[{"name": "p_core", "value": 1.7e308, "unit": "s", "scope": "job"}]),
    "half-a-character": _record(run_id="x\ud800"),
    "a-field-twice": b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b',"99999":0}',
    "many-values": _record(metrics=[0] * MANY),
    "many-faults": _record(metrics=[0] * 200_000),
    "many-faults-inside-an-alternative": _record(window={"step_seconds": ["x"] * 200_000}),
    "a-long-name": _record(stack="x" * MANY + "!"),
    "another-version": _record(schema="record/v" + "9" * MANY),
    "a-list": b"[]",
    "the-31st-of-february": _record(created_at="2026-02-31T00:00:00Z"),
    "digits-of-another-script": _record(created_at="\u0662\u0660\u0662\u0666-01-01T12:00:00Z"),
    "the-future": _record(created_at="9999-12-31T00:00:00Z"),
}
"""Contents that are not a record, by what is wrong with them."""

KINDS: dict[str, Callable[[Path], None]] = {
    "a-pipe": _fifo,
    "a-socket": _socket,
    "a-folder": Path.mkdir,
    "100-megabytes": _sparse,
    "a-link-to-nothing": lambda path: path.symlink_to("nothing"),
    "a-link-to-itself": lambda path: path.symlink_to(path.name),
    "a-link-to-an-endless-device": lambda path: path.symlink_to("/dev/zero"),
}
"""Things that are not readable files, by how to make them."""


def make(folder: Path, suffix: str = ".json") -> dict[str, Path]:
    """Make all of them in a folder; returns their paths by name."""
    made = {name: folder / f"{name}{suffix}" for name in (*CONTENTS, *KINDS)}
    for name, path in made.items():
        if name in CONTENTS:
            path.write_bytes(CONTENTS[name])
        else:
            KINDS[name](path)
    return made
