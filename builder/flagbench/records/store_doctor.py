"""`flagbench store doctor`: tries out whether a store is safe, with test objects that it removes at the end.

It writes, reads and lists an object, tries to overwrite it, and lets several writers compete for one key.
"""

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
"""Writers that put one key at the same time."""
ROUNDS = 3
"""How often they do, each time with another key."""
PREFIX = "probe/"
"""The folder of the test objects."""
WRITE = "write"
"""The name of the first check. If it fails, no other check is tried."""
_OBJECT_BYTES = 4096
"""The size of a test object."""
_OBJECT_NAME = "test-object"
_INBOX = "inbox/"
"""The folder to which images of earlier versions uploaded records and bundles, for the user to collect."""


@dataclass(frozen=True)
class StoreCheck:
    """The outcome of one check of a store."""

    name: str
    ok: bool
    detail: str
    """What the store does, or what it does wrong."""


def probe(blobs: Blobs) -> Iterator[StoreCheck]:
    """Make the checks one after the other, and yield the outcome of each.

    A store that fails one is not safe: a record in it could be lost, replaced or read damaged. What the checks wrote
    is removed at the end, if the store allows it.
    """
    folder = f"{PREFIX}{secrets.token_hex(8)}/"
    can_write = False
    try:
        for name, check in _CHECKS.items():
            outcome = _try_check(name, partial(check, blobs, folder))
            yield outcome
            if name == WRITE:
                can_write = outcome.ok
            if not can_write:
                break
    finally:
        removal = _try_check("remove", partial(_remove, blobs, folder))
    if not can_write:
        return
    yield removal
    if removal.ok:  # so the store can be listed
        uploads = _try_check("inbox", partial(_describe_old_uploads, blobs))
        if uploads.detail:
            yield uploads


def _try_check(name: str, check: Callable[[], str]) -> StoreCheck:
    """Return the outcome of a check, which returns what the store does, or raises what it does wrong."""
    try:
        return StoreCheck(name, True, check())
    except _CheckFailed as failure:
        return StoreCheck(name, False, str(failure))
    except FlagbenchError as error:
        return StoreCheck(name, False, f"{error.message}; {error.remedy}")


class _CheckFailed(Exception):
    """What a store does wrong."""


def _write(blobs: Blobs, folder: str) -> str:
    if not blobs.put_if_absent(folder + _OBJECT_NAME, _content_of(1)):
        raise _CheckFailed("the store says that a new key is taken already")
    return f"an object of {_OBJECT_BYTES} bytes"


def _read_back(blobs: Blobs, folder: str) -> str:
    if blobs.get(folder + _OBJECT_NAME, _OBJECT_BYTES) != _content_of(1):
        raise _CheckFailed("other bytes came back")
    return "the same bytes and their sha256"


def _list(blobs: Blobs, folder: str) -> str:
    keys = [blob.key for blob in blobs.list(folder)]
    if keys != [folder + _OBJECT_NAME]:
        raise _CheckFailed(f"{len(keys)} objects are listed instead of 1")
    return "the object is listed at once"


def _refuse_to_overwrite(blobs: Blobs, folder: str) -> str:
    key = folder + _OBJECT_NAME
    second_put_succeeded = blobs.put_if_absent(key, _content_of(2))
    if blobs.get(key, _OBJECT_BYTES) != _content_of(1):
        raise _CheckFailed("a second put replaced the object")
    if second_put_succeeded:
        raise _CheckFailed("a second put was told that it succeeded")
    if not blobs.put_if_absent(key, _content_of(1)):
        raise _CheckFailed("the same bytes again were refused")
    return "other bytes under the same key are refused"


def _let_one_writer_win(blobs: Blobs, folder: str) -> str:
    if not blobs.one_winner:
        raise _CheckFailed("this kind of server may tell several writers of one key that each of them won")
    for round_number in range(ROUNDS):
        key = _race_key(folder, round_number)
        contents = [_content_of(writer) for writer in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            successes = list(pool.map(partial(blobs.put_if_absent, key), contents))
        winners = [writer for writer, success in enumerate(successes) if success]
        if len(winners) != 1 or blobs.get(key, _OBJECT_BYTES) != contents[winners[0]]:
            raise _CheckFailed(
                f"{len(winners)} of {WRITERS} writers of one key at the same time were told that they won"
            )
    return f"of {WRITERS} writers at the same time, in {ROUNDS} rounds"


def _race_key(folder: str, round_number: int) -> str:
    """Return the key that the writers of a round put."""
    return f"{folder}race-{round_number}"


def _remove(blobs: Blobs, folder: str) -> str:
    # Each key by its name, too, for a store that cannot be listed.
    blobs.delete(folder + _OBJECT_NAME)
    for round_number in range(ROUNDS):
        blobs.delete(_race_key(folder, round_number))
    blobs.clear(folder)
    remaining = len(list(blobs.list(folder)))
    if remaining:
        raise _CheckFailed(f"{remaining} objects are left below {folder}")
    return "nothing is left of these checks"


def _describe_old_uploads(blobs: Blobs) -> str:
    """Return how many uploads are in an inbox, and how to fetch them; empty if there are none."""
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
    "never overwrite": _refuse_to_overwrite,
    "one of several writers wins": _let_one_writer_win,
}
"""The checks by name, in their order: later ones need the object that the first one wrote."""


def _content_of(writer: int) -> bytes:
    """Return the content of a test object, which is another one for each writer."""
    return bytes([writer]) * _OBJECT_BYTES
