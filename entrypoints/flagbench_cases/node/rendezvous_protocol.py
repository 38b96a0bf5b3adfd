"""What both sides of `rendezvous` have in common: what a node tells about itself, and how long it waits."""

import queue
import socket
import sys
import time
from typing import Any, Dict, NamedTuple, Optional, Union

from flagbench_cases.node.placement import Placement
from flagbench_cases.node.wire import ConnectResult
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode

PROTOCOL = 1
# Seconds between two progress messages.
REPORT_SECONDS = 5.0
RETRY_SECONDS = 0.3
# How long a node that failed before the rendezvous tries to report it.
REPORT_FAILURE_SECONDS = 10.0


class NodeInfo(NamedTuple):
    """What a node tells the others about itself. `same`: settings that must be equal on all nodes, by name;
    `record_id`: that of the record, if this is node 0."""

    host: str
    run_id: str
    given_run_id: Optional[str]
    same: Dict[str, Any]
    record_id: str = ""


class Deadline:
    """A limit on waiting, with progress messages every few seconds."""

    def __init__(self, seconds: float, interruption: Interruption) -> None:
        self.seconds = seconds
        self._interruption = interruption
        self._began = time.monotonic()
        self._said = float("-inf")

    def expired(self) -> bool:
        """Whether the limit is reached or a signal was received."""
        return bool(self._interruption) or time.monotonic() - self._began > self.seconds

    def check(self, status: str, remedy: str) -> None:
        """Report what this node waits for. Raises CaseError: interrupted (7) after a signal, timeout (6) at the
        limit."""
        elapsed = time.monotonic() - self._began
        if self._interruption:
            raise CaseError(self._interruption.reason, "run again", ExitCode.INTERRUPTED)
        if elapsed > self.seconds:
            raise CaseError("%s: gave up after %.0f s" % (status, elapsed), remedy, ExitCode.TIMEOUT)
        if time.monotonic() - self._said >= REPORT_SECONDS:
            self._said = time.monotonic()
            log("%s (%.0f s of at most %.0f s); %s" % (status, elapsed, self.seconds, remedy))


def log(message: str) -> None:
    """Print a line on stderr; errors are ignored."""
    try:
        sys.stderr.write("flagbench: %s\n" % message)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def address(placement: Placement) -> str:
    """HOST:PORT of node 0."""
    return "%s:%d" % ("[%s]" % placement.host if ":" in placement.host else placement.host, placement.port)


def poll_result(answers: ConnectResult, seconds: float) -> Union[socket.socket, OSError, None]:
    """The result of `connect_async`; None if it is not available after `seconds`."""
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None
