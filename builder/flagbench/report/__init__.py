"""Verdicts, explanations, comparisons and generated pages, as text."""

from flagbench.report.explanation import explanation_page
from flagbench.report.tables import comparison_table, verdict_table

__all__ = ["comparison_table", "explanation_page", "verdict_table"]
