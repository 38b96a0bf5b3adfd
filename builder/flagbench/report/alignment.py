"""Two loss curves as a person reads them."""

from __future__ import annotations

from typing import TextIO

from flagbench.page import Lines, Table, render
from flagbench.report.tables import NOTHING
from flagbench.verdict import Alignment, AlignResult
from flagbench.verdict.align import FROM_STEP, WITHIN, Row, percent
from flagbench.verdict.conditions import shown

_STYLES = {
    Alignment.ALIGNED: "bold green",
    Alignment.DIVERGED: "bold red",
    Alignment.INVALID: "bold red",
    Alignment.INCONCLUSIVE: "bold yellow",
    Alignment.NOT_COMPARABLE: "bold yellow",
}
_BAR = 10
"""Characters of a bar that reaches the bound."""


def alignment_table(result: AlignResult, *, stream: TextIO | None = None, wide: bool = False) -> str:
    """The rule, the conditions that differ, an excerpt of both curves and the verdict, as text for `stream`."""
    columns = ("STEPS", "A", "B", "MEAN ERROR", "LARGEST", "|: THE BOUND")
    return render(
        (
            Lines((f"A  {result.a}", f"B  {result.b}, the reference", *_rule(result))),
            Table(
                ("condition that differs", "A", "B"),
                [(c.name, shown(c.here), shown(c.expected)) for c in result.conditions],
                cut=("A", "B"),
            ),
            Table(
                columns,
                [_row(row, result.within) for row in result.excerpt],
                right=frozenset({"A", "B", "MEAN ERROR", "LARGEST"}),
                drop=("LARGEST", "|: THE BOUND", "A", "B"),
            ),
            Lines(_where(result)),
            Lines(tuple(f"note: {note}" for note in result.notes)),
            Lines((f"{result.verdict.value}: {result.reason}",), _STYLES[result.verdict]),
        ),
        stream,
        wide=wide,
    )


def _rule(result: AlignResult) -> tuple[str, ...]:
    to = "on" if result.to_step is None else f"to {result.to_step}"
    rule = f"mean of |A - B| / |B| over the steps from {result.from_step} {to}, less than {percent(result.within)}"
    if result.published_rule:
        return (f"rule, as published: {rule}",)
    published = f"the published one has all steps from {FROM_STEP} on, and {percent(WITHIN)}"
    return (f"NOT THE PUBLISHED RULE: {rule}; {published}",)


def _where(result: AlignResult) -> tuple[str, ...]:
    lines = []
    if result.largest_error is not None:
        lines.append(f"largest error {percent(result.largest_error)}, at step {result.largest_error_step}")
    if result.diverges_from is not None:
        lines.append(f"every error from step {result.diverges_from} on is above {percent(result.within)}")
    elif result.compared:
        lines.append(f"no lasting divergence: the last error is within {percent(result.within)}")
    return tuple(lines)


def _row(row: Row, within: float) -> tuple[str, ...]:
    steps = str(row.first) if row.first == row.last else f"{row.first} to {row.last}"
    losses = [NOTHING if loss is None else f"{loss:.6g}" for loss in (row.a, row.b)]
    errors = [NOTHING if error is None else percent(error) for error in (row.mean_error, row.largest_error)]
    return (steps, *losses, *errors, _bar(row, within))


def _bar(row: Row, within: float) -> str:
    """The mean error relative to the bound, at most twice as long; rows that do not count have none."""
    if not row.counted:
        return "not counted"
    if row.mean_error is None:
        return NOTHING
    length = round(min(2 * _BAR, _BAR * row.mean_error / within))
    bar = ("#" * length).ljust(_BAR)
    return f"{bar[:_BAR]}|{bar[_BAR:]}"
