"""The result of one check of an acceptance, and constructors for checks that could not be made."""

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
    """The check could not be made, or there is nothing to compare with. It does not keep a machine from passing."""


class AcceptanceCheck(Struct, frozen=True, kw_only=True):
    """One check: what was measured, what it was compared with, and the outcome."""

    name: str
    """The name of the check, or of the metric that it compares."""
    part: str
    """`preflight`, `health`, `soak`, or the case whose run was checked."""
    outcome: Outcome
    measured: str
    """What was measured, with its unit."""
    against: str
    """What it was compared with, in words."""
    limit: str
    """The bounds within which the check passes, in words."""
    limit_id: str | None = None
    """The id of the limit that the number was compared with; None for a check that does not compare a number."""
    kind: Kind | None = None
    """The kind of the number, such as `product` for a matmul; None for a check that does not compare a number."""
    reference: Reference | None = None
    """The kind of the reference that the number is divided by; None for a check that does not compare a number."""
    floor: float | None = None
    """The ratio from which the number passes; None for a check that does not compare a number."""
    reason: str = ""
    """Why the check did not pass; empty if it did."""
    remedy: str = ""
    """What fixes the cause, if another run would not."""
    ratio: Ratio | None = None
    """The number over its reference; above 1 is better."""
    ranks: tuple[int, ...] = ()
    """The ranks whose devices the outcome is about."""

    @property
    def reference_text(self) -> str:
        """The reference of a number, without its value: `claim ROW` if `against` is `1,942 of claim ROW`."""
        return self.against.partition(" of ")[2]


def not_known(name: str, part: str, against: str, reason: str) -> AcceptanceCheck:
    """The result of a check that could not be made; `reason` says why."""
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
    """The result of the check `ran` for a run that was not made, or that left no record; `reason` says why."""
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
