"""Verdicts, explanations, comparisons and generated pages, as text."""

from flagbench.report.verdict_page import comparison_table, explanation_page, verdict_table

__all__ = ["comparison_table", "explanation_page", "verdict_table"]
