"""Runs the entrypoint of a case in this Python environment, without a container."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

from flagbench.checkout import commit
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.base import LaunchResult, RunRequest
from flagbench.launchers.fallback import record_of_killed
from flagbench.launchers.signals import Forwarding

NEEDED = ("flagbench_cases", "torch", "numpy", "psutil", "tokenizers", "safetensors")
"""What every case imports; a case's manifest names what it imports beside these."""
_PR_SET_PDEATHSIG = 1


class NativeLauncher:
    """The launcher of `--via native`."""

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run `python -m flagbench_cases`; its progress goes to this process's stderr."""
        missing = [name for name in (*NEEDED, *request.case.raw.get("imports", ())) if find_spec(name) is None]
        if missing:
            raise FlagbenchError(
                f"a native run of {request.case.name} imports {', '.join(missing)}, and this Python has not got it",
                remedy="install what cases import with `pip install 'flagbench[cases]'`, in a checkout of flagbench "
                "with `pip install -e '.[cases]'`",
            )
        environment = dict(os.environ, FLAGBENCH_STACK=request.stack.name)
        if (known := commit()) is not None:
            environment.setdefault("FLAGBENCH_COMMIT", known)
        command = [sys.executable, "-m", "flagbench_cases", *request.arguments()]
        # In this order: a signal that comes while the child is made must not be lost.
        with (
            Forwarding() as hands,
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, preexec_fn=end_with_parent) as child,
        ):
            hands.to(child.send_signal)
            printed, _ = child.communicate()
        code = child.returncode
        # Node 0 speaks for the job; which node this is, the entrypoint may know from its platform alone.
        if printed.strip() or (request.nodes > 1 and code >= 0):
            return LaunchResult(printed, code)
        reason = f"the run ended with {_ending(code)} before it could print a record"
        remedy = "see its messages above; the kernel log names processes killed for memory"
        ended = ExitCode(code) if code in set(ExitCode) - {ExitCode.OK} else ExitCode.RANK_FAILED
        return LaunchResult(record_of_killed(request, reason, remedy, ended), int(ended))


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
