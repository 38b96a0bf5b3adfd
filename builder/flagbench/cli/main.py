"""The one place where a failure becomes text on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import typer
from typer.main import get_command

from flagbench.cli import shells
from flagbench.cli.app import app
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.stdio import NotPrinted
from flagbench.terminal import visible

# What newer releases of Typer return for an interrupt; older ones raise Abort.
_TYPER_INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns its exit code.

    A FlagbenchError is printed as `error:` and `fix:`, a usage error in Typer's words. Anything else is a bug and
    passes through, to `report_bug`.
    """
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except FlagbenchError as error:
        code = _failed(error)
    except NotPrinted as error:
        code = not_printed(error)
    except (KeyboardInterrupt, BrokenPipeError):
        code = _interrupted()
    with contextlib.suppress(NotPrinted):  # another error has been reported
        sys.stdout.flush()
    return code


def not_printed(error: NotPrinted) -> int:
    """Report that the result of a command could not be printed; returns the exit code."""
    return _failed(
        FlagbenchError(
            str(error), remedy="free space on that disk, or redirect stdout elsewhere", code=ExitCode.NOT_STORED
        )
    )


def _failed(error: FlagbenchError) -> int:
    _print(f"error: {error.message}\nfix: {error.remedy}")
    return int(error.code)


def _invoke(arguments: Sequence[str]) -> int:
    if shells.asked(arguments):
        shells.set_up(arguments)
        return int(ExitCode.OK)
    # Typer carries its own copy of click or imports click, by its release; this is the right one's.
    bases = typer.BadParameter.__mro__
    click_exception: Any = next(base for base in bases if base.__name__ == "ClickException")
    try:
        result = get_command(app).main(list(arguments), prog_name="flagbench", standalone_mode=False)
    except click_exception as error:
        error.show()
        return int(error.exit_code)
    except typer.Abort:
        return _interrupted()
    except SystemExit as stop:
        # Completion's way to end, and Typer's answer to a broken pipe that is not stdout.
        if isinstance(stop.__context__, BrokenPipeError):
            return _interrupted()
        return stop.code if isinstance(stop.code, int) else int(ExitCode.OK)
    if result == _TYPER_INTERRUPTED:
        return _interrupted()
    return int(result) if isinstance(result, int) else int(ExitCode.OK)


def _interrupted() -> int:
    _print("error: interrupted\nfix: run the command again when ready")
    return int(ExitCode.INTERRUPTED)


def report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The `sys.excepthook` of the command line: one line for a bug, the traceback with FLAGBENCH_DEBUG=1.

    The interpreter then ends with exit code 1, which is left to our own bugs.
    """
    if os.environ.get("FLAGBENCH_DEBUG") == "1":
        traceback.print_exception(kind, error, trace)
    _print(
        f"error: a bug in flagbench: {kind.__name__}: {' '.join(str(error).split())}\n"
        "fix: run it again with FLAGBENCH_DEBUG=1 and report what it prints"
    )


def _print(text: str) -> None:
    print("\n".join(map(visible, text.split("\n"))), file=sys.stderr)
