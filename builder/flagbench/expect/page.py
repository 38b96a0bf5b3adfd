"""Shows what has been published of a model for a device: a sentence, a table of rows, and what to run."""

from __future__ import annotations

from collections.abc import Sequence

from flagbench.console.page import Block, Lines, Table
from flagbench.expect.answer import PublishedResults
from flagbench.expect.rows import differing
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.rows import Claim, PublishedRow
from flagbench.verdict.conditions import describe_all

_COLUMNS = ("ROW", "DEVICE", "GPUS", "TASK", "PRECISION", "BATCH, SEQUENCE", "PUBLISHED", "SOFTWARE", "DIFFERS")
_DROP: tuple[str, ...] = ("BATCH, SEQUENCE",)
"""The columns that a narrow terminal leaves out."""
_BELOW: tuple[str, ...] = ("SOFTWARE", "DIFFERS", "DEVICE", "PRECISION", "GPUS")
"""The columns that a still narrower one shows under each row, in the order in which they are moved there."""
_LONGEST_NUMBER = 9
"""Most characters of a published number in the table; a longer one is rounded to four digits."""


def results_page(results: PublishedResults, *, wide: bool) -> list[Block]:
    """Return a sentence, a table of rows, and notes on what to run.

    With `wide`, the table has all rows, and the details of each follow it.
    """
    rows = results.first_rows
    details = []
    if wide:
        rows = results.rows_in_order
        details = [f"{row.id}: {_details(row)}" for row in rows]
    notes = _notes(results, left_out=len(results.rows_in_order) - len(rows))
    return [
        Lines((_sentence(results),)),
        _table(results, rows, wide=wide),
        Lines(tuple(notes)),
        Lines(tuple(details)),
    ]


def _table(results: PublishedResults, rows: Sequence[PublishedRow], *, wide: bool) -> Table:
    drop, below = _DROP, _BELOW
    if results.task is None:
        below = ("TASK", *below)
    else:
        drop = (*drop, "TASK")  # rows of another task say so under DIFFERS
    cells = [_cells(results, row, wide=wide) for row in rows]
    return Table(_COLUMNS, cells, right=frozenset(("GPUS",)), drop=drop, below=below)


def _notes(results: PublishedResults, left_out: int) -> list[str]:
    """Return how many rows are left out, what to run, and which cases have unknown or insufficient memory."""
    notes = []
    if left_out:
        notes.append(f"rows that --wide adds: {left_out}")
    to_run = []
    if results.cases:
        to_run.append(f"flagbench runs it as: {', '.join(results.cases)}")
    claims = [row.id for row in results.matching_rows if isinstance(row, Claim)]
    if claims:
        to_run.append(f"a row, with its settings: `flagbench reproduce {claims[0]}`")
    if to_run:
        notes.append("; ".join(to_run))
    for text in results.to_plan:
        notes.append(f"memory was not measured: {text}")
    for text in results.too_large:
        notes.append(f"more memory is needed: {text}")
    return notes


def _sentence(results: PublishedResults) -> str:
    """Return how many rows have been published, and which is the nearest."""
    subject = results.model
    if results.task is not None:
        subject = f"{results.name}, {results.task},"
    certain = len(results.matching_rows)
    possible = len(results.possible_rows)
    if certain == 0:
        sentence = f"No published row is of {subject} on {results.device.name}"
        if possible:
            sentence += f" for certain, and {possible} may be"
        return f"{sentence}; {_nearest_text(results)}."
    rows = "published rows are"
    if certain == 1:
        rows = "published row is"
    sentence = f"{certain} {rows} of {subject} on {results.device.name}"
    if possible:
        sentence += f", and {possible} more may be"
    return f"{sentence}; {_nearest_text(results)}."


def _nearest_text(results: PublishedResults) -> str:
    nearest = [*results.candidate_rows, *results.rows_of_other_devices]
    if not nearest:
        return "nor on any other device"
    return f"the nearest is {_description(nearest[0])}"


def _cells(results: PublishedResults, row: PublishedRow, *, wide: bool) -> tuple[str, ...]:
    """Return the cells of a row, in the order of _COLUMNS."""
    conditions = differing(row, results.wanted)
    differs = ", ".join(condition.name for condition in conditions)
    if wide:
        differs = describe_all(conditions)
    shape = row.batch
    sequence = row.text("sequence_length")
    if sequence:
        shape = f"{row.batch or '-'}, {sequence}"
    return (
        row.id,
        row.device,
        str(row.count("devices") or ""),
        row.task,
        row.precision_label or "",
        shape,
        _speed_text(row),
        row.software or NOT_PUBLISHED,
        differs,
    )


def _description(row: PublishedRow) -> str:
    """Return a row in a few words, such as `12,473 tokens/s on 8 x H100 SXM, pretraining, fp8 (ROW)`."""
    device = row.device
    devices = row.count("devices")
    if devices:
        device = f"{devices} x {device}"
    text = f"{_speed_text(row)} on {device}"
    if row.task:
        text += f", {row.task}"
    if row.precision_label:
        text += f", {row.precision_label}"
    return f"{text} ({row.id})"


def _speed_text(row: PublishedRow) -> str:
    """Return the published speed with its unit, and its name if that is a time; without a speed, the first metric."""
    metric = row.speed or row.metrics[0]
    number = metric.digits
    if len(number) > _LONGEST_NUMBER:
        number = f"{metric.value:.4g}"
    text = f"{number} {metric.unit}"
    if metric.name.endswith("_per_device"):
        text += "/device"
    if row.speed is None or metric.unit == "s":
        return f"{metric.name} {text}"
    return text


def _details(row: PublishedRow) -> str:
    """Return what the cells of a row do not show, and its source."""
    details = (row.text("layout"), row.remarks, row.citation)
    return "; ".join(detail for detail in details if detail)
