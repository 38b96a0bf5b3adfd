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
# Seconds of silence after which a node's parent, or its network, is considered stopped.
SILENT_SECONDS = 5.0
# Nodes of a job may receive a request to stop this many seconds apart. An interrupted node waits slightly longer for
# node 0, so that consequences of its exit in a cluster come later.
NODE_SKEW_SECONDS = 1.0
# How long to wait for another node to report the cause of a secondary failure.
CAUSE_SECONDS = 6.0
# The same on node 0.
CAUSE_SECONDS_NODE_0 = 4.0
# How long the other side may take to read an outcome, seconds.
READ_SECONDS = 2.0
# How long a failed node waits for node 0, which writes the record, to exit first: a cluster deletes the other pods of
# a job, with their logs, as soon as one has failed.
FIRST_SECONDS = 15.0
MAX_TEXT = 4000
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
    node, code = end.get("node"), end.get("exit_code")
    if not (node is None or isinstance(node, int)) or code not in list(OF_A_RUN):
        return None
    text = {key: printable(str(end.get(key) or ""))[:MAX_TEXT] for key in ("host", "phase", "reason", "remedy")}
    outcome = Outcome(end["state"], text["phase"] or "launch", text["reason"], text["remedy"], int(code))
    return NodeReport(node, text["host"], outcome)


class Peers:
    """The connected nodes: on node 0 all others, elsewhere node 0."""

    def __init__(
        self,
        node: int,
        lines: dict[int, Connection],
        hosts: dict[int, str],
        port: int,
        run_id: str,
        record_id: str = "",
    ) -> None:
        self.node = node
        self.port = port
        """The port of torch's own rendezvous; 0: any."""
        self.run_id = run_id
        self.record_id = record_id
        self.hosts = hosts
        self.listener: socket.socket | None = None
        self._connections = lines
        self._reports: dict[int, NodeReport] = {}
        self._disconnected: dict[int, float] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._beaten = 0.0
        self._reported = False
        self._stay_until = 0.0
        self._close_seconds = READ_SECONDS
        self._reasons: set[str | None] = set()

    # -- state of the other nodes ----------------------------------------------------------------------------

    def poll(self, state: Callable[[], dict[str, Any]] | None = None) -> None:
        """Process received messages; once a second, send a heartbeat with this node's `state`."""
        clock = time.monotonic()
        beat = clock - self._beaten >= BEAT_SECONDS and not self._reported
        for node, connection in self._connections.items():
            if connection.closed:
                continue
            for message in connection.receive():
                self.handle(node, message)
            if connection.closed:  # by the other side; this side stays open, see `close`
                if node not in self._reports:
                    self._disconnected.setdefault(node, clock)
            elif beat:
                values = state() if state is not None else {}
                connection.send({"beat": values})
            else:
                connection.flush()
        if beat:
            self._beaten = clock
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

    def failure(self, phase: str) -> Outcome | None:
        """The outcome caused by another node; None while no node has failed or disconnected."""
        outcome = self._find_failure(phase)
        if outcome is not None:
            self._reasons.add(outcome.reason)
        return outcome

    def _find_failure(self, phase: str) -> Outcome | None:
        for report in self._reports.values():
            if report.outcome.state == "ok":
                continue
            outcome = report.outcome_with_node()
            if outcome.state == "interrupted" and self.node == 0:
                # Stopping a job stops all nodes. If only one node was stopped, the others treat it as failed.
                return outcome._replace(state="failed", exit_code=int(ExitCode.RANK_FAILED), remedy=GONE_REMEDY)
            return outcome
        for node in self._disconnected:
            reason = f"lost {self.node_name(node)}: its connection closed without a report"
            return Outcome("failed", phase, reason, GONE_REMEDY, int(ExitCode.RANK_FAILED))
        return None

    def interrupted(self) -> bool:
        """Whether another node has reported that it was interrupted."""
        return any(report.outcome.state == "interrupted" for report in self._reports.values())

    def wait_for_failure(self, phase: str, seconds: float | None = None) -> Outcome | None:
        """Like `failure`, but wait for it: what this node noticed may be a consequence of another node's failure."""
        if seconds is None:
            seconds = CAUSE_SECONDS_NODE_0 if self.node == 0 else CAUSE_SECONDS
        deadline = time.monotonic() + seconds
        while True:
            self.poll()
            outcome = self.failure(phase)
            if outcome is not None or not self._open() or time.monotonic() >= deadline:
                return outcome
            wait(self._open(), 0.05)

    def also_interrupted(self, interruption: Interruption) -> bool:
        """Whether this node was interrupted at about the same time as another one."""
        deadline = time.monotonic() + NODE_SKEW_SECONDS
        while not interruption and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        return bool(interruption)

    # -- shutdown --------------------------------------------------------------------------------------------

    def report(self, outcome: Outcome) -> None:
        """Report this node's outcome, or on node 0 the run's. Only the first call has an effect."""
        if self._reported:
            return
        self._reported = True
        if outcome.state == "interrupted" and self.node > 0:
            self._stay_until = time.monotonic() + 1.5 * NODE_SKEW_SECONDS
        if outcome.state == "failed" and self.node > 0:
            self._close_seconds = FIRST_SECONDS
        # The reason of an outcome from another node already names that node.
        names_node = outcome.reason in self._reasons
        node = None if names_node else self.node
        report = NodeReport(node, self.hosts.get(self.node, ""), outcome)
        for connection in self._connections.values():
            if not connection.closed:
                connection.send(report.as_message())
                if self.node > 0:
                    connection.end_sending()

    def close(self, seconds: float | None = None) -> None:
        """Wait until the outcome has been read, up to a limit, and close the connections.

        Node 0 keeps its side open until its process ends, so that a failed node sees when that is. With `seconds`,
        wait at most that long and keep nothing open.
        """
        limit = self._close_seconds if seconds is None else seconds
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
