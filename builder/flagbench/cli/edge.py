"""The former name of `flagbench.cli.main`."""

from flagbench.cli.main import report_bug, run

__all__ = ["report_bug", "run"]
