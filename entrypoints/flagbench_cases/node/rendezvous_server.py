"""Node 0's side of `rendezvous`: accepts the other nodes, compares their settings, and starts when all are
connected."""

import secrets
import socket
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from flagbench_cases.node.network import free_port
from flagbench_cases.node.peers import READ_SECONDS, NodeReport, Peers, node_name, parse_report
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.rendezvous_protocol import (
    PROTOCOL,
    REPORT_FAILURE_SECONDS,
    RETRY_SECONDS,
    Deadline,
    NodeInfo,
    address,
    poll_result,
)
from flagbench_cases.node.wire import Connection, connect_async, listen, printable, wait
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_core.exit_codes import ExitCode

# How long node 0 may fail to connect to itself once its name resolves.
PROBE_SECONDS = 20.0
SAME_REMEDY = "start every node with the same arguments and the same image"
PROBE_REMEDY = "check that --master is the address of node 0, and that this machine's network and loopback are up"
MAX_DIFFERENCES = 3
# How many unidentified connections are kept, and for how long: a node identifies itself immediately.
MAX_UNIDENTIFIED = 256
IDENTIFY_SECONDS = 5.0


class RendezvousServer:
    """The side of node 0, to which the other nodes connect. Raises CaseError (15) if it cannot listen."""

    def __init__(self, placement: Placement, me: NodeInfo, deadline: Deadline) -> None:
        self._placement, self._me, self._deadline = placement, me, deadline
        self._clients: Dict[int, Connection] = {}
        self._hosts = {0: me.host}
        self._seen: Set[int] = set()
        self._unidentified: List[Connection] = []
        """Connections that have not identified themselves, or were rejected and wait to read the reason."""
        try:
            self._listener = listen(placement.port)
        except OSError as error:
            reason = "node 0 cannot listen on port %d (%s)" % (placement.port, error.strerror or error)
            remedy = "free that port, or use another port in --master on every node"
            raise CaseError(reason, remedy, ExitCode.ENGINE) from None
        self._probe = SelfProbe(placement)

    def wait_for_all(self) -> Peers:
        """Wait for all nodes. Raises CaseError, which is also sent to the connected nodes."""
        try:
            while True:
                self._serve_connections()
                self._probe.advance()
                missing = [node for node in range(1, self._placement.nodes) if node not in self._clients]
                if not missing and self._probe.done:
                    return self._begin()
                self._deadline.check(*self._waiting_for(missing))
                wait(self._sources(), 0.05)
        except CaseError as error:
            state = "interrupted" if error.code == ExitCode.INTERRUPTED else "failed"
            outcome = Outcome(state, "launch", error.message, error.remedy, int(error.code))
            lost = error.code in (ExitCode.INTERRUPTED, ExitCode.TIMEOUT)
            report = NodeReport(0 if state == "interrupted" else None, self._me.host, outcome)
            self._end(report, 0.0 if lost else REPORT_FAILURE_SECONDS)
            raise

    def reject_all(self, report: NodeReport) -> None:
        """Report to every node that connects why node 0 failed."""
        self._end(report, REPORT_FAILURE_SECONDS)

    def _waiting_for(self, missing: List[int]) -> Tuple[str, str]:
        """What node 0 is waiting for, and the remedy."""
        where = address(self._placement)
        if missing:
            nodes = "nodes" if len(missing) > 1 else "node"
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            status = "node 0 at %s is waiting for %s %s of %d" % (where, nodes, shown, self._placement.nodes)
            for connection in self._clients.values():
                connection.send_if_changed("waits", "for %s %s of %d" % (nodes, shown, self._placement.nodes))
            return status, "start the missing nodes, and check that they can reach this address"
        return "node 0 cannot connect to itself at %s yet (%s)" % (where, self._probe.reason), PROBE_REMEDY

    def _begin(self) -> Peers:
        port = free_port("")
        self._probe.close()
        for connection in self._unidentified:
            connection.close()
        me = self._me
        for connection in self._clients.values():
            go = {"port": port, "run_id": me.run_id, "record_id": me.record_id, "host": me.host}
            connection.send({"go": go})
        peers = Peers(0, self._clients, self._hosts, port, me.run_id, me.record_id)
        peers.listener = self._listener
        return peers

    # -- connections -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        clock = time.monotonic()
        for connection in [
            connection for connection in self._unidentified if clock - connection.opened > IDENTIFY_SECONDS
        ]:
            connection.close()
            self._unidentified.remove(connection)
        try:
            while len(self._unidentified) < MAX_UNIDENTIFIED:
                self._unidentified.append(Connection(self._listener.accept()[0]))
        except OSError:
            return

    def _serve_connections(self) -> None:
        """Accept new connections and drop closed ones; a dropped node may connect again."""
        for node, connection in list(self._clients.items()):
            for message in connection.receive():
                self._raise_if_failed(message)
            if connection.closed:
                connection.close()
                del self._clients[node]
        self._accept()
        for connection in list(self._unidentified):
            for message in connection.receive():
                if message.get("probe") == self._probe.secret:
                    self._probe.done = True
                elif isinstance(message.get("node"), int) and message.get("flagbench") == PROTOCOL:
                    self._seen.add(message["node"])
                    self._accept_node(connection, message["node"], message)
            if connection.closed:
                connection.close()
            if connection.closed or connection in self._clients.values():
                self._unidentified.remove(connection)

    def _raise_if_failed(self, message: Dict[str, Any]) -> None:
        """Raise CaseError if a node has failed. An interrupted node has merely left."""
        report = parse_report(message)
        if report is not None and report.outcome.state == "failed":
            found = report.outcome_with_node()
            raise CaseError(found.reason or "", found.remedy or "", ExitCode(found.exit_code))

    def _accept_node(self, connection: Connection, node: int, message: Dict[str, Any]) -> None:
        """Accept a node. Raises CaseError if its settings differ or it has failed."""
        host = printable(str(message.get("host") or connection.peer))[:200]
        self._raise_if_failed(message)
        if node == 0 or node in self._clients:
            reason = "two nodes have the node rank %d: %s and %s" % (node, self._hosts[node], host)
            raise UsageError(reason, "use a different --node-rank on every node")
        differences = self._differences(message)
        if differences:
            more = len(differences) - MAX_DIFFERENCES
            shown = ", ".join(differences[:MAX_DIFFERENCES]) + (" and %d more" % more if more > 0 else "")
            raise UsageError("%s was started with %s" % (node_name(node, host), shown), SAME_REMEDY)
        if not 0 < node < self._placement.nodes:
            raise UsageError(
                "%s is out of range for %d nodes" % (node_name(node, host), self._placement.nodes), SAME_REMEDY
            )
        self._hosts[node] = host
        if connection.closed:
            return  # it disconnected meanwhile
        self._clients[node] = connection
        connection.send({"flagbench": PROTOCOL, "host": self._me.host})

    def _differences(self, message: Dict[str, Any]) -> List[str]:
        """Messages about the settings of a node that differ from this one's."""
        theirs = message.get("same")
        theirs = theirs if isinstance(theirs, dict) else {}
        mine, given = self._me.same, message.get("run_id")
        keys = [*mine, *sorted(set(theirs) - set(mine))]
        pairs = [(str(key), theirs.get(key), mine.get(key)) for key in keys]
        if given is not None:  # a node without a run id uses this node's
            pairs.append(("--run-id", given, self._me.run_id))
        return ["%s %s where node 0 has %s" % (printable(k), _short(a), _short(b)) for k, a, b in pairs if a != b]

    # -- shutdown --------------------------------------------------------------------------------------------

    def _connections(self) -> List[Connection]:
        return [connection for connection in [*self._clients.values(), *self._unidentified] if not connection.closed]

    def _sources(self) -> List[Any]:
        """The sockets to poll."""
        return [*self._connections(), *([self._listener] if len(self._unidentified) < MAX_UNIDENTIFIED else [])]

    def _end(self, report: NodeReport, linger: float) -> None:
        """Report to all nodes why the run does not start, including those that connect within `linger` seconds."""
        notified: Set[Connection] = set()
        self._probe.close()
        deadline = time.monotonic() + linger
        while True:
            self._accept()
            for connection in self._connections():
                self._seen.update(m["node"] for m in connection.receive() if isinstance(m.get("node"), int))
                if connection not in notified:
                    notified.add(connection)
                    connection.send(report.as_message())
                    connection.end_sending()
            over = len(self._seen - {0}) >= self._placement.nodes - 1 or self._deadline.expired()
            deadline = min(deadline, time.monotonic()) if over else deadline
            left = deadline + READ_SECONDS if self._connections() else deadline
            if time.monotonic() >= left:
                break
            wait(self._sources(), 0.02)
        self._listener.close()
        for connection in [*self._clients.values(), *self._unidentified]:
            connection.close()


