"""Verdicts, explanations, comparisons and generated pages, as text."""

from flagbench.report.comparison_page import comparison_table
from flagbench.report.explanation_page import explanation_page
from flagbench.report.verdict_page import verdict_table

__all__ = ["comparison_table", "explanation_page", "verdict_table"]
