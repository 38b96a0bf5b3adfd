"""One check of an acceptance and its outcome."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from flagbench.manifests.limits import Kind, Reference
from flagbench.verdict.result import Ratio

PREFLIGHT = "preflight"
"""The part of an acceptance before anything runs."""


class Outcome(str, Enum):
    """What a check ends with; the whole ends with one of the first three."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_KNOWN = "NOT_KNOWN"
    """Nobody could look, or there is nothing to compare with. It does not keep a machine from passing."""


class AcceptanceCheck(Struct, frozen=True, kw_only=True):
    """One check: what was measured against what, and what bounds its outcome."""

    name: str
    part: str
    """`preflight`, `health`, `soak`, or the case whose run it is of."""
    outcome: Outcome
    measured: str
    against: str
    limit: str
    """What it passes within."""
    limit_id: str | None = None
    """Of a number: the limit in the facts, of which kind of number it is, and what it is divided by."""
    kind: Kind | None = None
    reference: Reference | None = None
    floor: float | None = None
    """The ratio from which a number passes."""
    reason: str = ""
    """Why it did not."""
    remedy: str = ""
    """What mends the cause, where another run would not."""
    ratio: Ratio | None = None
    """Above 1 is better."""
    ranks: tuple[int, ...] = ()
    """That it is about."""


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
