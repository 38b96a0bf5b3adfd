"""Runs the entrypoint of a case in this Python environment, without a container: the launcher of `--via native`."""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import flagbench_core
from flagbench.errors import FlagbenchError
from flagbench.machine.diagnosis import Diagnosis, Level
from flagbench.manifests.compile import compiled_files, find_stale
from flagbench.manifests.lookup import native_remedy
from flagbench.manifests.stack import Stack
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.container_exit import RunEnd, choose_exit_code, find_record, record_of_killed
from flagbench.runs.launchers.folders import output_folder
from flagbench.runs.launchers.frozen import TIMEOUT_SECONDS, FrozenWatch, explain_freeze, is_stopped
from flagbench.runs.request import RunRequest
from flagbench.system.checkout import commit
from flagbench.system.signals import Forwarding
from flagbench_core import process_limits, python_module, scratch
from flagbench_core.environment import LAUNCHER
from flagbench_core.exit_codes import ExitCode

NEEDED = ("flagbench_cases", "torch", "numpy", "psutil", "tokenizers", "safetensors")
"""Modules that every case imports; the manifest of a case names the others."""
_PYTHON = (sys.executable, "-m", "flagbench_cases")
"""The words that start the entrypoint, as a person would type them."""
_PR_SET_PDEATHSIG = 1
"""The option of Linux's prctl that sets the signal sent to a process when its parent dies."""
_SIGNALS = {number.value: number.name for number in signal.Signals}
"""The names of signals by their numbers; most real-time signals have none."""


_INSTALL = "run `pip install -e '.[cases]'` in the checkout of flagbench, or use --via docker"
"""The remedy for a module that is not installed."""


def require_modules(names: Iterable[str], activity: str, remedy: str = _INSTALL) -> None:
    """Raise FlagbenchError (USAGE) if a module is not installed in this Python.

    `activity` is what imports the modules, such as `a native run`.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise FlagbenchError(f"{activity} imports {', '.join(missing)}, not installed in this Python", remedy=remedy)


def check_manifests(request: RunRequest) -> None:
    """Raise FlagbenchError (USAGE) if the image side of this Python has other manifests than those of `request`.

    The image side reads manifests that were compiled into its package, which may be older.
    """
    package = Path(flagbench_core.__file__).parents[1] / "flagbench_cases"
    stale = find_stale(package, compiled_files([request.case], [request.stack]), ())
    if stale:
        raise FlagbenchError(
            f"this Python would run other manifests than are here: {', '.join(stale)} of {package} differ from them",
            remedy="run `flagbench manifests compile` in its checkout, or use --via docker with a new image",
        )


def check_ranks(request: RunRequest) -> None:
    """Raise FlagbenchError (USAGE) for a run on cpu with more ranks than this machine has processors for."""
    if request.stack.device_kind != "cpu":
        return
    excess = process_limits.excess_of_ranks(request.options.gpus)
    if excess is not None:
        raise FlagbenchError(excess, remedy="use fewer --gpus, or a machine with more processors")


class NativeLauncher:
    """The launcher of `--via native`."""

    def health(self) -> Diagnosis:
        """A finding on whether the modules that every case imports are installed in this Python."""
        try:
            require_modules(NEEDED, "a native run")
        except FlagbenchError as error:
            return Diagnosis("native", Level.WARN, error.message, error.remedy)
        return Diagnosis("native", Level.OK, f"this Python has {', '.join(NEEDED)}")

    def command(self, request: RunRequest) -> str:
        """The shell command that starts the entrypoint.

        Raises FlagbenchError (USAGE) if a module is missing, the image side has other manifests, or there are too few
        processors for the ranks.
        """
        check_ranks(request)
        activity = f"a native run of {request.case.name}"
        require_modules(NEEDED, activity)
        remedy = _INSTALL
        for module in request.case.imports:
            remedy = native_remedy(request.name, module, request.stack) or remedy
        require_modules(request.case.imports, activity, remedy)
        check_manifests(request)
        variables = [f"{name}={value}" for name, value in request.environment.items()]
        return shlex.join([f"FLAGBENCH_STACK={request.stack.name}", *variables, *_PYTHON, *request.arguments()])

    def check(self, request: RunRequest) -> None:
        """Raise FlagbenchError (USAGE) as `command` does."""
        self.command(request)

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run `python -m flagbench_cases`; its progress goes to this process's stderr."""
        self.check(request)
        defaults = {}
        checkout_commit = commit()
        if checkout_commit is not None:
            defaults["FLAGBENCH_COMMIT"] = checkout_commit
        with output_folder(request.options.out):
            end = run_image_side(
                request.arguments(),
                request.stack,
                defaults,
                request.environment,
                timeout=request.options.timeout or TIMEOUT_SECONDS,
            )
        signalled = end.signalled is not None
        if record := find_record(end.printed):
            return LaunchResult(record, choose_exit_code(record, end.code), signalled)
        # Only node 0 prints a record; the entrypoint may know its node rank from the platform's variables alone.
        if request.options.nodes > 1 and end.code is not None and end.code >= 0:
            return LaunchResult(b"", end.code)
        error = explain_missing_output(end)
        return LaunchResult(record_of_killed(request, error), int(error.code), signalled)


