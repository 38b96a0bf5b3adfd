"""Runs the entrypoint of a case in this Python environment, without a container."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from flagbench.checkout import commit
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers import Health, LaunchResult
from flagbench.launchers.container_exit import exit_code, record_in
from flagbench.launchers.fallback import record_of_killed
from flagbench.launchers.folders import output_folder
from flagbench.launchers.signals import Forwarding, Grace
from flagbench.request import RunRequest

NEEDED = ("flagbench_cases", "torch", "numpy", "psutil", "tokenizers", "safetensors")
"""What every case imports; a case's manifest names what it imports beside these."""
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2


def command_of(request: RunRequest) -> list[str]:
    """The command line of a native run."""
    return [sys.executable, "-m", "flagbench_cases", *request.arguments()]


def require_modules(names: Iterable[str], doing: str) -> None:
    """Raise FlagbenchError (usage) where this Python lacks a module that `doing` imports."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise FlagbenchError(
            f"{doing} imports {', '.join(missing)}, not installed in this Python",
            remedy="install what cases import with `pip install 'flagbench[cases]'`, in a checkout of flagbench "
            "with `pip install -e '.[cases]'`, or use --via docker",
        )


class NativeLauncher:
    """The launcher of `--via native`."""

    def health(self) -> Health:
        """Whether what every case imports is installed in this Python."""
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            remedy = "pip install 'flagbench[cases]'"
            return Health(False, f"not installed in this Python: {', '.join(missing)}", remedy)
        return Health(True, f"this Python has {', '.join(NEEDED)}")

    def command(self, request: RunRequest) -> str:
        """The line that starts the entrypoint. Raises FlagbenchError (usage) where what it imports is missing."""
        _require_imports(request)
        return f"FLAGBENCH_STACK={request.stack.name} {shlex.join(command_of(request))}"

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run `python -m flagbench_cases`; its progress goes to this process's stderr."""
        _require_imports(request)
        environment = dict(os.environ, FLAGBENCH_STACK=request.stack.name)
        if (known := commit()) is not None:
            environment.setdefault("FLAGBENCH_COMMIT", known)
        with output_folder(request.options.out):
            ended = follow(command_of(request), environment)
        if record := record_in(ended.printed):
            return LaunchResult(record, exit_code(record, ended.code))
        # Only node 0 prints a record; the entrypoint may know its node rank from the platform's variables alone.
        if request.options.nodes > 1 and ended.code >= 0:
            return LaunchResult(b"", ended.code)
        error = ended.without_record()
        return LaunchResult(record_of_killed(request, error), int(error.code))


def _require_imports(request: RunRequest) -> None:
    names = (*NEEDED, *request.case.raw.get("imports", ()))
    require_modules(names, f"a native run of {request.case.name}")


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    printed: bytes
    code: int
    signalled: int | None
    """The first signal that was passed on to it."""
    overdue: float | None
    """The seconds from that signal after which it was killed, where it was."""

    def without_record(self) -> FlagbenchError:
        """Why a child printed nothing."""
        if self.signalled is not None:
            reason = f"interrupted by {signal.Signals(self.signalled).name}"
            if self.overdue is not None:
                reason += f"; the run did not end within {self.overdue:.0f} s and was killed"
            return FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED)
        reason = f"the run ended with {_ending(self.code)} before it could print a record"
        remedy = "see its messages above; the kernel log names processes killed for memory"
        known = self.code in set(ExitCode) - {ExitCode.OK}
        return FlagbenchError(reason, remedy=remedy, code=ExitCode(self.code) if known else ExitCode.RANK_FAILED)


def follow(command: Sequence[str], environment: Mapping[str, str]) -> Ended:
    """Run a child to its end and read what it prints. Signals are passed on; after the grace period it is killed.

    It runs in its own session, so that Ctrl-C on a terminal reaches it only once, through this process.
    """
    limit = Grace()
    overdue: float | None = None
    # In this order: a signal that arrives while the child is started must not be lost.
    with (
        Forwarding() as forwarder,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,
        ) as child,
    ):

        def forward(number: int) -> None:
            limit.note(number)
            child.send_signal(number)

        forwarder.to(forward)
        while True:
            try:
                printed, _ = child.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if overdue is None and limit.left() == 0.0:
                    overdue = limit.used()
                    child.kill()  # its ranks die with it, even stopped ones
    return Ended(printed, child.returncode, limit.signalled, overdue)


def end_with_parent() -> None:
    """Between fork and exec: ask the kernel for a SIGTERM when this tool dies, even by SIGKILL.

    Nobody would be left to read the record; with --out the run still writes it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
