"""Stored records with their verdicts, filtered by case, stack, state and age."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cache

import msgspec

from flagbench.console.output import counted
from flagbench.errors import FlagbenchError
from flagbench.expect.reference import has_claims, nearest_reference
from flagbench.expect.rows import published
from flagbench.manifests.catalogue import FOLDER
from flagbench.manifests.load import load_catalog, manifests_root
from flagbench.manifests.lookup import catalog_get, get_stack
from flagbench.manifests.model import Catalog
from flagbench.records.blobs import Unread
from flagbench.records.index import Summary, summary_of
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.records.store import Store, StoredRecord
from flagbench.verdict import Verdict, VerifyResult, choose_claim, claims_for, verify_claim
from flagbench.verdict.conditions import gate_spec
from flagbench.verdict.interval import candidates
from flagbench.verdict.recompute import recompute
from flagbench.verdict.rules import invalid
from flagbench_core.exit_codes import ExitCode

CACHED_AS = 11
"""Number of the rules by which verdicts are computed. Add one with every change that may give a stored record another
verdict, nearest claim, ratio, gate or soundness: in verdict, core, records, manifests or here. Verdicts that were
cached under another number are computed again."""
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


class State(str, Enum):
    """How a run ended, or that its record is damaged or, in a bucket, was not read."""

    OK = "ok"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    DAMAGED = "damaged"
    UNREAD = "unread"


def select(
    store: Store,
    *,
    case: str | None = None,
    stack: str | None = None,
    state: State | None = None,
    since: str | None = None,
    older_than: str | None = None,
) -> Generator[StoredRecord]:
    """The records of a store for which every given option of a command holds, newest first.

    Raises FlagbenchError (usage), also for names of no case or stack.
    """
    case, stacks = names(case, stack)
    first, end = _moment(since, "--since"), _moment(older_than, "--older-than")
    for entry in store.list(case, *stacks):
        if first is not None and entry.created_at < first:
            return  # all others are older
        if (end is None or entry.created_at < end) and state in (None, state_of(entry)):
            yield entry


def names(case: str | None, stack: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The name of a case and every name of a stack; records keep the one it had. Raises FlagbenchError (usage)."""
    if case is None and stack is None:
        return None, ()
    catalog = load_catalog(claims=False)
    return (
        None if case is None else catalog_get(catalog.cases, case, kind="case").name,
        () if stack is None else get_stack(stack, catalog).names,
    )


def state_of(entry: StoredRecord) -> State:
    """How the run of a listed record ended."""
    if entry.summary is None:
        return State.UNREAD if entry.unread else State.DAMAGED
    return State(entry.summary.state)


def outcome_of(entry: StoredRecord) -> str | None:
    """The verdict or, of a run that did not end by itself, how it ended: `out of memory`, `timeout` or its state.

    A run whose own checks failed did end by itself: its verdict is INVALID. None: there is no verdict.
    """
    summary = entry.summary
    if summary is None:
        return state_of(entry).value
    if summary.state == "ok" or summary.exit_code == ExitCode.INVALID:
        return summary.verdict
    if summary.exit_code == ExitCode.OUT_OF_MEMORY:
        return "out of memory"
    if summary.exit_code == ExitCode.TIMEOUT:
        return "timeout"
    return summary.state


def _moment(text: str | None, option: str) -> str | None:
    """A date such as 2026-01-31, or an age such as 30d, 12h or 2w, as a record writes a time, UTC.

    Raises FlagbenchError (usage), which names the option.
    """
    if text is None:
        return None
    try:
        if match := re.fullmatch(r"([0-9]{1,4})([hdw])", text):
            found = datetime.now(timezone.utc) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            found = datetime.strptime(text, "%Y-%m-%d" if len(text) <= 10 else "%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        raise FlagbenchError(
            f"{option}: '{text}' is neither an age nor a date",
            remedy="give an age in hours, days or weeks (12h, 30d, 2w), or a date (2026-01-31)",
        ) from None
    return found.strftime("%Y-%m-%dT%H:%M:%SZ")


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
        published(catalog)  # for its errors: a row that cannot be read makes no record damaged
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
    claims = claims_for(record, case, catalog.claims.values())
    units = {metric.name: metric.unit for metric in record.metrics}
    claim_id = None
    if claims:
        claim = choose_claim(record, case, claims)
        claim_id = claim.id
        result: VerifyResult | None = verify_claim([record], claim, case, chosen=True)
    else:
        result = nearest_reference([record], catalog)
    if result is None:
        sound = record.evidence is not None and not invalid(recompute(record, case))
        return msgspec.structs.replace(summary, gate=case.gate, gate_unit=units.get(case.gate), sound=sound)
    held_by = candidates(case.metric(result.gate) or gate_spec(case), result.against)
    gate = next((name for name in held_by if name in summary.metrics), case.gate)
    of_gate = next((m.ratio for m in result.metrics if m.name == result.gate and m.comparable), None)
    return msgspec.structs.replace(
        summary,
        verdict=result.verdict.value,
        claim=claim_id,
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
    files += sorted((root / "stacks").glob("*.yaml"))  # a stack says what its devices can do
    if not files[1].exists():
        files += sorted((root / FOLDER).glob("*"))  # a case without claims is put beside rows that are only cited
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"none")
    return f"{CACHED_AS}-{digest.hexdigest()}"
