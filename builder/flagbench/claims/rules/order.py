"""Speeds in order: the less of a run a speed leaves out, the lower it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from flagbench.claims.finding import Finding
from flagbench.claims.numbers import Cell
from flagbench.claims.rows import Row

_ORDERS = (
    ("p_core", "p_train", "p_whole"),
    ("p_infer_core", "p_infer_whole"),
    ("p_val_core", "p_val_whole"),
)


def rates_in_order(row: Row) -> Iterator[Finding]:
    """p_core >= p_train >= p_whole, and the same for inference and validation: each divides the same samples by more
    of the run's time. A pair is in order if any two values of their intervals are.
    """
    for order in _ORDERS:
        present = [name for name in order if name in row.metrics]
        for faster, slower in pairwise(present):
            one, other = row.metrics[faster], row.metrics[slower]
            if one.high < other.low:
                yield row.finding(
                    faster,
                    "rates-in-order",
                    f"{faster} {one.text} is below {slower} {other.text}, and it leaves out more of the time; "
                    "look for exchanged cells or for rows of different runs",
                )


def positive(row: Row) -> Iterator[Finding]:
    """No speed, time, utilisation, accuracy or memory is zero or negative: launchers print -1 for what they lack."""
    for name, cell in row.metrics.items():
        if not _is_possible(name, cell):
            yield row.finding(
                name,
                "not-positive",
                f"{cell.text} is no measurement; publish the measured value, or leave the cell empty",
            )


def measured(row: Row) -> Row:
    """The row without the values that `positive` finds."""
    return replace(row, metrics={name: cell for name, cell in row.metrics.items() if _is_possible(name, cell)})


def _is_possible(name: str, cell: Cell) -> bool:
    return cell.value > 0 or name == "loss" or (name == "acc" and cell.value == 0)
