"""The other nodes of a run as seen by this one: a reported outcome, a broken connection, or silence.

The parent process of every node is connected to that of node 0 (`rendezvous`). A rank only sees that the connection
to a peer broke. The parent of that node knows the cause, or has itself died; either way this node learns of it within
a tenth of a second.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Callable, Mapping, NamedTuple

from flagbench_cases.node.wire import Connection, printable, wait
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import OF_A_RUN, ExitCode

BEAT_SECONDS = 1.0
"""Seconds between two heartbeats of a node."""
SILENT_SECONDS = 5.0
"""Seconds of silence, five heartbeats, after which a node's parent or its network is considered stopped."""
NODE_SKEW_SECONDS = 1.0
"""A request to stop a job is assumed to reach all of its nodes within this many seconds."""
INTERRUPTED_STAY = 1.5
"""A node that was interrupted exits after this many times NODE_SKEW_SECONDS at the earliest. In a cluster its exit
may stop node 0 too, and by then node 0 must have decided whether the whole job was stopped or this node alone."""
CAUSE_SECONDS_NODE_0 = 4.0
"""How long node 0 waits for another node to report the cause of a secondary failure. A live parent reports a failure
within a tenth of a second of the end of its rank; the rest allows for ranks that end at different times."""
CAUSE_SECONDS = 6.0
"""How long another node waits for it: longer, since its report comes from node 0, which may itself have waited."""
READ_SECONDS = 2.0
"""How long the other side may take to read an outcome."""
NODE_0_EXIT_SECONDS = 15.0
"""How long a failed node waits for node 0 to exit first: node 0 may wait CAUSE_SECONDS_NODE_0 and then writes the
record, and a cluster deletes the other pods of a job, with their logs, as soon as one has failed."""
MAX_TEXT_LENGTH = 4000
"""Most characters of a received text that are kept."""
GONE_REMEDY = "check that node's log and kernel log: it was killed, or the machine or its network is down"


class NodeReport(NamedTuple):
    """How a node ended, as reported by itself. `node` is None if the outcome concerns all nodes."""

    node: int | None
    host: str
    outcome: Outcome

    def as_message(self) -> dict[str, Any]:
        """The JSON object to send."""
        return {"end": {"node": self.node, "host": self.host, **self.outcome.as_dict()}}

    def outcome_with_node(self) -> Outcome:
        """The outcome, with the node's name in its reason."""
        if self.node is None:
            return self.outcome
        return self.outcome._replace(reason=f"{node_name(self.node, self.host)}: {self.outcome.reason}")


def node_name(node: int, host: str) -> str:
    """The display name of a node."""
    if not host:
        return f"node {node}"
    return f"node {node} ({host})"


def parse_report(message: Mapping[str, Any]) -> NodeReport | None:
    """The report in a message; None if it has no valid one."""
    end = message.get("end")
    if not isinstance(end, dict) or end.get("state") not in ("ok", "failed", "interrupted"):
        return None
    node = end.get("node")
    code = end.get("exit_code")
    if node is not None and not isinstance(node, int):
        return None
    if code not in list(OF_A_RUN):
        return None
    texts = {}
    for key in ("host", "phase", "reason", "remedy"):
        texts[key] = printable(str(end.get(key) or ""))[:MAX_TEXT_LENGTH]
    outcome = Outcome(end["state"], texts["phase"] or "launch", texts["reason"], texts["remedy"], int(code))
    return NodeReport(node, texts["host"], outcome)


