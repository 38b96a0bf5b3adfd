"""The side of `rendezvous` of every node but node 0: connects, and waits until node 0 starts the run."""

import socket
import time
from typing import Any, Dict, Optional

from flagbench_cases.node.peers import NodeReport, Peers, parse_report
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.rendezvous_protocol import (
    PROTOCOL,
    RETRY_SECONDS,
    Deadline,
    NodeInfo,
    address,
    poll_result,
)
from flagbench_cases.node.wire import Connection, connect_async, printable
from flagbench_cases.record.request import RECORD_ID
from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode

# How long to wait for an answer of node 0, which answers immediately.
ANSWER_SECONDS = 30.0
NODE_0_REMEDY = "check --master, and that node 0 is running"


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
        port, run_id, record_id = go.get("port"), str(go.get("run_id")), str(go.get("record_id"))
        if not isinstance(port, int) or not 0 < port < 65536:
            raise CaseError("node 0 sent no valid port", "use the same image on every node", ExitCode.USAGE)
        if not RECORD_ID.fullmatch(record_id):  # it becomes part of paths
            raise CaseError("node 0 sent no valid record id", "use the same image on every node", ExitCode.USAGE)
        hosts = {0: printable(str(go.get("host") or connection.peer))[:200], self._placement.node_rank: self._me.host}
        return Peers(self._placement.node_rank, {0: connection}, hosts, port, run_id, record_id)
