"""The rendezvous of the nodes of a run, before any rank is started: every parent process connects to that of node 0.

Node 0 compares the nodes' settings, reports which are missing and, once all are connected, sends the port of torch's
own rendezvous. A node that has already failed reports that to the others, which would otherwise wait until a timeout.
"""

import queue
import socket
import sys
import time
from typing import Any, Dict, NamedTuple, Optional, Union

from flagbench_cases.node.peers import NodeReport, Peers, parse_report
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.wire import Connection, ConnectResult, connect_async, printable
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import CaseError, ExitCode
from flagbench_cases.shared.interruption import Interruption

PROTOCOL = 1
# Seconds between two progress messages.
REPORT_SECONDS = 5.0
RETRY_SECONDS = 0.3
# How long to wait for an answer of node 0, which answers immediately.
ANSWER_SECONDS = 30.0
# How long a node that failed before the rendezvous tries to report it.
REPORT_FAILURE_SECONDS = 10.0
NODE_0_REMEDY = "check --master, and that node 0 is running"


class NodeInfo(NamedTuple):
    """What a node tells the others about itself. `same`: settings that must be equal on all nodes, by name."""

    host: str
    run_id: str
    given_run_id: Optional[str]
    same: Dict[str, Any]


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


class RendezvousClient:
    """The side of a node other than node 0."""

    def __init__(self, placement: Placement, me: NodeInfo, deadline: Deadline) -> None:
        self._placement, self._me, self._deadline = placement, me, deadline
        self._hello = {"flagbench": PROTOCOL, "node": placement.node_rank, "host": me.host}
        self._hello.update(run_id=me.given_run_id, same=me.same)
        self._who = "node %d is waiting for node 0 at %s" % (placement.node_rank, address(placement))

    def join(self) -> Peers:
        """Wait until node 0 starts the run. Raises CaseError."""
        why = "no answer yet"
        while True:
            connection = self._connect(why)
            connection.send(self._hello)
            try:
                found = self._listen(connection)
            except CaseError:
                connection.close()
                raise
            if found is not None:
                return found
            connection.close()
            why = "the connection was closed"
            time.sleep(RETRY_SECONDS)

    def report_failure(self, report: NodeReport) -> None:
        """Report to node 0 how this node failed. Raises CaseError if node 0 cannot be reached in time."""
        connection = self._connect("no answer yet")
        connection.send({**self._hello, **report.as_message()})
        connection.end_sending()
        while not connection.closed and not self._deadline.expired():
            connection.receive()
            time.sleep(0.02)
        connection.close()

    def _connect(self, why: str) -> Connection:
        answers = connect_async(self._placement.host, self._placement.port)
        while True:
            self._deadline.check("%s (%s)" % (self._who, why), NODE_0_REMEDY)
            answer = poll_result(answers, 0.1)
            if isinstance(answer, socket.socket):
                return Connection(answer)
            if answer is not None:
                why = answer.strerror or str(answer)
                time.sleep(RETRY_SECONDS)
                answers = connect_async(self._placement.host, self._placement.port)

    def _listen(self, connection: Connection) -> Optional[Peers]:
        """Read messages of node 0: the peers once the run starts, None if the connection closes before."""
        welcome = False
        missing = "for the other nodes"
        while True:
            messages = connection.receive()
            for number, message in enumerate(messages):
                report = parse_report(message)
                if report is not None and report.outcome.state != "ok":
                    found = report.outcome_with_node()
                    raise CaseError(found.reason or "", found.remedy or "", ExitCode(found.exit_code))
                if isinstance(message.get("go"), dict):
                    begun = self._begin(connection, message["go"])
                    for later in messages[number + 1 :]:
                        begun.handle(0, later)
                    return begun
                welcome = welcome or message.get("flagbench") == PROTOCOL
                missing = printable(str(message.get("waits") or missing))[:200]
            if connection.foreign is not None:
                reason = "the server at %s is not flagbench; it sent %r" % (
                    address(self._placement),
                    connection.foreign,
                )
                raise CaseError(reason, NODE_0_REMEDY, ExitCode.ENGINE)
            if connection.closed:
                return None
            if not welcome and time.monotonic() - connection.opened > ANSWER_SECONDS:
                reason = "%s accepts connections but has not answered for %.0f s" % (
                    address(self._placement),
                    ANSWER_SECONDS,
                )
                raise CaseError("node 0 at " + reason, NODE_0_REMEDY, ExitCode.TIMEOUT)
            if welcome:
                status = "node %d is connected to node 0 at %s and is waiting %s" % (
                    self._placement.node_rank,
                    address(self._placement),
                    missing,
                )
                self._deadline.check(status, "start the missing nodes")
            else:
                self._deadline.check("%s (connected, no answer yet)" % self._who, NODE_0_REMEDY)
            connection.wait(0.1)

    def _begin(self, connection: Connection, go: Dict[str, Any]) -> Peers:
        port, run_id = go.get("port"), str(go.get("run_id"))
        if not isinstance(port, int) or not 0 < port < 65536:
            raise CaseError("node 0 sent no valid port", "use the same image on every node", ExitCode.USAGE)
        hosts = {0: printable(str(go.get("host") or connection.peer))[:200], self._placement.node_rank: self._me.host}
        return Peers(self._placement.node_rank, {0: connection}, hosts, port, run_id)


def connect(placement: Placement, me: NodeInfo, seconds: float, interruption: Interruption) -> Peers:
    """Wait until all nodes are connected, at most `seconds`; returns the peers.

    Raises CaseError: usage (2) for nodes with different settings, timeout (6), interrupted (7), network (15), and the
    error of another node that failed meanwhile.
    """
    from flagbench_cases.node.rendezvous_server import RendezvousServer

    deadline = Deadline(seconds, interruption)
    return (
        RendezvousClient(placement, me, deadline).join()
        if placement.node_rank
        else RendezvousServer(placement, me, deadline).wait_for_all()
    )


def report_failure(placement: Placement, host: str, outcome: Outcome, interruption: Interruption) -> None:
    """Report a failure to nodes that have not connected yet, for a limited time: they may start later."""
    from flagbench_cases.node.rendezvous_server import RendezvousServer

    deadline = Deadline(REPORT_FAILURE_SECONDS, interruption)
    me = NodeInfo(host, "", None, {})
    report = NodeReport(placement.node_rank, host, outcome)
    log("%s; reporting this to the other nodes for at most %.0f s" % (outcome.reason, REPORT_FAILURE_SECONDS))
    try:
        if placement.node_rank:
            RendezvousClient(placement, me, deadline).report_failure(report)
        else:
            RendezvousServer(placement, me, deadline).reject_all(report)
    except CaseError:
        return