class Peers:
    """The nodes that this one is connected to: node 0 to every node, each of them to node 0."""

    def __init__(
        self,
        node: int,
        connections: dict[int, Connection],
        hosts: dict[int, str],
        port: int,
        run_id: str,
        record_id: str = "",
    ) -> None:
        self.node = node
        self.port = port
        """The port of the store in which the ranks meet; 0: any."""
        self.run_id = run_id
        self.record_id = record_id
        self.hosts = hosts
        self.listener: socket.socket | None = None
        self._connections = connections
        self._reports: dict[int, NodeReport] = {}
        self._disconnected: list[int] = []
        """The nodes whose connection closed without a report, in this order."""
        self._states: dict[int, dict[str, Any]] = {}
        self._last_beat = 0.0
        """When this node last sent a heartbeat, by time.monotonic()."""
        self._reported = False
        self._stay_until = 0.0
        self._close_seconds = READ_SECONDS

    # -- state of the other nodes ----------------------------------------------------------------------------

    def poll(self, state: Callable[[], dict[str, Any]] | None = None) -> None:
        """Process received messages; once a second, send a heartbeat with this node's `state`."""
        clock = time.monotonic()
        is_beat_due = clock - self._last_beat >= BEAT_SECONDS and not self._reported
        for node, connection in self._connections.items():
            if connection.closed:
                continue
            for message in connection.receive():
                self.handle(node, message)
            if connection.closed:  # by the other side; this side stays open, see `close`
                if node not in self._reports:
                    self._disconnected.append(node)
            elif is_beat_due:
                values: dict[str, Any] = {}
                if state is not None:
                    values = state()
                connection.send({"beat": values})
            else:
                connection.flush()
        if is_beat_due:
            self._last_beat = clock
        self._refuse_latecomers()

    def handle(self, node: int, message: dict[str, Any]) -> None:
        """Process a message from a node."""
        report = parse_report(message)
        if report is not None:
            self._reports.setdefault(node, report)
        elif isinstance(message.get("beat"), dict):
            self._states[node] = message["beat"]

    def _refuse_latecomers(self) -> None:
        if self.listener is None:
            return
        try:
            late = Connection(self.listener.accept()[0])
        except OSError:
            return
        reason = f"the run of node 0 ({self.hosts.get(0, '')}) has already started with all its nodes"
        remedy = "use a different --master port for every run, and a different --node-rank for every node"
        late.send(NodeReport(None, "", Outcome("failed", "launch", reason, remedy, int(ExitCode.USAGE))).as_message())
        late.end_sending()
        late.close()

    def states(self) -> dict[int, dict[str, Any]]:
        """The last reported state of the ranks of each node, by node."""
        return dict(self._states)

    def silent_nodes(self) -> list[str]:
        """A message for each node that has been silent for too long."""
        clock = time.monotonic()
        messages = []
        for node, connection in sorted(self._connections.items()):
            seconds = clock - connection.last_received
            if node not in self._reports and seconds > SILENT_SECONDS:
                messages.append(f"{self.node_name(node)} has sent nothing for {seconds:.0f} s")
        return messages

    def node_name(self, node: int) -> str:
        """The display name of a node."""
        return node_name(node, self.hosts.get(node, ""))

    # -- consequences for this node --------------------------------------------------------------------------

    def find_failure(self, phase: str) -> Outcome | None:
        """The outcome caused by another node; None while no node has failed or disconnected."""
        for report in self._reports.values():
            if report.outcome.state == "ok":
                continue
            outcome = report.outcome_with_node()
            if outcome.state == "interrupted" and self.node == 0:
                # A request to stop a job reaches node 0 too. A node that was stopped alone has failed.
                return outcome._replace(state="failed", exit_code=int(ExitCode.RANK_FAILED), remedy=GONE_REMEDY)
            return outcome
        if self._disconnected:
            reason = self._lost_reason(self._disconnected[0])
            return Outcome("failed", phase, reason, GONE_REMEDY, int(ExitCode.RANK_FAILED))
        return None

    def _lost_reason(self, node: int) -> str:
        return f"lost {self.node_name(node)}: its connection closed without a report"

    def _is_from_another_node(self, outcome: Outcome) -> bool:
        """Whether the reason of an outcome is another node's failure: it already names that node."""
        reasons: set[str | None] = {self._lost_reason(node) for node in self._disconnected}
        for report in self._reports.values():
            if report.outcome.state != "ok":
                reasons.add(report.outcome_with_node().reason)
        return outcome.reason in reasons

    def interrupted(self) -> bool:
        """Whether another node has reported that it was interrupted."""
        return any(report.outcome.state == "interrupted" for report in self._reports.values())

    def wait_for_failure(self, phase: str, seconds: float | None = None) -> Outcome | None:
        """What `find_failure` returns, as soon as it returns an outcome.

        A failure that this node noticed may be a consequence of another node's. Waits at most `seconds`, by default
        CAUSE_SECONDS or CAUSE_SECONDS_NODE_0.
        """
        if seconds is None:
            seconds = CAUSE_SECONDS
            if self.node == 0:
                seconds = CAUSE_SECONDS_NODE_0
        deadline = time.monotonic() + seconds
        while True:
            self.poll()
            outcome = self.find_failure(phase)
            if outcome is not None or not self._open() or time.monotonic() >= deadline:
                return outcome
            wait(self._open(), 0.05)

    def wait_for_interruption(self, interruption: Interruption) -> bool:
        """Wait NODE_SKEW_SECONDS for this node to be interrupted, as another one was. Returns whether it was."""
        deadline = time.monotonic() + NODE_SKEW_SECONDS
        while not interruption.received and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        return interruption.received

    # -- shutdown --------------------------------------------------------------------------------------------

    def report(self, outcome: Outcome) -> None:
        """Report this node's outcome, or on node 0 the run's. Only the first call has an effect."""
        if self._reported:
            return
        self._reported = True
        if outcome.state == "interrupted" and self.node > 0:
            self._stay_until = time.monotonic() + INTERRUPTED_STAY * NODE_SKEW_SECONDS
        if outcome.state == "failed" and self.node > 0:
            self._close_seconds = NODE_0_EXIT_SECONDS
        node: int | None = self.node
        if self._is_from_another_node(outcome):
            node = None
        report = NodeReport(node, self.hosts.get(self.node, ""), outcome)
        for connection in self._connections.values():
            if not connection.closed:
                connection.send(report.as_message())
                if self.node > 0:
                    connection.end_sending()

    def close(self, seconds: float | None = None) -> None:
        """Wait until the outcome has been read, up to a limit, and close the connections.

        Node 0 keeps its side open until its process ends: this tells a failed node, which waits for it, when that is.
        With `seconds`, wait at most that long and keep nothing open.
        """
        limit = self._close_seconds
        if seconds is not None:
            limit = seconds
        deadline = time.monotonic() + limit
        while (self._open() and time.monotonic() < deadline) or time.monotonic() < self._stay_until:
            wait(self._open(), 0.05)
            self.poll()
        for connection in self._connections.values():
            if self.node == 0 and seconds is None:
                connection.detach()
            else:
                connection.close()
        if self.listener is not None:
            self.listener.close()

    def _open(self) -> list[Connection]:
        return [connection for connection in self._connections.values() if not connection.closed]


def no_peers() -> Peers:
    """The peers of a single-node run: none."""
    return Peers(0, {}, {}, 0, "")