def _short(value: Any) -> str:
    text = printable(str(value))
    return text if len(text) <= 80 else text[:77] + "..."


class SelfProbe:
    """Tests that the master address reaches this process, which torch's rendezvous needs too."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.secret = secrets.token_hex(16)
        self.done = False
        self.reason = "no answer yet"
        self._failing_since: Optional[float] = None
        self._line: Optional[Connection] = None
        self._answers = connect_async(placement.host, placement.port)
        self._again = 0.0

    def advance(self) -> None:
        """Continue the test. Raises CaseError: 15 if another server answers; another node 0's reason if that does."""
        if self.done:
            self.close()
            return
        if self._line is not None:
            self._read_reply(self._line)
            return
        if self._again and time.monotonic() < self._again:
            return
        if self._again:
            self._again, self._answers = 0.0, connect_async(self._placement.host, self._placement.port)
        answer = poll_result(self._answers, 0.0)
        if isinstance(answer, OSError):
            # On Kubernetes a name may resolve only later, but an address must reach this process immediately.
            self._fail(answer.strerror or str(answer), known=not isinstance(answer, socket.gaierror))
        elif answer is not None:
            self._line = Connection(answer)
            self._line.send({"flagbench": PROTOCOL, "probe": self.secret, "node": 0, "host": "this address"})

    def close(self) -> None:
        """Stop the test."""
        answer = poll_result(self._answers, 0.0)
        if isinstance(answer, socket.socket):
            answer.close()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _read_reply(self, connection: Connection) -> None:
        report = next(filter(None, map(parse_report, connection.receive())), None)
        if report is not None:
            raise CaseError(
                report.outcome.reason or "", report.outcome.remedy or "", ExitCode(report.outcome.exit_code)
            )
        if connection.closed or time.monotonic() - connection.opened > PROBE_SECONDS:
            self.close()
            self._fail("another server answers there", known=True)

    def _fail(self, reason: str, known: bool) -> None:
        self.reason = reason
        clock = time.monotonic()
        self._again = clock + RETRY_SECONDS
        self._failing_since = (self._failing_since or clock) if known else None
        if self._failing_since is not None and clock - self._failing_since > PROBE_SECONDS:
            message = "node 0 cannot connect to itself at %s (%s)" % (address(self._placement), reason)
            raise CaseError(message, PROBE_REMEDY, ExitCode.ENGINE)
