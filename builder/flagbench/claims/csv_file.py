"""The rows of a CSV file, whose columns have the names of the manifests: docs/lint-a-table.md."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flagbench.claims.numbers import Cell, read_count, read_number
from flagbench.claims.rows import Row, TableError
from flagbench.manifests.device_names import NOMINAL, find_cards
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.model import Case, Catalog
from flagbench.schema import nearest
from flagbench.terminal import brief

OF_ROW = ("id", "case", "nodes", "gpus", "precision", "executed", "memory_gib")
"""Columns that are neither a condition nor a metric."""
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "amp")
_MORE = ("global_batch_size", "epochs", "converged")
"""What rules ask for beside the conditions of the cases."""
_NUMBERS = frozenset(
    (
        *("batch_size", "global_batch_size", "gradient_accumulation_steps", "sequence_length", "choices"),
        *("epochs", "max_epochs", "learning_rate", "workers"),
    )
)
"""Conditions that rules compute with."""


def columns(catalog: Catalog) -> dict[str, str]:
    """The names that a column can have, each with its kind: `row`, `condition` or `metric`."""
    cases = catalog.cases.values()
    conditions = {name for case in cases for names in case.condition_groups.values() for name in names}
    metrics = {metric.name for case in cases for metric in case.metrics}
    # `devices` is nodes x gpus.
    return {
        **dict.fromkeys(OF_ROW, "row"),
        **dict.fromkeys(sorted({*conditions, *_MORE} - {*OF_ROW, "devices"}), "condition"),
        **dict.fromkeys(sorted(metrics), "metric"),
    }


def read_csv(text: str, name: str, catalog: Catalog) -> list[Row]:
    """The rows of a CSV text; `name` is what errors call it.

    Raises TableError: there is no row, or a column that is not known, twice there or missing; with every such cell by
    line and column, a cell that is no number where one belongs, or one whose case or precision is not known.
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        lines = [(reader.line_num, cells) for line in reader if any(cells := [cell.strip() for cell in line])]
    except csv.Error as error:
        raise TableError([f"{name}:{reader.line_num}: {error}"]) from None
    if len(lines) < 2:
        raise TableError([f"{name} has no row below a header"])
    (_, header), *rest = lines
    if len(header) == 1 and (sign := next((sign for sign in "|;\t" if sign in header[0]), "")):
        raise TableError([f"{name}:1: cells are separated by {sign!r}"], remedy="save the table as CSV, with commas")
    known = columns(catalog)
    problems = [
        f"{name}:1: unknown column {brief(column, 40)!r}{f'; did you mean {close}?' if close else ''}"
        for column in header
        if column not in known
        for close in [nearest(column, known)]
    ]
    problems += [f"{name}:1: two columns {column!r}" for column in known if header.count(column) > 1]
    if "case" not in header:
        problems.append(f"{name}:1: no column 'case'")
    if problems:
        raise TableError(problems, remedy=f"the columns are: {', '.join(known)}")
    rows = []
    for number, (line, cells) in enumerate(rest, 1):
        if len(cells) != len(header):
            problems.append(f"{name}:{line}: {len(cells)} cells, and the header has {len(header)}")
            continue
        read = _Line(name, line, dict(zip(header, cells, strict=True)), problems)
        if case := catalog.cases.get(read.choice("case", catalog.cases)):
            rows.append(_row(read, number, case, known, catalog))
    if problems:
        raise TableError(problems)
    return rows


@dataclass(frozen=True)
class _Line:
    """The cells of a line by column. What is wrong with one is added to `problems`."""

    file: str
    number: int
    cells: dict[str, str]
    problems: list[str]

    @property
    def stated(self) -> dict[str, str]:
        """The cells that hold a value."""
        return {column: text for column, text in self.cells.items() if text not in ("", NOT_PUBLISHED)}

    def problem(self, column: str, what: str) -> None:
        self.problems.append(f"{self.file}:{self.number}: {column}: {brief(self.cells[column], 40)!r} {what}")

    def choice(self, column: str, known: Collection[str]) -> str:
        """A cell that holds one of some names; empty for one that is not there."""
        text = self.stated.get(column, "")
        if (text or column == "case") and text not in known:
            self.problem(column, f"is not known; write {', '.join(known)}")
        return text

    def count(self, column: str) -> int | None:
        """A cell that holds a number of things."""
        text = self.stated.get(column)
        count = None if text is None else read_count(text)
        if text is not None and count is None:
            self.problem(column, "is not a whole number")
        return count

    def value(self, column: str) -> Cell | None:
        """A cell that holds a number, in the unit of its column."""
        text = self.stated.get(column)
        cell = None if text is None or text.endswith("%") else read_number(text)
        if text is not None and cell is None:
            self.problem(column, "is not a number")
        return cell


def _row(line: _Line, number: int, case: Case, known: Mapping[str, str], catalog: Catalog) -> Row:
    stated = line.stated
    for column in stated:
        if column in _NUMBERS:
            line.value(column)
        elif column == "converged" and stated[column].lower() not in ("true", "false"):
            line.problem(column, "is not known; write true or false")
        elif known[column] == "metric" and case.metric(column) is None:
            line.problem(column, f"is given, and {case.name} has no such metric")
    values = {column: line.value(column) for column in stated if known[column] == "metric"}
    nodes, gpus, total = line.count("nodes"), line.count("gpus"), line.value("memory_gib")
    device = stated.get("device_model", "")
    found = find_cards(device, catalog.devices.values())
    if total is not None:
        found = tuple(card for card in found if abs(card.memory_gib - total.value) <= NOMINAL * total.value) or found
    return Row(
        number=number,
        line=line.number,
        name=stated.get("id", f"row {number}"),
        case=case,
        device=device,
        cards=found,
        nodes=nodes,
        devices=nodes * gpus if nodes and gpus else None,
        precision=line.choice("precision", PRECISIONS),
        executed=line.choice("executed", PRECISIONS),
        conditions={column: text for column, text in stated.items() if known[column] == "condition"},
        metrics={name: cell for name, cell in values.items() if cell is not None},
        memory_total=total,
        blank=frozenset(column for column, text in line.cells.items() if not text),
        unstated=frozenset(column for column, text in line.cells.items() if text == NOT_PUBLISHED),
    )
