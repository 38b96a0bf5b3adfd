"""Why a run is slow, as a person reads it."""

from __future__ import annotations

from typing import TextIO

from flagbench.page import Block, Lines, Table, render
from flagbench.verdict.explain import Cause, Explanation


def explanation_page(explanation: Explanation, *, stream: TextIO | None = None, wide: bool = False) -> str:
    """An explanation as text for `stream` (default stdout), after an empty line: the causes, then what to do."""
    causes = explanation.causes
    rows = tuple((cause.title, _share(cause, cause.gap), _share(cause, cause.time), cause.seen) for cause in causes)
    blocks: list[Block] = [
        Lines((_heading(explanation),)),
        Table(("cause", "of the gap", "of the time", "seen"), rows, frozenset({"of the gap", "of the time"})),
        Lines(tuple(f"{cause.title}: {cause.action}" for cause in causes)),
    ]
    return "\n" + render(blocks, stream, wide=wide)


def _heading(explanation: Explanation) -> str:
    """One line: the gap, and how much of it has no known cause."""
    if explanation.gap is None or explanation.ratio is None:
        return f"where the time went: {explanation.reason}"
    if explanation.reason is not None:
        return explanation.reason
    left = explanation.unexplained or 0.0
    return (
        f"{explanation.metric} is at {explanation.ratio:.3f}, so {explanation.gap:.1%} of its time is lost: "
        f"{1 - left:.0%} of that was measured, {left:.0%} is unexplained"
    )


def _share(cause: Cause, share: float | None) -> str:
    if share is None:
        return "-"
    return f"{'at most ' if cause.at_most else ''}{share:.0%}"
