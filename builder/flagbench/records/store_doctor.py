"""Tests a store with objects of its own: writes, reads, lists, overwrites, races for and removes them."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from flagbench.errors import FlagbenchError
from flagbench.records.blobs import Blobs

WRITERS = 16
ROUNDS = 3
PREFIX = "probe/"
WRITE = "write"
"""Without it nothing else is tried."""
_BYTES = 4096
_INBOX = "inbox/"
"""Where upload tickets, which no longer exist, put records and bundles that were not collected."""


@dataclass(frozen=True)
class StoreCheck:
    """One check of a store."""

    name: str
    ok: bool
    detail: str


def probe(blobs: Blobs) -> Iterator[StoreCheck]:
    """The checks, one after the other; what they wrote is removed at the end, if the store allows it.

    A store that fails one is not safe: a record in it could be lost, replaced or read damaged.
    """
    folder = f"{PREFIX}{secrets.token_hex(8)}/"
    written = False
    try:
        for name, attempt in _CHECKS.items():
            check = _attempt(name, partial(attempt, blobs, folder))
            yield check
            written = written or check.ok
            if not written:
                break
    finally:
        removed = _attempt("remove", lambda: _remove(blobs, folder))
    if not written:
        return
    yield removed
    if removed.ok:  # so the store can be listed
        uploads = _attempt("inbox", lambda: _old_uploads(blobs))
        if uploads.detail:
            yield uploads


def _attempt(name: str, attempt: Callable[[], str]) -> StoreCheck:
    try:
        return StoreCheck(name, True, attempt())
    except _Failed as failed:
        return StoreCheck(name, False, str(failed))
    except FlagbenchError as error:
        return StoreCheck(name, False, f"{error.message}; {error.remedy}")


class _Failed(Exception):
    """What a store does wrong."""


def _write(blobs: Blobs, folder: str) -> str:
    if not blobs.put_if_absent(f"{folder}test-object", _content(1)):
        raise _Failed("the store says that a new key is taken already")
    return f"an object of {_BYTES} bytes"


def _read_back(blobs: Blobs, folder: str) -> str:
    if blobs.get(f"{folder}test-object", _BYTES) != _content(1):
        raise _Failed("other bytes came back")
    return "the same bytes and their sha256"


def _list(blobs: Blobs, folder: str) -> str:
    keys = [blob.key for blob in blobs.list(folder)]
    if keys != [f"{folder}test-object"]:
        raise _Failed(f"{len(keys)} objects are listed instead of 1")
    return "the object is listed at once"


def _never_overwrite(blobs: Blobs, folder: str) -> str:
    key = f"{folder}test-object"
    taken = not blobs.put_if_absent(key, _content(2))
    if blobs.get(key, _BYTES) != _content(1):
        raise _Failed("a second put replaced the object")
    if not taken:
        raise _Failed("a second put was told that it succeeded")
    if not blobs.put_if_absent(key, _content(1)):
        raise _Failed("the same bytes again were refused")
    return "other bytes under the same key are refused"


def _one_wins(blobs: Blobs, folder: str) -> str:
    if not blobs.one_winner:
        raise _Failed("this kind of server may tell several writers of one key that each of them won")
    for round_ in range(ROUNDS):
        key = f"{folder}race-{round_}"
        with ThreadPoolExecutor(WRITERS) as pool:
            kept = pool.map(partial(blobs.put_if_absent, key), map(_content, range(WRITERS)))
            won = [writer for writer, first in enumerate(kept) if first]
        if len(won) != 1 or blobs.get(key, _BYTES) != _content(won[0]):
            raise _Failed(f"{len(won)} of {WRITERS} writers of one key at the same time were told that they won")
    return f"of {WRITERS} writers at the same time, in {ROUNDS} rounds"


def _remove(blobs: Blobs, folder: str) -> str:
    races = (f"race-{round_}" for round_ in range(ROUNDS))
    for name in ("test-object", *races):  # also if nothing can be listed
        blobs.delete(folder + name)
    blobs.clear(folder)
    if left := len([*blobs.list(folder)]):
        raise _Failed(f"{left} objects are left below {folder}")
    return "nothing is left of these checks"


def _old_uploads(blobs: Blobs) -> str:
    """What an inbox still holds, and how to fetch it; empty if it holds nothing."""
    uploads = [blob for blob in blobs.list(_INBOX) if blob.size]  # an empty object says that one was collected
    if not uploads:
        return ""
    inbox = shlex.quote(blobs.location(_INBOX))
    store = shlex.quote(blobs.url)
    return (
        f"uploads that were never collected: {len(uploads)}; fetch them with `aws s3 cp --recursive {inbox} inbox`, "
        f"store them with `flagbench results push inbox/*/record.json --store {store}`, and remove them with "
        f"`aws s3 rm --recursive {inbox}`"
    )


_CHECKS: dict[str, Callable[[Blobs, str], str]] = {
    WRITE: _write,
    "read back": _read_back,
    "list": _list,
    "never overwrite": _never_overwrite,
    "one of several writers wins": _one_wins,
}


def _content(writer: int) -> bytes:
    return bytes([writer]) * _BYTES
