"""Two loss curves as a person reads them."""

from __future__ import annotations

from flagbench.page import Lines, Table, render
from flagbench.verdict.align import FROM_STEP, WITHIN, Alignment, AlignResult, percent
from flagbench.verdict.conditions import shown

_STYLES = {
    Alignment.ALIGNED: "bold green",
    Alignment.DIVERGED: "bold red",
    Alignment.INVALID: "bold red",
    Alignment.INCONCLUSIVE: "bold yellow",
    Alignment.NOT_COMPARABLE: "bold yellow",
}


def alignment_table(result: AlignResult, *, wide: bool = False) -> str:
    """The verdict, the rule, the conditions that differ and where the curves part."""
    conditions = [(c.name, shown(c.here), shown(c.expected)) for c in result.conditions]
    return render(
        (
            Lines((f"{result.verdict.value}: {result.reason}",), _STYLES[result.verdict]),
            Lines((f"A  {result.a}", f"B  {result.b}, the reference", _rule(result))),
            Table(("condition that differs", "A", "B"), conditions, cut=("A", "B")),
            Lines(_errors(result)),
        ),
        wide=wide,
    )


def _rule(result: AlignResult) -> str:
    to = "on" if result.to_step is None else f"to {result.to_step}"
    rule = f"mean of |A - B| / |B| over the steps from {result.from_step} {to}, less than {percent(result.within)}"
    if result.published_rule:
        return f"rule, as published: {rule}"
    return f"NOT THE PUBLISHED RULE (from step {FROM_STEP} on, {percent(WITHIN)}): {rule}"


def _errors(result: AlignResult) -> tuple[str, ...]:
    if result.largest_error is None:
        return ()
    if result.diverges_from is None:
        parted = f"no lasting divergence: the last error is within {percent(result.within)}"
    else:
        parted = f"every error from step {result.diverges_from} on is above {percent(result.within)}"
    return (f"largest error {percent(result.largest_error)}, at step {result.largest_error_step}", parted)
