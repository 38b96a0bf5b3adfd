"""Accuracy, losses, and what became of the row."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flagbench.claims.finding import Finding
from flagbench.claims.rows import Row
from flagbench.claims.rules.times import stop_limit

_SPEEDS = ("p_core", "p_train", "p_whole", "p_infer_core", "tokens_per_second_per_device")


def accuracy(row: Row) -> Iterator[Finding]:
    """0 <= acc <= 1, and a run that the stop rule ends has reached its target, unless the row says otherwise."""
    acc = row.metrics.get("acc")
    if acc is None:
        return
    if acc.low > 1:
        yield row.finding("acc", "above-one", f"{acc.text} is more than 1; write a fraction, such as 0.915")
        return
    target = _target(row)
    said = row.conditions.get("converged", "").lower() == "false"
    if target is not None and acc.high < target and not said:
        yield row.finding(
            "acc",
            "not-converged",
            f"{acc.text} is below the target of {target:g} that ends a run; say that it did not converge",
        )


def duplicates(row: Row) -> Iterator[Finding]:
    """An evaluation set of E examples on d devices is padded to E' = ceil(E / d) x d. Where the publisher counts the
    duplicates in the numerator alone (the quirk `eval-duplicates`), acc x E / E' is the unbiased estimate.

    Found where the printed value reaches the target by no more than one example, and the estimate misses it.
    """
    acc, case, target = row.metrics.get("acc"), row.case, _target(row)
    if acc is None or target is None or not row.devices:
        return
    examples = case.presets["reference"]["data"].get("eval_examples")
    if not examples or all(quirk.id != "eval-duplicates" for quirk in case.quirks):
        return
    padded = math.ceil(examples / row.devices) * row.devices
    estimate = acc.value * examples / padded
    lead = acc.value - target
    if padded > examples and acc.high >= target > estimate and lead <= 1 / examples:
        yield row.finding(
            "acc",
            "counts-duplicates",
            f"{row.devices} devices evaluate {padded - examples} of {examples} examples twice; without them "
            f"{acc.text} is about {estimate:.4f}, below the target of {target:g}; count each example once",
        )


def can_converge(row: Row) -> Iterator[Finding]:
    """A run whose own limit allows fewer than two evaluations cannot stop at its target."""
    limit, case = stop_limit(row), row.case
    if limit is None or limit[1] != "samples" or "acc" in row.metrics:
        return
    cadence = case.presets["reference"].get("train", {}).get("evaluate_every_samples")
    if cadence and limit[0] < 2 * cadence:
        yield row.finding(
            "acc",
            "cannot-converge",
            f"the run stops at {limit[0]:,.0f} samples and is evaluated every {cadence:,}: no time to accuracy; "
            "say so, or publish a whole run",
        )


def losses(row: Row) -> Iterator[Finding]:
    """A row that says its losses are aligned has losses."""
    if row.publication.aligned and ("loss" not in row.metrics or "loss" in row.publication.withdrawn):
        yield row.finding(
            "loss",
            "aligned-without-losses",
            "the losses are said to be aligned, and there are none; publish each step's",
        )


def withdrawn(row: Row) -> Iterator[Finding]:
    """A value that a newer version of the table no longer has."""
    for name in row.publication.withdrawn:
        yield row.finding(name, "withdrawn", "a newer version of the table has no such value; say which one holds")
    if row.publication.superseded:
        name = next((name for name in _SPEEDS if name in row.metrics), "e2e_time")
        yield row.finding(name, "withdrawn", "a newer version of the table has no such row; say which one holds")


def _target(row: Row) -> float | None:
    target = row.case.presets["reference"].get("train", {}).get("target_acc")
    return None if target is None else float(target)
