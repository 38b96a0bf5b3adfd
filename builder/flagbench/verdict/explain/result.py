"""What an explanation says."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins


class Cause(Struct, frozen=True, kw_only=True):
    """One reason why a run took the time it took.

    `time` is a share of the run's time, beyond what the other side lost to the same cause where that is known; `gap`
    is a share of the gap. `at_most`: how much it costs was not measured, and it is at most what the measured causes
    leave of the gap. Both are None where there is no gap to share.
    """

    name: str
    title: str
    time: float | None
    gap: float | None
    at_most: bool = False
    seen: str
    """What the record says, a clause with numbers."""
    action: str
    """What to do about it, as a clause."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a run is slow, or where its time went if it was compared with nothing comparable."""

    metric: str | None
    """The rate that is explained: of those that are below what is expected, the one that counts most of the time."""
    ratio: float | None
    gap: float | None
    """The share of the run's time that it would have to save: 1 - ratio, 0 if it is as fast as expected."""
    causes: tuple[Cause, ...]
    """The largest share first."""
    unexplained: float | None
    """The share of the gap that no measured cause accounts for."""
    reason: str | None = None
    """Why there is nothing to explain, or no gap."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = to_builtins(self)
        return found
