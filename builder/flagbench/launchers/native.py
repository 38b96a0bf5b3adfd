"""Runs the entrypoint of a case in this Python environment, without a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.base import LaunchResult, RunRequest
from flagbench.launchers.fallback import record_of_killed

NEEDED = ("flagbench_cases", "torch", "numpy", "psutil", "tokenizers", "safetensors")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NativeLauncher:
    """The launcher of `--via native`."""

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run `python -m flagbench_cases`; its progress goes to this process's stderr."""
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise FlagbenchError(
                f"a native run imports {', '.join(missing)}, and this Python has not got it",
                remedy="install the image side's needs with `pip install 'flagbench[cases]'`",
            )
        environment = dict(os.environ, FLAGBENCH_STACK=request.stack.name)
        command = [sys.executable, "-m", "flagbench_cases", *request.arguments()]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child, _forwarding(child):
            printed, _ = child.communicate()
        code = child.returncode
        # Node 0 speaks for the job; of another node only the code is told.
        if printed.strip() or (request.node_rank and code >= 0):
            return LaunchResult(printed, code)
        reason = f"the run ended with {_ending(code)} before it could print a record"
        remedy = "see its messages above; the kernel log names processes killed for memory"
        return LaunchResult(
            record_of_killed(request, reason, remedy, ExitCode.RANK_FAILED), int(ExitCode.RANK_FAILED)
        )


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals to the run, which ends its ranks and still prints its record; then wait for it as before.

    Ctrl-C reaches the run through the terminal as well; a second copy of a signal changes nothing there.
    """

    def hand_on(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
