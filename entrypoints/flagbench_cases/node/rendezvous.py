"""The rendezvous of the nodes of a run, before any rank is started: every parent process connects to that of node 0.

Node 0 compares the nodes' settings, reports which are missing and, once all are connected, sends the port of the
store in which the ranks meet. A node that has already failed reports that to the others, which would otherwise wait
until a timeout.
"""

from __future__ import annotations

import queue
import secrets
import socket
import time
from typing import Any, NamedTuple

from flagbench_cases.node.network import free_port
from flagbench_cases.node.peers import READ_SECONDS, NodeReport, Peers, node_name, parse_report
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.progress import say
from flagbench_cases.node.wire import Connection, connect_async, listen, printable, wait
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.record.request import RECORD_ID
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode

PROTOCOL = 1
"""The version of the messages between nodes, which each node sends first."""
REPORT_SECONDS = 5.0
"""Seconds between two progress messages."""
RETRY_SECONDS = 0.3
"""Seconds between two attempts to connect to node 0."""
REPORT_FAILURE_SECONDS = 10.0
"""How long a node that failed before the rendezvous tries to report it."""
MAX_DIFFERENCES = 3
"""Most differences between two nodes that an error names."""
NODE_0_REMEDY = "check --master, and that node 0 is running"
MISSING_REMEDY = "start the missing nodes, and check that they can reach this address"
SAME_REMEDY = "start every node with the same arguments and the same image"
PROBE_REMEDY = "check that --master is the address of node 0, and that this machine's network and loopback are up"


class NodeInfo(NamedTuple):
    """What a node tells the others about itself. `same`: settings that must be equal on all nodes, by name;
    `record_id`: that of the record, if this is node 0."""

    host: str
    run_id: str
    requested_run_id: str | None
    same: dict[str, Any]
    record_id: str = ""


def connect(placement: Placement, me: NodeInfo, seconds: float, interruption: Interruption) -> Peers:
    """Wait until all nodes are connected, at most `seconds`; returns the peers.

    Raises CaseError: USAGE for nodes with different settings, TIMEOUT, INTERRUPTED, ENGINE (the network), and the
    error of another node that failed meanwhile.
    """
    deadline = Deadline(seconds, interruption)
    if placement.node_rank:
        return Client(placement, me, deadline).join()
    return Server(placement, me, deadline).wait_for_all()


def report_failure(placement: Placement, host: str, outcome: Outcome, interruption: Interruption) -> None:
    """Report a failure to nodes that have not connected yet, for a limited time: they may start later."""
    deadline = Deadline(REPORT_FAILURE_SECONDS, interruption)
    me = NodeInfo(host, "", None, {})
    report = NodeReport(placement.node_rank, host, outcome)
    say(f"{outcome.reason}; reporting this to the other nodes for at most {REPORT_FAILURE_SECONDS:.0f} s")
    try:
        if placement.node_rank:
            Client(placement, me, deadline).report_failure(report)
        else:
            Server(placement, me, deadline).end(report, REPORT_FAILURE_SECONDS)
    except CaseError:
        return


class Deadline:
    """A limit on waiting, with progress messages every few seconds."""

    def __init__(self, seconds: float, interruption: Interruption) -> None:
        self.seconds = seconds
        self._interruption = interruption
        self._began = time.monotonic()
        self._reported = float("-inf")

    def expired(self) -> bool:
        """Whether the limit is reached or a signal was received."""
        return self._interruption.received or time.monotonic() - self._began > self.seconds

    def check(self, status: str, remedy: str) -> None:
        """Report what this node waits for. Raises CaseError: INTERRUPTED after a signal, TIMEOUT at the
        limit."""
        elapsed = time.monotonic() - self._began
        if self._interruption.received:
            raise CaseError(self._interruption.reason, "run again", ExitCode.INTERRUPTED)
        if elapsed > self.seconds:
            raise CaseError(f"{status}: gave up after {elapsed:.0f} s", remedy, ExitCode.TIMEOUT)
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self._reported = time.monotonic()
            say(f"{status} ({elapsed:.0f} s of at most {self.seconds:.0f} s); {remedy}")


