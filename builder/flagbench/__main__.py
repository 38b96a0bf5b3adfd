"""The entry point of `flagbench`: answers `--version` at once and hands everything else to cli/main.py.

Modules are imported within functions, in the order in which they are needed: start-up time is what a user waits for.
"""

from __future__ import annotations

import gc
import os
import sys

_COLLECT_AFTER = 100_000
"""New objects between two garbage collections. With Python's default of 700, importing modules causes about 50."""
INTERRUPTED = 7
"""The exit code of an interrupted command: ExitCode.INTERRUPTED, which is not imported yet."""


def main() -> int:
    """Run the command line with this process's arguments; returns the exit code."""
    # With PYTHONINSPECT, Python would print the exception of sys.exit, wait for input and end with another code. It
    # is removed for child processes. Python has read it already, so this process must end without Python's own exit.
    inspects = os.environ.pop("PYTHONINSPECT", "") != ""
    code = _run()
    if inspects:
        os._exit(code)
    return code


def _run() -> int:
    """Answer `--version`, or install stdio and signal handlers and run the command line. Returns the exit code."""
    if sys.argv[1:] == ["--version"]:
        # Answered before anything else is imported: scripts ask for the version in loops.
        from flagbench_core import __version__

        try:
            os.write(1, f"flagbench {__version__}\n".encode())
            return 0
        except OSError:
            pass  # stdout is slow, full or closed: `stdio`, below, handles it as for every other command
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
    """End at once if interrupted while modules are imported: a KeyboardInterrupt there would print a traceback."""
    os.write(2, b"error: interrupted\nfix: run the command again when ready\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
