"""Runs the command line: the one place where a failure becomes text on stderr and an exit code.

__main__.py calls it; app.py has the commands.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TypeGuard

import typer
from typer.main import get_command

from flagbench.cli import usage_errors
from flagbench.cli.app import app
from flagbench.console.output import print_error
from flagbench.console.stdio import NotPrinted
from flagbench.errors import FlagbenchError
from flagbench.system.signals import raising_interrupt
from flagbench_core import process_limits
from flagbench_core.exit_codes import ExitCode

_TYPER_INTERRUPTED = 130
"""What newer releases of Typer return for an interrupt; older ones raise Abort."""
_FILE_SYSTEM_REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.ENAMETOOLONG,
}
"""What a file system answers that is no bug of flagbench."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns its exit code.

    A FlagbenchError, a usage error, or a path that the file system refuses is printed as `error:` and `fix:`.
    Anything else is a bug and passes through, to `report_bug`.
    """
    try:
        with raising_interrupt():
            code = _invoke(arguments)
            sys.stdout.flush()
    except FlagbenchError as error:
        print_error(error.message, error.remedy)
        code = int(error.code)
    except NotPrinted as error:
        print_error(str(error), "redirect stdout to a file on a disk with free space")
        code = int(ExitCode.NOT_STORED)
    except (KeyboardInterrupt, typer.Abort, BrokenPipeError):
        print_error("interrupted", "run the command again when ready")
        code = int(ExitCode.INTERRUPTED)
    except (OSError, RuntimeError) as error:
        if process_limits.is_refusal(error):
            print_error(process_limits.reason(error), process_limits.REMEDY)
            code = int(ExitCode.RANK_FAILED)
        elif _is_refused_path(error):
            print_error(
                f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}",
                "make it accessible to you, or name another path",
            )
            code = int(ExitCode.USAGE)
        else:
            raise
    with contextlib.suppress(NotPrinted):  # another error has been reported
        sys.stdout.flush()
    return code


def _is_refused_path(error: OSError | RuntimeError) -> TypeGuard[OSError]:
    """Whether a file system refused a path that the error names."""
    if not isinstance(error, OSError) or not isinstance(error.filename, (str, bytes)):
        return False
    return error.errno in _FILE_SYSTEM_REFUSALS


def _invoke(arguments: Sequence[str]) -> int:
    """Run the command, or set up completion. Returns the exit code; the errors of commands pass through."""
    if arguments and arguments[0].partition("=")[0] in ("--install-completion", "--show-completion"):
        from flagbench.cli import shells  # commands do not need it

        shells.set_up(arguments)
        return int(ExitCode.OK)
    try:
        result = get_command(app).main(list(arguments), prog_name="flagbench", standalone_mode=False)
    except usage_errors.click_exception() as error:
        return usage_errors.print_usage_error(error)
    except SystemExit as stop:
        # Completion's way to end, and Typer's answer to a broken pipe that is not stdout.
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        return _code_of(stop.code)
    if result == _TYPER_INTERRUPTED:
        raise KeyboardInterrupt
    return _code_of(result)


def _code_of(result: object) -> int:
    """The exit code that a command returned. Commands without one return None, or what their function returned."""
    if isinstance(result, int):
        return result
    return int(ExitCode.OK)


def report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The `sys.excepthook` of the command line: one line for a bug, the traceback with FLAGBENCH_DEBUG=1.

    The interpreter then ends with exit code 1, which is left to our own bugs.
    """
    if os.environ.get("FLAGBENCH_DEBUG") == "1":
        sys.__excepthook__(kind, error, trace)
    print_error(
        f"a bug in flagbench: {kind.__name__}: {' '.join(str(error).split())}",
        "run it again with FLAGBENCH_DEBUG=1 and report what it prints",
    )