def run_image_side(
    arguments: Sequence[str],
    stack: Stack,
    defaults: Mapping[str, str],
    variables: Mapping[str, str] | None = None,
    *,
    timeout: float = math.inf,
) -> RunEnd:
    """Run `python -m flagbench_cases` to its end and read what it prints. Signals are forwarded: see `Forwarding`.

    It runs in its own session, so that Ctrl-C on a terminal reaches it only once, through this process.

    Args:
        arguments: the arguments of the program.
        stack: the stack that it runs on.
        defaults: variables of its environment that this process's variables override.
        variables: variables of its environment that override this process's.
        timeout: seconds for which it may be frozen.
    """
    printed = bytearray()
    # Forwarding is entered first: a signal that arrives while the child is started must not be lost.
    with (
        Forwarding() as forwarder,
        subprocess.Popen(
            [sys.executable, *python_module.options("flagbench_cases"), *arguments],
            # FLAGBENCH_STORE is empty because this process stores the record.
            env={
                **defaults,
                **os.environ,
                **(variables or {}),
                LAUNCHER: "native",
                "FLAGBENCH_STACK": stack.name,
                "FLAGBENCH_STORE": "",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        ) as child,
    ):
        assert child.stdout is not None
        kill = child.kill  # its ranks die with it, even stopped ones
        watch = FrozenWatch(partial(is_stopped, child.pid), kill, timeout=timeout)
        interruption = forwarder.follow(child, {child.stdout: printed.extend}, child.send_signal, kill, watch.look)
    if child.returncode < 0:
        # A process that a signal killed could not remove its temporary files.
        scratch.remove_leftovers()
    return RunEnd(
        bytes(printed),
        child.returncode,
        interruption.signal,
        interruption.killed_after,
        frozen_for=watch.killed_after,
    )


def explain_missing_output(end: RunEnd) -> FlagbenchError:
    """The error that says why a process printed nothing."""
    if end.frozen_for is not None:
        return explain_freeze(end.frozen_for)
    if end.signalled is not None:
        reason = f"interrupted by {signal.Signals(end.signalled).name}"
        if end.killed_after is not None:
            reason += f"; the run did not end within {end.killed_after:.0f} s and was killed"
        return FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED)
    code = end.code or 0
    how = f"exit code {code}"
    if code < 0:
        how = _SIGNALS.get(-code, f"signal {-code}")
    error_code = ExitCode.RANK_FAILED
    if code in set(ExitCode) - {ExitCode.OK}:
        error_code = ExitCode(code)
    return FlagbenchError(
        f"the run ended with {how} before it could print a record",
        remedy="see its messages above; the kernel log names processes killed for memory",
        code=error_code,
    )


def _end_with_parent() -> None:
    """Make the kernel send this process SIGTERM when its parent dies, even by SIGKILL.

    The child calls it between fork and exec. Without its parent nobody reads the record; with --out the run still
    writes it.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
