"""The records of a store that a command asks for: by case, stack, state and age, and how each run ended."""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import datetime, timedelta, timezone
from enum import Enum

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import catalog_get, get_stack
from flagbench.records.index import Summary
from flagbench.records.store import Store, StoredRecord
from flagbench.verdict.early_end import early_end
from flagbench.verdict.result import four_digits

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_TIME = "%Y-%m-%dT%H:%M:%SZ"
"""How a record writes a time."""


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
    """The records of a store that match all options of a command, newest first.

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
    names_of_stack: tuple[str, ...] = ()
    if case is not None:
        case = catalog_get(catalog.cases, case, kind="case").name
    if stack is not None:
        names_of_stack = get_stack(stack, catalog).names
    return case, names_of_stack


def state_of(entry: StoredRecord) -> State:
    """How the run of a listed record ended."""
    if entry.summary is not None:
        return State(entry.summary.state)
    if entry.unread:
        return State.UNREAD
    return State.DAMAGED


def outcome_of(entry: StoredRecord) -> str | None:
    """The verdict or, of a run that did not end by itself, how it ended, as `verify` says it: `OUT OF MEMORY`.

    None: there is no verdict.
    """
    summary = entry.summary
    if summary is None:
        return state_of(entry).value
    ended = early_end(summary.state, summary.exit_code or 0)
    if ended is not None:
        return ended.state.value
    return summary.verdict


def speed_of(summary: Summary) -> str | None:
    """The metric that decided, with its unit: `1942 samples/s`. None: the run did not measure it."""
    speed = summary.metrics.get(summary.gate or "")
    if speed is None:
        return None
    return f"{four_digits(speed)} {summary.gate_unit or ''}".rstrip()


def _moment(text: str | None, option: str) -> str | None:
    """A date such as 2026-01-31, or an age such as 30d, 12h or 2w, as a record writes a time, UTC.

    Raises FlagbenchError (usage), which names the option.
    """
    if text is None:
        return None
    try:
        age = re.fullmatch(r"([0-9]{1,4})([hdw])", text)
        if age is not None:
            count, unit = int(age[1]), _UNITS[age[2]]
            moment = datetime.now(timezone.utc) - timedelta(**{unit: count})
        elif len(text) <= len("2026-01-31"):
            moment = datetime.strptime(text, "%Y-%m-%d")
        else:
            moment = datetime.strptime(text, _TIME)
    except (ValueError, OverflowError):
        raise FlagbenchError(
            f"{option}: '{text}' is neither an age nor a date",
            remedy="give an age in hours, days or weeks (12h, 30d, 2w), or a date (2026-01-31)",
        ) from None
    return moment.strftime(_TIME)
