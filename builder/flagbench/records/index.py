"""The index of a store: a cache of what listings show of each record, so that they need not open every record.

The index is one file of the store, or one object of its bucket. It can be deleted or damaged at any time: what it
lacks is read from the records. A row counts only for the object that it was made from (`Blob.stamp`), so records that
another program adds, replaces or deletes are noticed when their names are listed.

It is one file that is replaced as a whole, and not SQLite or a log: replacing is atomic on every file system, network
ones included, where SQLite's locks and appends of several machines are not reliable. If two programs write it at the
same time, the last one wins; the rows of the other are read again from the records. The index of 10,000 records has
5 MB and is read in 40 ms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from flagbench.records.blobs import Blobs
from flagbench.records.digest import history_digest, machine_digest, unseeded_record_digest
from flagbench.records.model import Record


class Summary(msgspec.Struct, frozen=True):
    """What a listing shows of a record. The fields from `verdict` on are empty until its verdict is computed."""

    created_at: str
    run_id: str
    preset: str
    division: str
    state: str
    duration: float | None
    """How long the run took, seconds."""
    unseeded_digest: str | None
    """The digest of the configuration without its seed."""
    history_digest: str | None
    """The digest of the configuration by which earlier runs are found."""
    machine_digest: str | None
    """The digest by which its machine is distinguished from others."""
    nodes: int
    """The number of nodes of the run."""
    metrics: dict[str, float]
    exit_code: int | None = None
    reason: str | None = None
    host: str | None = None
    """The name of node 0; None if the record does not have it."""
    verdict: str | None = None
    """The verdict; None if there is neither a claim nor a cited row to compare the record with."""
    claim: str | None = None
    """The id of the claim (a published row) that the record was compared with; None for a row that is only cited."""
    gate: str | None = None
    """The name of the metric that decides the verdict."""
    gate_unit: str | None = None
    """The unit of that metric."""
    ratio: tuple[float, float | None, float | None] | None = None
    """The ratio of that metric to the claim, and the lower and upper end of its interval; None if not comparable."""
    device: str | None = None
    """The model of its devices; known without a verdict."""
    sound: bool | None = None
    """Whether the record is valid and has evidence."""
    basis: str | None = None
    """What the verdict was computed with: the number of the rules, and a digest of the case and its claims."""


class IndexEntry(msgspec.Struct, frozen=True):
    """A summary, and the stamp of the object that it was made from."""

    stamp: str
    summary: Summary


def summary_of(record: Record) -> Summary:
    """Return what a listing shows of a record, without a verdict."""
    return Summary(
        created_at=record.created_at,
        run_id=record.run_id,
        preset=record.preset,
        division=record.division,
        state=record.status.state,
        duration=record.duration,
        unseeded_digest=unseeded_record_digest(record),
        history_digest=history_digest(record),
        machine_digest=machine_digest(record),
        metrics={metric.name: float(metric.value) for metric in record.metrics},
        exit_code=record.status.exit_code,
        reason=record.status.reason,
        host=host_of(record),
        device=_device_of(record),
        nodes=record.system.nodes,
    )


def _device_of(record: Record) -> str | None:
    """Return the model of the devices, which is one of the conditions that claims are compared with."""
    device = record.conditions.get("device_model")
    if device is None:
        return None
    return str(device)


def host_of(record: Record) -> str | None:
    """Return the name of node 0, or that of the first rank's host if the record does not have it."""
    if record.system.host:
        return record.system.host
    if not record.ranks:
        return None
    return record.ranks[0].host


class Index:
    """The index of a store in memory: read at the start, changed by `put` and `drop_missing`, written by `save`."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._rows = self._read()
        self._changes: dict[str, IndexEntry | None] = {}
        """The rows that are not saved yet, by the key of the object; None for a row that was removed."""

    def get(self, key: str, stamp: str | None = None) -> Summary | None:
        """Return the last summary of an object; with its stamp, None if the object has changed since then."""
        row = self._rows.get(key)
        if row is None or stamp not in (None, row.stamp):
            return None
        return row.summary

    def put(self, key: str, stamp: str, summary: Summary) -> None:
        """Set the summary of an object."""
        row = IndexEntry(stamp, summary)
        self._rows[key] = row
        self._changes[key] = row

    def drop_missing(self, prefix: str, keys: Iterable[str]) -> None:
        """Remove the rows of objects that do not exist any more: `keys` are all that the store has below `prefix`."""
        indexed_keys = {key for key in self._rows if key.startswith(prefix)}
        for key in indexed_keys.difference(keys):
            del self._rows[key]
            self._changes[key] = None

    def save(self) -> None:
        """Write the changes to the store, merged with what other programs wrote meanwhile; a failure is ignored."""
        if not self._changes:
            return
        rows = self._read()
        for key, row in self._changes.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
        self._changes = {}
        content = msgspec.json.encode(rows)
        self._blobs.write_index(_checksum_line(content) + content)

    def _read(self) -> dict[str, IndexEntry]:
        """Return the rows in the store; none if the index does not exist or is damaged."""
        first_line, newline, content = self._blobs.read_index().partition(b"\n")
        if first_line + newline == _checksum_line(content):
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # written by another version
                return msgspec.json.decode(content, type=dict[str, IndexEntry])
        return {}


def _checksum_line(content: bytes) -> bytes:
    """Return the first line of the index: the sha256 of what follows it."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n"
