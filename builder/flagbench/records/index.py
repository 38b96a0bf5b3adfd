"""What a listing shows of each record, cached in one file, so that listing does not open every record.

The file, or the object of a bucket, can be deleted or damaged at any time: what it lacks is read from the records. A
row counts only for the object it was made from (`Blob.stamp`), so records that another program adds, replaces or
deletes are noticed when their names are listed.

One file that is replaced as a whole, and not SQLite or a log: replacing is atomic on every file system, network ones
included, where SQLite's locks and appends of several machines are not reliable. Of two writers at once the last one
wins; the rows of the other are read again from the records. 10,000 records take 5 MB, read in 40 ms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from flagbench.records.blobs import Blobs
from flagbench.records.digest import history_digest, machine_digest, unseeded_digest
from flagbench.records.model import Record


class Summary(msgspec.Struct, frozen=True):
    """What a listing shows of a record."""

    created_at: str
    run_id: str
    preset: str
    division: str
    state: str
    duration: float | None
    """Seconds."""
    unseeded_digest: str | None
    """The digest of the configuration without its seed."""
    history_digest: str | None
    """The digest of the configuration by which earlier runs are found."""
    metrics: dict[str, float]
    exit_code: int | None = None
    reason: str | None = None
    host: str | None = None
    """The name of node 0; None if the record does not say it."""
    machine: str | None = None
    """A digest of what tells its machine from others."""
    verdict: str | None = None
    """None: there is neither a claim nor a cited row to compare it with, or none was computed yet."""
    claim: str | None = None
    gate: str | None = None
    """The name of the metric that decided."""
    gate_unit: str | None = None
    ratio: tuple[float, float | None, float | None] | None = None
    """That metric's ratio to the claim and the ends of its interval; None if they cannot be compared."""
    device: str | None = None
    """The model of its devices."""
    sound: bool | None = None
    """Whether the record is valid and has evidence; None: computed with the verdict."""
    basis: str | None = None
    """What the verdict was computed with: the number of the rules, and a digest of the case and its claims."""


class IndexEntry(msgspec.Struct, frozen=True):
    """A summary, and the object it was made from."""

    stamp: str
    summary: Summary


def summary_of(record: Record) -> Summary:
    """What `results ls` shows of a record; the verdict is added when it is computed."""
    device = record.conditions.get("device_model")
    return Summary(
        created_at=record.created_at,
        run_id=record.run_id,
        preset=record.preset,
        division=record.division,
        state=record.status.state,
        duration=record.duration,
        unseeded_digest=unseeded_digest(record),
        history_digest=history_digest(record),
        metrics={metric.name: float(metric.value) for metric in record.metrics},
        exit_code=record.status.exit_code,
        reason=record.status.reason,
        host=_host_of(record),
        machine=machine_digest(record),
        device=None if device is None else str(device),
    )


def _host_of(record: Record) -> str | None:
    """The name of node 0: the system's, else that of the first rank."""
    if record.system.host:
        return record.system.host
    if not record.ranks:
        return None
    return record.ranks[0].host


class Index:
    """The cache that a store has beside its objects."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._rows = self._read()
        self._changed: dict[str, IndexEntry | None] = {}

    def get(self, key: str, stamp: str | None = None) -> Summary | None:
        """The last summary of an object; with a stamp, None if the object has changed."""
        row = self._rows.get(key)
        if row is None or stamp not in (None, row.stamp):
            return None
        return row.summary

    def put(self, key: str, stamp: str, summary: Summary) -> None:
        """Set the summary of an object."""
        self._rows[key] = self._changed[key] = IndexEntry(stamp, summary)

    def drop_missing(self, prefix: str, keys: Iterable[str]) -> None:
        """Remove the rows below `prefix` whose objects are not among `keys`, those that the store has."""
        for key in {key for key in self._rows if key.startswith(prefix)}.difference(keys):
            del self._rows[key]
            self._changed[key] = None

    def save(self) -> None:
        """Write the changes, merged with what others wrote meanwhile; a failure is ignored."""
        if not self._changed:
            return
        rows = {key: row for key, row in {**self._read(), **self._changed}.items() if row is not None}
        self._changed = {}
        content = msgspec.json.encode(rows)
        self._blobs.write_index(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def _read(self) -> dict[str, IndexEntry]:
        checksum, _, content = self._blobs.read_index().partition(b"\n")
        if checksum == hashlib.sha256(content).hexdigest().encode():
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):
                return msgspec.json.decode(content, type=dict[str, IndexEntry])
        return {}
