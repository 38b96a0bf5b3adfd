"""The entry point: answers `--version` at once and hands everything else to the command line."""

from __future__ import annotations

import gc
import os
import sys

_COLLECT_AFTER = 100_000
"""New objects between two garbage collections. Python's 700 collect some 50 times while modules are imported."""


def main() -> int:
    """Run the command line with this process's arguments; returns the exit code."""
    # With it Python prints the exception of sys.exit, waits for input and ends with another code; children, too.
    inspects = os.environ.pop("PYTHONINSPECT", "") != ""
    code = _run()
    if inspects:
        os._exit(code)
    return code


def _run() -> int:
    if sys.argv[1:] == ["--version"]:
        # Answered before anything else is imported: scripts ask for the version in loops.
        from flagbench_core import __version__

        try:
            os.write(1, f"flagbench {__version__}\n".encode())
            return 0
        except OSError:
            pass  # a slow reader, a full disk, none at all: as for every other command
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_interrupted)
    from flagbench.console import stdio

    stdio.install()
    gc.set_threshold(_COLLECT_AFTER)
    from flagbench.cli import main as cli

    sys.excepthook = cli.report_bug
    return cli.run(sys.argv[1:])


def _end_interrupted(number: int, frame: object) -> None:
    """End at once, while modules are imported: a KeyboardInterrupt there would be a traceback."""
    os.write(2, b"error: interrupted\nfix: run the command again when ready\n")
    os._exit(7)


if __name__ == "__main__":
    sys.exit(main())
