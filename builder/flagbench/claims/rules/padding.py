"""Padding that is counted as work."""

from __future__ import annotations

from collections.abc import Iterator

from flagbench.claims.finding import Finding
from flagbench.claims.rows import Row

_WHOLE = 0.8
"""Part of a run's time in which it works at least; the rest is its start."""


def padding_counted(row: Row) -> Iterator[Finding]:
    """Tokens/s of a padded set: rate x e2e_time against examples x padded length.

    A set counted without padding is much smaller than examples x length, so a run that counts nearly all of that in
    its time includes padding. Applies to cases whose manifest names the quirk `padding-counted`.
    """
    case = row.case
    if all(quirk.id != "padding-counted" for quirk in case.quirks):
        return
    data = case.presets["reference"]["data"]
    rate = row.metrics.get("p_infer_whole") or row.metrics.get("p_infer_core")
    time, examples = row.metrics.get("e2e_time"), data.get("examples")
    length = row.number_of("sequence_length") or data["sequence_length"]
    if rate is None or time is None or not examples:
        return
    padded = examples * length
    if rate.value * time.value >= _WHOLE * padded:
        field = case.gate if case.gate in row.metrics else "p_infer_whole"
        yield row.finding(
            field,
            "padding-counted",
            f"{rate.text} tokens/s x {time.text} s are {rate.value * time.value:,.0f} tokens, and {examples:,} "
            f"examples padded to {length:,.0f} are {padded:,.0f}: padding is counted; count the tokens without it",
        )
