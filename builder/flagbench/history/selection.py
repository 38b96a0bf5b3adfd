"""Selects the records of a store that a command asks for, by case, stack, state and age.

`flagbench results` and `report` use it, also for how a listing shows the outcome and the speed of a run.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import datetime, timedelta, timezone
from enum import Enum

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import catalog_get, get_stack
from flagbench.records.index import Summary
from flagbench.records.store import Store, StoredRecord
from flagbench.system.clock import format_utc, parse_utc
from flagbench.verdict.early_end import find_early_end
from flagbench.verdict.result import four_digits

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
"""The units of an age, as arguments of `timedelta`."""
_DATE_FORMAT = "%Y-%m-%d"


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
    """Yield the records of a store that match all given options of a command, the newest first.

    Args:
        since: the oldest time, as a date or an age; older records are left out.
        older_than: the first time that is too new, as a date or an age.

    Raises FlagbenchError (USAGE) for an unknown case or stack, and for anything else than a time.
    """
    case, stacks = names(case, stack)
    oldest = parse_time(since, "--since")
    end = parse_time(older_than, "--older-than")
    for entry in store.list_records(case, *stacks):
        if oldest is not None and entry.created_at < oldest:
            return  # the records that follow are older
        if end is not None and entry.created_at >= end:
            continue
        if state is None or state_of(entry) is state:
            yield entry


def names(case: str | None, stack: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the name of a case and all names that a stack has had: a record has the one of its time.

    The names of a stack are empty if `stack` is None. Raises FlagbenchError (USAGE) for an unknown case or stack.
    """
    if case is None and stack is None:
        return None, ()
    catalog = load_catalog_without_claims()
    names_of_stack: tuple[str, ...] = ()
    if case is not None:
        case = catalog_get(catalog.cases, case, kind="case").name
    if stack is not None:
        names_of_stack = get_stack(stack, catalog).names
    return case, names_of_stack


def state_of(entry: StoredRecord) -> State:
    """Return how the run of a listed record ended."""
    if entry.summary is not None:
        return State(entry.summary.state)
    if entry.unread:
        return State.UNREAD
    return State.DAMAGED


def outcome_of(entry: StoredRecord) -> str | None:
    """Return the verdict on a listed record, or how its run ended if it did not end by itself: `OUT OF MEMORY`.

    It is None if there is no verdict.
    """
    summary = entry.summary
    if summary is None:
        return state_of(entry).value
    ended = find_early_end(summary.state, summary.exit_code or 0)
    if ended is not None:
        return ended.state.value
    return summary.verdict


def speed_of(summary: Summary) -> str | None:
    """Return the metric that decides the verdict, such as `1942 samples/s`; None if the run did not measure it."""
    speed = summary.metrics.get(summary.gate or "")
    if speed is None:
        return None
    return f"{four_digits(speed)} {summary.gate_unit or ''}".rstrip()


def parse_time(text: str | None, option: str) -> str | None:
    """Return a date such as 2026-01-31, or an age such as 30d, 12h or 2w, as a time in the format of records, UTC.

    Raises FlagbenchError (USAGE), which names the option.
    """
    if text is None:
        return None
    try:
        age = re.fullmatch(r"([0-9]{1,4})([hdw])", text)
        if age is not None:
            number = int(age[1])
            unit = _UNITS[age[2]]
            time = datetime.now(timezone.utc) - timedelta(**{unit: number})
        elif len(text) <= len("2026-01-31"):
            time = datetime.strptime(text, _DATE_FORMAT)
        else:
            time = parse_utc(text)
    except (ValueError, OverflowError):
        raise FlagbenchError(
            f"{option}: '{text}' is neither an age nor a date",
            remedy="give an age in hours, days or weeks (12h, 30d, 2w), or a date (2026-01-31)",
        ) from None
    return format_utc(time)
