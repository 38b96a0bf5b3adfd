"""Computes the verdicts on stored records, each once, and keeps them in the store's index.

Listings and reports show them. A verdict compares the record with the nearest claim, which is a published row that
its case can be compared with; for a case without claims, with rows that are only cited.
"""

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
from flagbench.records.store import ReadRecord, Store, StoredRecord
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict.conditions import gate_spec
from flagbench.verdict.interval import list_candidates
from flagbench.verdict.recompute import recompute
from flagbench.verdict.rules import check_record

CACHED_AS = 12
"""The version of the rules according to which verdicts are computed.

Add one with every change that may give a stored record another verdict, nearest claim, ratio, gate or soundness:
verdicts that were cached under another number are computed again. tests/replay/test_answers.py demands it if a
verdict on a shipped record changes.
"""


def with_verdicts(store: Store, entries: Iterable[StoredRecord]) -> list[StoredRecord]:
    """Return the listed records, each with its verdict in the summary.

    Verdicts that are not in the index are computed and saved there. So are those whose case, claims or rules have
    changed since they were computed.
    """
    entries = list(entries)
    outdated = [entry for entry in entries if _is_outdated(entry)]
    if not outdated:
        return entries
    catalog = load_catalog()
    if not all(has_claims(entry.case, catalog) for entry in outdated):
        published_rows(catalog)  # for its errors: a row that cannot be read makes no record damaged
    judged: dict[int, StoredRecord] = {}
    """By the identity of the entry, the same record with its verdict; two entries can have one id."""
    try:
        for entry, read in counted(store.read_all(outdated), len(outdated), "computing verdicts"):
            judged[id(entry)] = _judge_entry(entry, read, catalog)
    finally:
        store.remember(judged.values())  # also those before an interrupt: the next listing computes the others
    return [judged.get(id(entry), entry) for entry in entries]


def _is_outdated(entry: StoredRecord) -> bool:
    """Return whether the verdict in the index was computed with other rules or manifests, or never."""
    return entry.summary is not None and entry.summary.basis != _basis_of(entry.case)


def _judge_entry(entry: StoredRecord, read: ReadRecord | FlagbenchError, catalog: Catalog) -> StoredRecord:
    """Return a listed record with its verdict, or with the error if it cannot be read or judged.

    `read` is the record, or the error of reading it.
    """
    try:
        if isinstance(read, FlagbenchError):
            raise read
        summary = _judge(read.record, catalog)
    except FlagbenchError as error:
        return replace(entry, summary=None, error=error.message, unread=isinstance(error, Unread))
    return replace(entry, summary=summary)


def _judge(record: Record, catalog: Catalog) -> Summary:
    """Return the summary of a record with its verdict. Raises FlagbenchError if it cannot be judged."""
    summary = msgspec.structs.replace(summary_of(record), basis=_basis_of(record.case))
    case = catalog.cases.get(record.case)
    if case is None:
        return summary
    units = {metric.name: metric.unit for metric in record.metrics}
    result = verify_nearest([record], catalog)
    if result is None:
        sound = record.evidence is not None and not check_record(recompute(record, case))
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
    """Return the name of the record's metric that is compared with the published metric that decides."""
    spec = case.metric(result.gate) or gate_spec(case)
    for name in list_candidates(spec, result.against):
        if name in summary.metrics:
            return name
    return case.gate


def _ratio_of_gate(result: VerifyResult) -> tuple[float, float | None, float | None] | None:
    """Return the ratio of the metric that decides and the ends of its interval; None if it is not comparable."""
    for metric in result.metrics:
        if metric.name != result.gate or not metric.comparable:
            continue
        if metric.ratio is None:
            return None
        low, high = metric.ratio.ci95 or (None, None)
        return metric.ratio.value, low, high
    return None


@cache
def _basis_of(case: str) -> str:
    """Return what verdicts on a case are computed with: the number of the rules, and a digest of manifests.

    A verdict in the index that was computed with something else is outdated.
    """
    root = manifests_root()
    claims = root / "claims" / f"{case}.yaml"
    files = [root / "cases" / f"{case}.yaml", claims]
    for folder in ("stacks", "devices"):  # they have the properties of a device
        files += sorted((root / folder).glob("*.yaml"))
    if not claims.exists():
        files += sorted((root / CATALOGUE).glob("*"))  # its records are compared with rows that are only cited
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(file.read_bytes())
        else:
            digest.update(b"none")
    return f"{CACHED_AS}-{digest.hexdigest()}"
