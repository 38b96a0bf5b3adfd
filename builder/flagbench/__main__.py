"""The entry point: answers `--version` at once and hands everything else to the command line."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line with this process's arguments; returns the exit code."""
    if sys.argv[1:] == ["--version"]:
        # Answered before Typer is imported: scripts ask for the version in loops.
        from flagbench._version import __version__

        print(f"flagbench {__version__}")
        return 0
    from flagbench.cli import edge

    sys.excepthook = edge.report_bug
    return edge.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
