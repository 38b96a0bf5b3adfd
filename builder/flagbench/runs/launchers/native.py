"""Runs the entrypoint of a case in this Python environment, without a container."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import flagbench_core
from flagbench.errors import FlagbenchError
from flagbench.machine.diagnosis import Diagnosis, Level
from flagbench.manifests.compile import compiled_files, find_stale
from flagbench.manifests.stack import Stack
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.container_exit import Ended, exit_code, record_in, record_of_killed
from flagbench.runs.launchers.folders import output_folder
from flagbench.runs.request import RunRequest
from flagbench.system.checkout import commit
from flagbench.system.signals import Forwarding
from flagbench_core import process_limits, python_module, scratch
from flagbench_core.environment import LAUNCHER
from flagbench_core.exit_codes import ExitCode

NEEDED = ("flagbench_cases", "torch", "numpy", "psutil", "tokenizers", "safetensors")
"""What every case imports; a case's manifest names what it imports beside these."""
_PYTHON = (sys.executable, "-m", "flagbench_cases")
_PR_SET_PDEATHSIG = 1
_SIGNALS = {number.value: number.name for number in signal.Signals}


def require_modules(names: Iterable[str], doing: str) -> None:
    """Raise FlagbenchError (usage) where this Python lacks a module that `doing` imports."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise FlagbenchError(
            f"{doing} imports {', '.join(missing)}, not installed in this Python",
            remedy="run `pip install -e '.[cases]'` in the checkout of flagbench, or use --via docker",
        )


def check_manifests(request: RunRequest) -> None:
    """Raise FlagbenchError (usage) where a run in this Python would read other manifests than those of `request`."""
    package = Path(flagbench_core.__file__).parents[1] / "flagbench_cases"
    stale = find_stale(package, compiled_files([request.case], [request.stack]), ())
    if stale:
        raise FlagbenchError(
            f"this Python would run other manifests than are here: {', '.join(stale)} of {package} differ from them",
            remedy="run `flagbench manifests compile` in its checkout, or use --via docker with a new image",
        )


def check_ranks(request: RunRequest) -> None:
    """Raise FlagbenchError (usage) for more ranks than this machine's processors take."""
    if request.stack.device_kind != "cpu":
        return
    excess = process_limits.excess_of_ranks(request.options.gpus)
    if excess is not None:
        raise FlagbenchError(excess, remedy="use fewer --gpus, or a machine with more processors")


class NativeLauncher:
    """The launcher of `--via native`."""

    def health(self) -> Diagnosis:
        """Whether what every case imports is installed in this Python."""
        try:
            require_modules(NEEDED, "a native run")
        except FlagbenchError as error:
            return Diagnosis("native", Level.WARN, error.message, error.remedy)
        return Diagnosis("native", Level.OK, f"this Python has {', '.join(NEEDED)}")

    def command(self, request: RunRequest) -> str:
        """The line that starts the entrypoint.

        Raises FlagbenchError (usage) where what it imports is missing or of other manifests, or the processors are
        too few for the ranks.
        """
        check_ranks(request)
        names = (*NEEDED, *request.case.imports)
        require_modules(names, f"a native run of {request.case.name}")
        check_manifests(request)
        variables = [f"{name}={value}" for name, value in request.environment.items()]
        return shlex.join([f"FLAGBENCH_STACK={request.stack.name}", *variables, *_PYTHON, *request.arguments()])

    def check(self, request: RunRequest) -> None:
        """Raise FlagbenchError (usage) as `command`."""
        self.command(request)

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run `python -m flagbench_cases`; its progress goes to this process's stderr."""
        self.check(request)
        defaults = {}
        checkout_commit = commit()
        if checkout_commit is not None:
            defaults["FLAGBENCH_COMMIT"] = checkout_commit
        with output_folder(request.options.out):
            ended = follow(request.arguments(), request.stack, defaults, request.environment)
        if record := record_in(ended.printed):
            return LaunchResult(record, exit_code(record, ended.code), ended.signalled is not None)
        # Only node 0 prints a record; the entrypoint may know its node rank from the platform's variables alone.
        if request.options.nodes > 1 and ended.code is not None and ended.code >= 0:
            return LaunchResult(b"", ended.code)
        error = explain(ended)
        return LaunchResult(record_of_killed(request, error), int(error.code), ended.signalled is not None)


def follow(
    arguments: Sequence[str],
    stack: Stack,
    defaults: Mapping[str, str],
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run the image side to its end and read what it prints. Signals are forwarded; see Forwarding.

    `defaults` are overridden by the variables of this process, which `variables` override.

    It runs in its own session, so that Ctrl-C on a terminal reaches it only once, through this process.
    """
    printed = bytearray()
    # In this order: a signal that arrives while the child is started must not be lost.
    with (
        Forwarding() as forwarder,
        subprocess.Popen(
            [sys.executable, *python_module.options("flagbench_cases"), *arguments],
            # Not the store: what the run leaves is stored by this process.
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
        signalled, overdue = forwarder.follow(
            child,
            {child.stdout: printed.extend},
            child.send_signal,
            child.kill,  # its ranks die with it, even stopped ones
        )
    if child.returncode < 0:  # nobody else removes what it left
        scratch.remove_leftovers()
    return Ended(bytes(printed), child.returncode, signalled, overdue)


def explain(ended: Ended) -> FlagbenchError:
    """Why a process printed nothing."""
    if ended.signalled is not None:
        reason = f"interrupted by {signal.Signals(ended.signalled).name}"
        if ended.overdue is not None:
            reason += f"; the run did not end within {ended.overdue:.0f} s and was killed"
        return FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED)
    code = ended.code or 0
    end = f"exit code {code}"
    if code < 0:
        end = _SIGNALS.get(-code, f"signal {-code}")
    error_code = ExitCode.RANK_FAILED
    if code in set(ExitCode) - {ExitCode.OK}:
        error_code = ExitCode(code)
    return FlagbenchError(
        f"the run ended with {end} before it could print a record",
        remedy="see its messages above; the kernel log names processes killed for memory",
        code=error_code,
    )


def _end_with_parent() -> None:
    """Between fork and exec: ask the kernel for a SIGTERM when this tool dies, even by SIGKILL.

    Nobody would be left to read the record; with --out the run still writes it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
