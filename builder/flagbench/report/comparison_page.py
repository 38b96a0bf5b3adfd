"""The comparison of two records, A and B, as a person reads it: the text that `flagbench compare` prints.

It says whether B is as fast as A, which conditions and settings differ, and whether both have the same losses.
"""

from __future__ import annotations

from typing import TextIO

from flagbench.console.page import Block, Lines, Table, render
from flagbench.report.verdict_page import (
    STYLES,
    estimate_text,
    ratio_text,
    setting_text,
    verdict_sentence,
)
from flagbench.verdict import Comparison, VerifyResult
from flagbench.verdict.conditions import shown
from flagbench.verdict.losses import FIRST_STEP, LIMIT, LossComparison, percent


def comparison_table(
    comparison: Comparison, speed: VerifyResult | None, *, stream: TextIO | None = None, wide: bool = False
) -> str:
    """Return the comparison as text for `stream` (default stdout): the verdict, what differs, then each metric.

    Args:
        speed: the verdict on B with A as the baseline; None if there is none, because A and B are the same record.
        wide: whether to show all columns, however wide the terminal is.
    """
    blocks = (
        *_speed_blocks(comparison, speed),
        Lines((f"A  {comparison.a.record_id}", f"B  {comparison.b.record_id}")),
        _condition_table(comparison),
        _setting_table(comparison),
        _metric_table(comparison),
        Lines(_comparison_notes(comparison)),
        Lines(_loss_notes(comparison.losses)),
    )
    return render(blocks, stream, wide=wide)


def _condition_table(comparison: Comparison) -> Table:
    rows = []
    for condition in comparison.conditions:
        rows.append((condition.name, shown(condition.expected), shown(condition.here)))
    return Table(("condition that differs", "A", "B"), rows, wrap=("A", "B"))


def _setting_table(comparison: Comparison) -> Table:
    rows = []
    for path, setting_of_a, setting_of_b in comparison.config:
        rows.append((path, setting_text(setting_of_a), setting_text(setting_of_b)))
    return Table(("setting that differs", "A", "B"), rows, wrap=("A", "B"))


def _metric_table(comparison: Comparison) -> Table:
    rows = []
    for metric in comparison.metrics:
        ratio = ratio_text(metric.ratio)
        rows.append((metric.name, estimate_text(metric.a), estimate_text(metric.b), metric.unit, ratio))
    columns = ("metric", "A", "B", "unit", "B/A")
    return Table(columns, rows, right=frozenset({"A", "B", "B/A"}), drop=("unit", "B", "A"))


def _speed_blocks(comparison: Comparison, speed: VerifyResult | None) -> list[Block]:
    """Return the verdict on B with A as the baseline, in the words of `verify`, or why there is none."""
    if comparison.problems:
        return [Lines(comparison.problems, "bold")]
    if speed is None:
        return [Lines(("A and B are one record",), "bold")]
    headline = verdict_sentence(speed, runs="B", are="is", baseline="the baseline A")
    blocks: list[Block] = [Lines((headline,), STYLES[speed.style])]
    if not speed.only_conditions_differ:  # the headline names the conditions
        blocks.append(Lines((speed.reason,)))
    return blocks


def _comparison_notes(comparison: Comparison) -> tuple[str, ...]:
    """Return a note if nothing differs, and one for each method by which intervals were computed.

    The intervals of A and B are those within a run, that of B/A is the one between runs.
    """
    notes = []
    if not comparison.conditions and not comparison.config:
        notes.append("no condition and no setting differs")
    labels_by_method: dict[str, list[str]] = {}
    for metric in comparison.metrics:
        for label, number in (("A", metric.a), ("B", metric.b), ("B/A", metric.ratio)):
            if number is None or number.ci_method is None:
                continue
            labels = labels_by_method.setdefault(number.ci_method, [])
            if label not in labels:
                labels.append(label)
    for method, labels in labels_by_method.items():
        notes.append(f"95 % interval of {', '.join(labels)}: {method}")
    return tuple(notes)


def _loss_notes(losses: LossComparison | None) -> tuple[str, ...]:
    """Return notes that say whether two runs have the same losses, and from which step on they differ."""
    if losses is None:
        return ()
    rule = f"mean of |B - A| / |A| from step {FIRST_STEP} on less than {percent(LIMIT)}"
    notes = [f"losses {losses.outcome.value}: {losses.reason}", f"rule, as published for Llama2-70B: {rule}"]
    if losses.errors.largest is not None:
        notes.append(f"largest error {percent(losses.errors.largest)}, at step {losses.errors.largest_step}")
    if losses.errors.parts_at is not None:
        step = losses.errors.parts_at
        notes.append(f"the losses part at step {step}: all errors from there on exceed {percent(LIMIT)}")
    return tuple(notes)
