"""One check of an acceptance and its outcome."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from flagbench.manifests.limits import Kind, Reference
from flagbench.verdict.result import Ratio

PREFLIGHT = "preflight"
"""The part of an acceptance before anything runs."""


class Outcome(str, Enum):
    """The outcome of a check. An acceptance as a whole has one of the first three."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_KNOWN = "NOT_KNOWN"
    """Nobody could look, or there is nothing to compare with. It does not keep a machine from passing."""


class AcceptanceCheck(Struct, frozen=True, kw_only=True):
    """One check: what was measured against what, and what bounds its outcome."""

    name: str
    part: str
    """`preflight`, `health`, `soak`, or the case whose run was checked."""
    outcome: Outcome
    measured: str
    against: str
    limit: str
    """The bounds within which the check passes, in words."""
    limit_id: str | None = None
    """The id of the limit in the facts by which the number was judged; None for a check without one."""
    kind: Kind | None = None
    """The kind of the number."""
    reference: Reference | None = None
    """What the number is divided by."""
    floor: float | None = None
    """The ratio from which a number passes."""
    reason: str = ""
    """Why the check did not pass; empty if it did."""
    remedy: str = ""
    """What fixes the cause, if another run would not."""
    ratio: Ratio | None = None
    """The number over its reference; above 1 is better."""
    ranks: tuple[int, ...] = ()
    """The ranks whose devices the outcome is about."""


def not_known(name: str, part: str, against: str, reason: str) -> AcceptanceCheck:
    """A check that nobody could make, and why."""
    return AcceptanceCheck(
        name=name,
        part=part,
        outcome=Outcome.NOT_KNOWN,
        measured="nothing",
        against=against,
        limit="none",
        reason=reason,
    )


def did_not_run(part: str, reason: str, state: str = "nothing", remedy: str = "") -> AcceptanceCheck:
    """The check `ran` of a part that was not run, or left no record."""
    return AcceptanceCheck(
        name="ran",
        part=part,
        outcome=Outcome.INCONCLUSIVE,
        measured=state,
        against="its own checks",
        limit="it ends well, and its record follows from its evidence",
        reason=reason,
        remedy=remedy,
    )
