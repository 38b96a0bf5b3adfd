"""All rules over the rows of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flagbench.claims.catalogue_rules import lint_catalogue
from flagbench.claims.claims_file import read_claims
from flagbench.claims.csv_file import read_csv
from flagbench.claims.rows import LintFinding, Row, TableError
from flagbench.claims.rules import device_peaks, outcome, settings, speeds
from flagbench.files import read_text, reason
from flagbench.manifests.catalogue import is_catalogue, parse_rows
from flagbench.manifests.documents import ManifestError
from flagbench.manifests.model import Catalog

WHOLE_ROW_RULES: tuple[Callable[[Row], Iterable[LintFinding]], ...] = (
    settings.conditions,
    settings.stated,
    settings.gate,
    speeds.positive,
)
"""For rows as they are printed; all others are for their measured values, by which they divide."""
ROW_RULES: tuple[Callable[[Row], Iterable[LintFinding]], ...] = (
    speeds.rates_in_order,
    outcome.end_to_end,
    device_peaks.above_peak,
    device_peaks.memory,
    device_peaks.at_most_one,
    device_peaks.follows,
    speeds.padding_counted,
    outcome.accuracy,
    outcome.can_converge,
    settings.precision_label,
    settings.devices,
    settings.layout,
    settings.global_batch,
)
TABLE_RULES: tuple[Callable[[Sequence[Row]], Iterable[LintFinding]], ...] = (
    speeds.scaling,
    speeds.copied,
    settings.utilisation_blank,
)


@dataclass(frozen=True)
class LintResult:
    """What was found in a file."""

    rows: int
    findings: tuple[LintFinding, ...]
    """By row, in the order of the rules."""
    unknown_devices: tuple[str, ...]
    """Devices that no manifest has: rules that need a peak or a memory were not applied to their rows."""


def lint_file(path: Path, catalog: Catalog) -> LintResult:
    """Check the rows of a claims/v1 file, by its suffix .yaml or .yml, or of a CSV file; `-` is CSV on stdin.

    A CSV file has the columns of `csv_file.columns` or those of the catalogue.

    Raises TableError (exit code 3) for a file that cannot be read.
    """
    shown = "standard input" if str(path) == "-" else str(path)
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise TableError([f"{shown} cannot be read: {why}"], remedy="name a file of UTF-8 text") from None
    if path.suffix in (".yaml", ".yml"):
        return lint_rows(read_claims(path, catalog))
    if is_catalogue(text):
        try:
            rows = parse_rows(text, shown, catalog.devices)
        except ManifestError as error:
            raise TableError([str(problem) for problem in error.problems]) from None
        return LintResult(len(rows), tuple(lint_catalogue(rows)), ())
    return lint_rows(read_csv(text, shown, catalog))


def lint_rows(rows: Sequence[Row]) -> LintResult:
    """What the rules find in rows, which are all of a file."""
    findings = sorted(_findings(rows), key=lambda finding: finding.row)
    unknown = dict.fromkeys(row.device for row in rows if row.device and not row.cards)
    return LintResult(len(rows), tuple(findings), tuple(unknown))


def _findings(rows: Sequence[Row]) -> Iterator[LintFinding]:
    measured = [speeds.measured(row) for row in rows]
    for row, left in zip(rows, measured, strict=True):
        for rule in WHOLE_ROW_RULES:
            yield from rule(row)
        for rule in ROW_RULES:
            yield from rule(left)
    for table_rule in TABLE_RULES:
        yield from table_rule(measured)