class Connector:
    """Connects to the master address, again and again, without blocking. `reason`: why there is no connection yet."""

    def __init__(self, placement: Placement) -> None:
        self._host, self._port = placement.host, placement.port
        self.address = f"{self._host}:{self._port}"
        if ":" in self._host:
            self.address = f"[{self._host}]:{self._port}"
        self.reason = "no answer yet"
        self._answers = connect_async(self._host, self._port)

    def poll(self, seconds: float) -> Connection | None:
        """The connection; None if it was not established within `seconds`."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(answer, socket.socket):
            return Connection(answer)
        self.retry(answer.strerror or str(answer))
        return None

    def retry(self, reason: str) -> None:
        """Connect again a little later."""
        self.reason = reason
        self._answers = connect_async(self._host, self._port, RETRY_SECONDS)


def raise_failure(message: dict[str, Any], states: tuple[str, ...] = ("failed", "interrupted")) -> None:
    """Raise CaseError if a message reports that a node ended in one of these states."""
    report = parse_report(message)
    if report is not None and report.outcome.state in states:
        outcome = report.outcome_with_node()
        raise CaseError(outcome.reason or "", outcome.remedy or "", ExitCode(outcome.exit_code))


class Client:
    """The side of every node but node 0: connects, and waits until node 0 starts the run."""

    def __init__(self, placement: Placement, me: NodeInfo, deadline: Deadline) -> None:
        self._node, self._me, self._deadline = placement.node_rank, me, deadline
        self._hello = {"flagbench": PROTOCOL, "node": self._node, "host": me.host}
        self._hello.update(run_id=me.requested_run_id, same=me.same)
        self._connector = Connector(placement)

    def join(self) -> Peers:
        """Wait until node 0 starts the run. Raises CaseError."""
        while True:
            connection = self._connect()
            connection.send(self._hello)
            try:
                peers = self._wait_for_start(connection)
            except CaseError:
                connection.close()
                raise
            if peers is not None:
                return peers
            connection.close()
            self._connector.retry("the connection was closed")

    def report_failure(self, report: NodeReport) -> None:
        """Report to node 0 how this node failed. Raises CaseError if node 0 cannot be reached in time."""
        connection = self._connect()
        connection.send({**self._hello, **report.as_message()})
        connection.end_sending()
        while not connection.closed and not self._deadline.expired():
            connection.receive()
            time.sleep(0.02)
        connection.close()

    def _connect(self) -> Connection:
        while True:
            self._check_deadline(self._connector.reason, NODE_0_REMEDY)
            connection = self._connector.poll(0.1)
            if connection is not None:
                return connection

    def _check_deadline(self, status: str, remedy: str) -> None:
        waiting = f"node {self._node} is waiting for node 0 at {self._connector.address}"
        self._deadline.check(f"{waiting} ({status})", remedy)

    def _wait_for_start(self, connection: Connection) -> Peers | None:
        """Read messages of node 0: the peers once the run starts, None if the connection closes before."""
        while True:
            messages = connection.receive()
            for number, message in enumerate(messages):
                raise_failure(message)
                if isinstance(message.get("go"), dict):
                    peers = self._begin(connection, message["go"])
                    for later in messages[number + 1 :]:
                        peers.handle(0, later)
                    return peers
            if connection.foreign is not None:
                address = self._connector.address
                reason = f"the server at {address} is not flagbench; it sent {connection.foreign!r}"
                raise CaseError(reason, NODE_0_REMEDY, ExitCode.ENGINE)
            if connection.closed:
                return None
            self._check_deadline("connected", "see the log of node 0, which names the missing nodes")
            connection.wait(0.1)

    def _begin(self, connection: Connection, go: dict[str, Any]) -> Peers:
        port, run_id, record_id = go.get("port"), str(go.get("run_id")), str(go.get("record_id"))
        if not isinstance(port, int) or not 0 < port < 65536:
            raise CaseError("node 0 sent no valid port", "use the same image on every node", ExitCode.USAGE)
        if not RECORD_ID.fullmatch(record_id):  # it becomes part of paths
            raise CaseError("node 0 sent no valid record id", "use the same image on every node", ExitCode.USAGE)
        hosts = {0: printable(str(go.get("host")))[:200], self._node: self._me.host}
        return Peers(self._node, {0: connection}, hosts, port, run_id, record_id)


class Server:
    """The side of node 0: accepts the other nodes, compares their settings, and starts when all are connected.

    It also connects to itself at the master address, as its ranks will: on Kubernetes, the name may
    resolve only later. Raises CaseError (ENGINE) if it cannot listen.
    """

    def __init__(self, placement: Placement, me: NodeInfo, deadline: Deadline) -> None:
        self._nodes, self._me, self._deadline = placement.nodes, me, deadline
        self._clients: dict[int, Connection] = {}
        self._hosts = {0: me.host}
        self._seen: set[int] = set()
        self._unidentified: list[Connection] = []
        """Connections that have not identified themselves, or were rejected and wait to read the reason."""
        try:
            self._listener = listen(placement.port)
        except OSError as error:
            reason = f"node 0 cannot listen on port {placement.port} ({error.strerror or error})"
            remedy = "free that port, or use another port in --master on every node"
            raise CaseError(reason, remedy, ExitCode.ENGINE) from None
        self._connector = Connector(placement)
        self._secret = secrets.token_hex(16)
        self._probe: Connection | None = None
        self._reaches_itself = False

    def wait_for_all(self) -> Peers:
        """Wait for all nodes. Raises CaseError, which is also sent to the connected nodes."""
        try:
            while True:
                self._serve_connections()
                self._advance_probe()
                missing = [node for node in range(1, self._nodes) if node not in self._clients]
                if not missing and self._reaches_itself:
                    return self._begin()
                self._deadline.check(*self._waiting_for(missing))
                wait([*self._connections(), self._listener], 0.05)
        except CaseError as error:
            state, node, linger = "failed", None, REPORT_FAILURE_SECONDS
            if error.code == ExitCode.INTERRUPTED:
                state, node = "interrupted", 0
            if error.code in (ExitCode.INTERRUPTED, ExitCode.TIMEOUT):
                linger = 0.0
            outcome = Outcome(state, "launch", error.message, error.remedy, int(error.code))
            self.end(NodeReport(node, self._me.host, outcome), linger)
            raise

    def end(self, report: NodeReport, linger: float) -> None:
        """Report to all nodes why the run does not start, including those that connect within `linger` seconds."""
        notified: set[Connection] = set()
        deadline = time.monotonic() + linger
        while True:
            self._accept()
            for connection in self._connections():
                for message in connection.receive():
                    if isinstance(message.get("node"), int):
                        self._seen.add(message["node"])
                if connection not in notified:
                    notified.add(connection)
                    connection.send(report.as_message())
                    connection.end_sending()
            if len(self._seen - {0}) >= self._nodes - 1 or self._deadline.expired():
                deadline = min(deadline, time.monotonic())
            end = deadline
            if self._connections():  # they may still read
                end += READ_SECONDS
            if time.monotonic() >= end:
                break
            wait([*self._connections(), self._listener], 0.02)
        self._listener.close()
        for connection in [*self._clients.values(), *self._unidentified]:
            connection.close()

    def _waiting_for(self, missing: list[int]) -> tuple[str, str]:
        """What node 0 is waiting for, and the remedy."""
        where = self._connector.address
        if missing:
            noun = "nodes" if len(missing) > 1 else "node"
            numbers = ", ".join(map(str, missing[:8]))
            if len(missing) > 8:
                numbers += ", ..."
            return f"node 0 at {where} is waiting for {noun} {numbers} of {self._nodes}", MISSING_REMEDY
        return f"node 0 cannot connect to itself at {where} yet ({self._connector.reason})", PROBE_REMEDY

    def _begin(self) -> Peers:
        port, me = free_port(""), self._me
        for connection in self._unidentified:
            connection.close()
        for connection in self._clients.values():
            connection.send({"go": {"port": port, "run_id": me.run_id, "record_id": me.record_id, "host": me.host}})
        peers = Peers(0, self._clients, self._hosts, port, me.run_id, me.record_id)
        peers.listener = self._listener
        return peers

    # -- connections -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            while True:
                self._unidentified.append(Connection(self._listener.accept()[0]))
        except OSError:
            return

    def _connections(self) -> list[Connection]:
        return [connection for connection in [*self._clients.values(), *self._unidentified] if not connection.closed]

    def _advance_probe(self) -> None:
        """Continue to connect to itself. Raises CaseError with the reason of another node 0 that answers."""
        if self._probe is None and not self._reaches_itself:
            self._probe = self._connector.poll(0.0)
            if self._probe is not None:
                self._connector.reason = "another server answers there"
                self._probe.send({"flagbench": PROTOCOL, "probe": self._secret, "node": 0, "host": self._me.host})
        elif self._probe is not None:
            for message in self._probe.receive():
                raise_failure(message)
            if self._reaches_itself or self._probe.closed:
                self._probe.close()
                self._probe = None
            if self._probe is None and not self._reaches_itself:
                self._connector.retry(self._connector.reason)

    def _serve_connections(self) -> None:
        """Accept new connections and drop closed ones; a dropped node may connect again."""
        for node, connection in list(self._clients.items()):
            for message in connection.receive():
                raise_failure(message, states=("failed",))  # an interrupted node has merely left
            if connection.closed:
                connection.close()
                del self._clients[node]
        self._accept()
        for connection in list(self._unidentified):
            for message in connection.receive():
                if message.get("probe") == self._secret:
                    self._reaches_itself = True
                elif isinstance(message.get("node"), int) and message.get("flagbench") == PROTOCOL:
                    self._seen.add(message["node"])
                    self._accept_node(connection, message["node"], message)
            if connection.closed:
                connection.close()
            if connection.closed or connection in self._clients.values():
                self._unidentified.remove(connection)

    def _accept_node(self, connection: Connection, node: int, message: dict[str, Any]) -> None:
        """Accept a node. Raises CaseError if its settings differ or it has failed."""
        host = printable(str(message.get("host")))[:200]
        raise_failure(message, states=("failed",))
        if node == 0 or node in self._clients:
            reason = f"two nodes have the node rank {node}: {self._hosts[node]} and {host}"
            raise UsageError(reason, "use a different --node-rank on every node")
        differences = self._differences(message)
        if differences:
            text = ", ".join(differences[:MAX_DIFFERENCES])
            if len(differences) > MAX_DIFFERENCES:
                text += f" and {len(differences) - MAX_DIFFERENCES} more"
            raise UsageError(f"{node_name(node, host)} was started with {text}", SAME_REMEDY)
        if not 0 < node < self._nodes:
            raise UsageError(f"{node_name(node, host)} is out of range for {self._nodes} nodes", SAME_REMEDY)
        self._hosts[node] = host
        if not connection.closed:
            self._clients[node] = connection

    def _differences(self, message: dict[str, Any]) -> list[str]:
        """Messages about the settings of a node that differ from this one's."""
        settings = message.get("same")
        if not isinstance(settings, dict):
            settings = {}
        node_0 = self._me.same
        names = [*node_0, *sorted(set(settings) - set(node_0))]
        triples = [(str(name), settings.get(name), node_0.get(name)) for name in names]
        run_id = message.get("run_id")
        if run_id is not None:  # a node without a run id uses this node's
            triples.append(("--run-id", run_id, self._me.run_id))
        differences = []
        for name, value, value_on_node_0 in triples:
            if value != value_on_node_0:
                words = f"{printable(name)} {_short(value)} where node 0 has {_short(value_on_node_0)}"
                differences.append(words)
        return differences


def _short(value: Any) -> str:
    text = printable(str(value))
    if len(text) > 80:
        return text[:77] + "..."
    return text
