"""What a store really promises, found out by doing it: objects of its own are written, raced for and removed."""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from flagbench.errors import FlagbenchError
from flagbench.records.blobs import Blobs
from flagbench.records.bucket_blobs import BucketBlobs, store_errors
from flagbench.records.store_keys import InboxPlace
from flagbench.records.tickets import sign
from flagbench_core.s3 import Bucket, S3Error
from flagbench_core.s3.ticket import RECORD, Ticket

WRITERS = 16
ROUNDS = 3
PREFIX = "probe/"
TICKETS = "takes tickets"
"""The one promise that records do not need."""
_BYTES = 4096
_UPLOAD = InboxPlace("probe", None)


@dataclass(frozen=True)
class Promise:
    """One thing that a store has to do, for records or for tickets."""

    name: str
    kept: bool
    detail: str


def probe(blobs: Blobs) -> Iterator[Promise]:
    """Each promise as it is tried; what was written is removed at the end, as far as the store lets it.

    A store that breaks one other than TICKETS is not safe: a record in it could be lost, replaced or read damaged.
    """
    folder = f"{PREFIX}{secrets.token_hex(8)}/"
    promises = {**_PROMISES, **(_BUCKET_PROMISES if isinstance(blobs, BucketBlobs) else {})}
    try:
        for name, attempt in promises.items():
            promise = _attempt(name, partial(attempt, blobs, folder))
            yield promise
            if attempt is _writes and not promise.kept:
                break
    finally:
        removed = _attempt("removes", lambda: _removes(blobs, folder))
    yield removed


def _attempt(name: str, attempt: Callable[[], str]) -> Promise:
    try:
        return Promise(name, True, attempt())
    except _Broken as broken:
        return Promise(name, False, str(broken))
    except FlagbenchError as error:
        return Promise(name, False, f"{error.message}; {error.remedy}")


class _Broken(Exception):
    """A promise that is not kept, and how."""


def _writes(blobs: Blobs, folder: str) -> str:
    if not blobs.put_if_absent(f"{folder}once", _content(1)):
        raise _Broken("a new object was taken for one that is there already")
    return f"{_BYTES} bytes"


def _reads_back(blobs: Blobs, folder: str) -> str:
    if blobs.get(f"{folder}once", _BYTES) != _content(1):
        raise _Broken("other bytes came back")
    return "the same bytes, and their sha256"


def _lists(blobs: Blobs, folder: str) -> str:
    keys = [blob.key for blob in blobs.list(folder)]
    if keys != [f"{folder}once"]:
        raise _Broken(f"{len(keys)} objects are listed where there is one")
    return "what was just written"


def _never_overwrites(blobs: Blobs, folder: str) -> str:
    key = f"{folder}once"
    taken = not blobs.put_if_absent(key, _content(2))
    if blobs.get(key, _BYTES) != _content(1):
        raise _Broken("a second put replaced the object")
    if not taken:
        raise _Broken("a second put was told that it had succeeded")
    if not blobs.put_if_absent(key, _content(1)):
        raise _Broken("the same bytes again were refused")
    return "a second put is refused; the same bytes again are not"


def _one_wins(blobs: Blobs, folder: str) -> str:
    if not blobs.one_winner:
        raise _Broken("this kind of server is known to tell several writers of one key that they had won")
    for round_ in range(ROUNDS):
        key = f"{folder}race-{round_}"
        with ThreadPoolExecutor(WRITERS) as pool:
            kept = pool.map(partial(blobs.put_if_absent, key), map(_content, range(WRITERS)))
            won = [writer for writer, first in enumerate(kept) if first]
        if len(won) != 1 or blobs.get(key, _BYTES) != _content(won[0]):
            raise _Broken(f"{len(won)} of {WRITERS} writers of one key at the same time were told that they had won")
    return f"of {WRITERS} at the same time, {ROUNDS} times"


def _takes_tickets(blobs: Blobs, folder: str) -> str:
    assert isinstance(blobs, BucketBlobs)
    address = blobs.bucket.address

    def upload(ticket: Ticket) -> None:
        ticket.put(RECORD, io.BytesIO(_content(1)), _BYTES)

    with store_errors():
        ticket = sign(Bucket(replace(address, prefix=f"{address.prefix}{folder}")), _UPLOAD.run_id, 1, 300)
        upload(ticket)
    for how, asked in (("a second put", ticket), ("a put without the signed header", replace(ticket, headers={}))):
        with suppress(S3Error):
            upload(asked)
            raise _Broken(f"{how} succeeded")
    return "an upload succeeds once"


def _removes(blobs: Blobs, folder: str) -> str:
    races = (f"race-{round_}" for round_ in range(ROUNDS))
    for name in ("once", *races, _UPLOAD.key):  # also where nothing can be listed
        blobs.delete(folder + name)
    blobs.clear(folder)
    if left := len([*blobs.list(folder)]):
        raise _Broken(f"{left} objects are left below {folder}")
    return "what was written"


_PROMISES: dict[str, Callable[[Blobs, str], str]] = {
    "writes": _writes,
    "reads back": _reads_back,
    "lists": _lists,
    "never overwrites": _never_overwrites,
    "one of several writers wins": _one_wins,
}
_BUCKET_PROMISES: dict[str, Callable[[Blobs, str], str]] = {TICKETS: _takes_tickets}


def _content(writer: int) -> bytes:
    return bytes([writer]) * _BYTES
