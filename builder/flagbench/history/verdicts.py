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
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import CATALOGUE, published_rows
from flagbench.records.blobs import Unread
from flagbench.records.index import Summary, summary_of
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.records.store import Store, StoredRecord
from flagbench.verdict import Verdict, VerifyResult
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
    outdated = [entry for entry in entries if _is_outdated(entry)]
    if not outdated:
        return entries
    catalog = load_catalog()
    if not all(has_claims(entry.case, catalog) for entry in outdated):
        published_rows(catalog)  # for its errors: a row that cannot be read makes no record damaged
    judged: dict[int, StoredRecord] = {}
    """By the identity of the entry."""
    try:
        for entry, content in counted(store.read_all(outdated), len(outdated), "computing verdicts"):
            judged[id(entry)] = _judged_entry(entry, content, catalog)
    finally:
        store.remember(judged.values())  # also those before an interrupt: the next listing computes the others
    return [judged.get(id(entry), entry) for entry in entries]


def _is_outdated(entry: StoredRecord) -> bool:
    """Whether the verdict in the index was computed with other rules or manifests."""
    return entry.summary is not None and entry.summary.basis != _basis(entry.case)


def _judged_entry(entry: StoredRecord, content: bytes | FlagbenchError, catalog: Catalog) -> StoredRecord:
    """A listed record with its verdict, or with the reason why there is none: it cannot be read or judged."""
    try:
        if isinstance(content, FlagbenchError):
            raise content
        summary = _judged(read_record(content), catalog)
    except FlagbenchError as error:
        return replace(entry, summary=None, error=error.message, unread=isinstance(error, Unread))
    return replace(entry, summary=summary)


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
    gate = _measured_gate(summary, result, case)
    claim = None
    if result.against.kind == "claim":
        claim = result.against.id
    return msgspec.structs.replace(
        summary,
        verdict=result.verdict.value,
        claim=claim,
        ratio=_ratio_of_gate(result),
        gate=gate,
        gate_unit=units.get(gate),
        sound=record.evidence is not None and result.verdict is not Verdict.INVALID,
    )


def _measured_gate(summary: Summary, result: VerifyResult, case: Case) -> str:
    """The metric of the record that is compared with the one that decides."""
    spec = case.metric(result.gate) or gate_spec(case)
    for name in candidates(spec, result.against):
        if name in summary.metrics:
            return name
    return case.gate


def _ratio_of_gate(result: VerifyResult) -> tuple[float, float | None, float | None] | None:
    """The ratio of the metric that decides, with the ends of its interval, as the index has it."""
    for metric in result.metrics:
        if metric.name != result.gate or not metric.comparable:
            continue
        if metric.ratio is None:
            return None
        low, high = metric.ratio.ci95 or (None, None)
        return metric.ratio.value, low, high
    return None


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
        if file.is_file():
            digest.update(file.read_bytes())
        else:
            digest.update(b"none")
    return f"{CACHED_AS}-{digest.hexdigest()}"
