"""Verdicts, comparisons and generated pages, as text."""

from flagbench.report.tables import comparison_table, verdict_table

__all__ = ["comparison_table", "verdict_table"]
