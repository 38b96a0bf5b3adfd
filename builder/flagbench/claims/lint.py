"""All rules over a published table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flagbench.catalog.model import Case, Catalog
from flagbench.claims.finding import Finding
from flagbench.claims.interpret import interpret
from flagbench.claims.rows import Row
from flagbench.claims.rules import (
    copies,
    limits,
    missing,
    order,
    outcome,
    padding,
    scaling,
    settings,
    times,
    utilisation,
)
from flagbench.claims.tables import read_table

WHOLE_ROW_RULES: tuple[Callable[[Row], Iterable[Finding]], ...] = (
    missing.conditions,
    missing.stated,
    missing.gate,
    order.positive,
)
"""For rows as they are printed; all others are for their measured values, by which they divide."""
ROW_RULES: tuple[Callable[[Row], Iterable[Finding]], ...] = (
    order.rates_in_order,
    times.end_to_end,
    limits.above_peak,
    limits.memory,
    utilisation.at_most_one,
    utilisation.follows,
    padding.padding_counted,
    padding.tokens_of_samples,
    outcome.accuracy,
    outcome.duplicates,
    outcome.can_converge,
    outcome.losses,
    outcome.withdrawn,
    settings.precision_label,
    settings.layout,
    settings.global_batch,
    settings.named,
    settings.software,
)
TABLE_RULES: tuple[Callable[[Sequence[Row]], Iterable[Finding]], ...] = (
    scaling.scaling,
    copies.copied,
    missing.utilisation_blank,
)


@dataclass(frozen=True)
class LintResult:
    """What was found in a table."""

    rows: int
    findings: tuple[Finding, ...]
    """By row, in the order of the rules."""
    unknown: tuple[str, ...]
    """Columns that no rule uses."""
    without_case: int
    """Rows of which no case is known: only rules that need none were applied to them."""
    unknown_devices: tuple[str, ...]
    """Devices that no manifest has: rules that need a peak or a memory were not applied to their rows."""


def lint_content(content: bytes, name: str, catalog: Catalog, case: Case | None = None) -> LintResult:
    """Check the table in the bytes of a file; `name` is what errors call it, `case` the case of rows that name none.

    Raises TableError (exit code 3) for a file that holds no table.
    """
    reading = interpret(read_table(content, name), catalog, case)
    findings = sorted(_findings(reading.rows), key=lambda finding: finding.row)
    return LintResult(
        len(reading.rows),
        tuple(findings),
        reading.unknown,
        sum(row.case is None for row in reading.rows),
        tuple(dict.fromkeys(row.device for row in reading.rows if row.device and not row.cards)),
    )


def _findings(rows: Sequence[Row]) -> Iterator[Finding]:
    measured = [order.measured(row) for row in rows]
    for row, left in zip(rows, measured, strict=True):
        yield from row.problems
        for rule in WHOLE_ROW_RULES:
            yield from rule(row)
        for rule in ROW_RULES:
            yield from rule(left)
    for table_rule in TABLE_RULES:
        yield from table_rule(measured)
