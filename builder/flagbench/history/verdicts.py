"""Stored records with their verdicts, each computed once and kept in the store's index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import msgspec

from flagbench.console.output import counted
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import has_claims, verify_nearest
from flagbench.manifests.load import load_catalog, manifests_root
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import CATALOGUE, published_rows
from flagbench.records.blobs import Unread
from flagbench.records.index import Summary, summary_of
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.records.store import Store, StoredRecord
from flagbench.verdict import Verdict
from flagbench.verdict.conditions import gate_spec
from flagbench.verdict.interval import candidates
from flagbench.verdict.recompute import recompute
from flagbench.verdict.rules import invalid

CACHED_AS = 12
"""Number of the rules by which verdicts are computed. Add one with every change that may give a stored record another
verdict, nearest claim, ratio, gate or soundness: verdicts that were cached under another number are computed again.
tests/replay/test_answers.py demands it where a verdict on a shipped record changes."""


def with_verdicts(store: Store, entries: Iterable[StoredRecord]) -> list[StoredRecord]:
    """The records, each with its verdict against the nearest claim of its case.

    A verdict comes from the index unless the case, its claims or the rules have changed since it was computed.
    """
    entries = list(entries)
    outdated = [entry for entry in entries if entry.summary is not None and entry.summary.basis != _basis(entry.case)]
    if not outdated:
        return entries
    catalog, judged = load_catalog(), {}
    if not all(has_claims(entry.case, catalog) for entry in outdated):
        published_rows(catalog)  # for its errors: a row that cannot be read makes no record damaged
    try:
        for entry, content in counted(store.read_all(outdated), len(outdated), "computing verdicts"):
            try:
                if isinstance(content, FlagbenchError):
                    raise content
                summary = _judged(read_record(content), catalog)
                judged[id(entry)] = replace(entry, summary=summary)
            except FlagbenchError as error:
                unread = isinstance(error, Unread)
                judged[id(entry)] = replace(entry, summary=None, error=error.message, unread=unread)
    finally:
        store.remember(judged.values())  # also those before an interrupt: the next listing computes the others
    return [judged.get(id(entry), entry) for entry in entries]


def _judged(record: Record, catalog: Catalog) -> Summary:
    """The summary of a record with its verdict."""
    summary = msgspec.structs.replace(summary_of(record), basis=_basis(record.case))
    case = catalog.cases.get(record.case)
    if case is None:
        return summary
    units = {metric.name: metric.unit for metric in record.metrics}
    result = verify_nearest([record], catalog)
    if result is None:
        sound = record.evidence is not None and not invalid(recompute(record, case))
        return msgspec.structs.replace(summary, gate=case.gate, gate_unit=units.get(case.gate), sound=sound)
    held_by = candidates(case.metric(result.gate) or gate_spec(case), result.against)
    gate = next((name for name in held_by if name in summary.metrics), case.gate)
    of_gate = next((m.ratio for m in result.metrics if m.name == result.gate and m.comparable), None)
    return msgspec.structs.replace(
        summary,
        verdict=result.verdict.value,
        claim=result.against.id if result.against.kind == "claim" else None,
        ratio=of_gate and (of_gate.value, *(of_gate.ci95 or (None, None))),
        gate=gate,
        gate_unit=units.get(gate),
        sound=record.evidence is not None and result.verdict is not Verdict.INVALID,
    )


@cache
def _basis(case: str) -> str:
    """What a verdict on a record of this case depends on besides it: the rules, and a digest of its manifests."""
    digest, root = hashlib.sha256(), manifests_root()
    files = [root / folder / f"{case}.yaml" for folder in ("cases", "claims")]
    for folder in ("stacks", "devices"):  # they say what a device can do
        files += sorted((root / folder).glob("*.yaml"))
    if not files[1].exists():
        files += sorted((root / CATALOGUE).glob("*"))  # a case without claims is put beside rows that are only cited
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"none")
    return f"{CACHED_AS}-{digest.hexdigest()}"
