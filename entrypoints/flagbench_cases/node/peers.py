"""The other nodes of a run, as their parents report: an outcome, a broken connection, silence.

Every node's parent is connected to node 0's (`rendezvous`). A rank sees of a peer's death only a broken connection;
the parent of that node knows its cause, or is gone itself, and either is known here within a tenth of a second.
"""

import socket
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set

from flagbench_cases.node.wire import Connection, printable, wait
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import ExitCode
from flagbench_cases.shared.interruption import Interruption

BEAT_SECONDS = 1.0
# Seconds of silence after which a node's parent, or its network, counts as stopped.
SILENT_SECONDS = 5.0
# How far apart the nodes of a job may be told to stop. A node that was waits a little longer for node 0's verdict, so
# that whatever a cluster does because that node ended comes after this.
SKEW_SECONDS = 1.0
# How long the cause of a failure that only echoes another node's may take to be told, on node 0 and elsewhere.
CAUSE_SECONDS = (4.0, 6.0)
# How long the other side may take to read an outcome.
READ_SECONDS = 2.0
# How long a node that has failed waits for node 0, which writes the record, to end before it: a cluster deletes the
# other pods of a job, with their logs, as soon as one has failed.
FIRST_SECONDS = 15.0
MAX_TEXT = 4000
GONE_REMEDY = "see that node's log and its kernel's: it was killed, or the machine or its network is gone"


class NodeReport(NamedTuple):
    """How a node ended, as it reports itself. `node` is None for what concerns all of them."""

    node: Optional[int]
    host: str
    outcome: Outcome

    def as_message(self) -> Dict[str, Any]:
        """What is sent."""
        return {"end": {"node": self.node, "host": self.host, **self.outcome.as_dict()}}

    def outcome_with_node(self) -> Outcome:
        """The outcome, with the node that it concerns."""
        if self.node is None:
            return self.outcome
        return self.outcome._replace(reason="%s: %s" % (node_name(self.node, self.host), self.outcome.reason))


def node_name(node: int, host: str) -> str:
    """A node as a reader can find it."""
    return "node %d (%s)" % (node, host) if host else "node %d" % node


def parse_report(message: Mapping[str, Any]) -> Optional[NodeReport]:
    """The outcome in a message; None if it holds no valid one."""
    found = message.get("end")
    if not isinstance(found, dict) or found.get("state") not in ("ok", "failed", "interrupted"):
        return None
    node, code = found.get("node"), found.get("exit_code")
    if not (node is None or isinstance(node, int)) or code not in list(ExitCode):
        return None
    text = {key: printable(str(found.get(key) or ""))[:MAX_TEXT] for key in ("host", "phase", "reason", "remedy")}
    outcome = Outcome(found["state"], text["phase"] or "launch", text["reason"], text["remedy"], int(code))
    return NodeReport(node, text["host"], outcome)


class Peers:
    """The nodes that this one is connected to: all others on node 0, elsewhere node 0 alone."""

    def __init__(self, node: int, lines: Dict[int, Connection], hosts: Dict[int, str], port: int, run_id: str) -> None:
        self.node = node
        self.port = port
        """Where torch's own rendezvous takes place; 0: any."""
        self.run_id = run_id
        self.hosts = hosts
        self.listener: Optional[socket.socket] = None
        self._connections = lines
        self._reports: Dict[int, NodeReport] = {}
        self._disconnected: Dict[int, float] = {}
        self._states: Dict[int, Dict[str, Any]] = {}
        self._beaten = 0.0
        self._reported = False
        self._stay_until = 0.0
        self._close_seconds = READ_SECONDS
        self._reasons: Set[Optional[str]] = set()

    # -- what is known of them -------------------------------------------------------------------------------

    def poll(self, state: Optional[Callable[[], Dict[str, Any]]] = None) -> None:
        """Take what has come; once a second, say that this node is alive, and its `state`."""
        clock = time.monotonic()
        beat = clock - self._beaten >= BEAT_SECONDS and not self._reported
        for node, line in self._connections.items():
            if line.closed:
                continue
            for message in line.receive():
                self.handle(node, message)
            if line.closed:  # by the other side: this one stays open, see `close`
                if node not in self._reports:
                    self._disconnected.setdefault(node, clock)
            elif beat:
                line.send({"beat": state() if state else {}})
            else:
                line.flush()
        if beat:
            self._beaten = clock
        self._refuse_latecomers()

    def handle(self, node: int, message: Dict[str, Any]) -> None:
        """Take what a node has sent."""
        words = parse_report(message)
        if words is not None:
            self._reports.setdefault(node, words)
        elif isinstance(message.get("beat"), dict):
            self._states[node] = message["beat"]

    def _refuse_latecomers(self) -> None:
        if self.listener is None:
            return
        try:
            late = Connection(self.listener.accept()[0])
        except OSError:
            return
        reason = "the run of node 0 (%s) has begun with all its nodes" % self.hosts.get(0, "")
        remedy = "give every run a --master port of its own, and every node a --node-rank of its own"
        late.send(NodeReport(None, "", Outcome("failed", "launch", reason, remedy, int(ExitCode.USAGE))).as_message())
        late.end_sending()
        late.close()

    def states(self) -> Dict[int, Dict[str, Any]]:
        """What each node said last of its ranks, by node."""
        return dict(self._states)

    def silent_nodes(self) -> List[str]:
        """The nodes that have been silent for a while, in words."""
        clock = time.monotonic()
        quiet = {node: clock - line.last_received for node, line in self._connections.items() if node not in self._reports}
        return [
            "%s has sent nothing for %.0f s" % (self.node_name(node), seconds)
            for node, seconds in sorted(quiet.items())
            if seconds > SILENT_SECONDS
        ]

    def node_name(self, node: int) -> str:
        """A node as a reader can find it."""
        return node_name(node, self.hosts.get(node, ""))

    # -- what it means for this one --------------------------------------------------------------------------

    def failure(self, phase: str) -> Optional[Outcome]:
        """How this run ends because another node did; None as long as none has failed or gone."""
        found = self._find_failure(phase)
        if found is not None:
            self._reasons.add(found.reason)
        return found

    def _find_failure(self, phase: str) -> Optional[Outcome]:
        for words in self._reports.values():
            if words.outcome.state == "ok":
                continue
            found = words.outcome_with_node()
            if found.state == "interrupted" and self.node == 0:
                # Stopping a job stops every node; to the others, a node that is stopped alone is lost.
                return found._replace(state="failed", exit_code=int(ExitCode.RANK_FAILED), remedy=GONE_REMEDY)
            return found
        for node in self._disconnected:
            reason = "%s is gone: its connection was closed without a word" % self.node_name(node)
            return Outcome("failed", phase, reason, GONE_REMEDY, int(ExitCode.RANK_FAILED))
        return None

    def interrupted(self) -> bool:
        """Whether another node has reported that it was told to stop."""
        return any(words.outcome.state == "interrupted" for words in self._reports.values())

    def wait_for_failure(self, phase: str, seconds: Optional[float] = None) -> Optional[Outcome]:
        """Like `ended`, but waits for it: what this node noticed may be the end of another."""
        seconds = CAUSE_SECONDS[min(self.node, 1)] if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while True:
            self.poll()
            found = self.failure(phase)
            if found is not None or not self._open() or time.monotonic() >= deadline:
                return found
            wait(self._open(), 0.05)

    def also_interrupted(self, interruption: Interruption) -> bool:
        """Whether this node was told to stop at about the same time as another one."""
        deadline = time.monotonic() + SKEW_SECONDS
        while not interruption and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        return bool(interruption)

    # -- the end ---------------------------------------------------------------------------------------------

    def report(self, outcome: Outcome) -> None:
        """Report how this node has ended, or on node 0 how the run has. Only the first call counts."""
        if self._reported:
            return
        self._reported = True
        if outcome.state == "interrupted" and self.node > 0:
            self._stay_until = time.monotonic() + 1.5 * SKEW_SECONDS
        if outcome.state == "failed" and self.node > 0:
            self._close_seconds = FIRST_SECONDS
        # An outcome from another node names that node already.
        node = None if outcome.reason in self._reasons else self.node
        words = NodeReport(node, self.hosts.get(self.node, ""), outcome)
        for line in self._connections.values():
            if not line.closed:
                line.send(words.as_message())
                if self.node > 0:
                    line.end_sending()

    def close(self, seconds: Optional[float] = None) -> None:
        """The last step of a node: wait a while until its outcome has been read, and close the connections.

        Node 0 keeps its side open until its process ends, so that a node that has failed sees when that is. With
        `seconds` this waits no longer than so, and keeps nothing open.
        """
        deadline = time.monotonic() + (self._close_seconds if seconds is None else seconds)
        while (self._open() and time.monotonic() < deadline) or time.monotonic() < self._stay_until:
            wait(self._open(), 0.05)
            self.poll()
        for line in self._connections.values():
            if self.node == 0 and seconds is None:
                line.detach()
            else:
                line.close()
        if self.listener is not None:
            self.listener.close()

    def _open(self) -> List[Connection]:
        return [line for line in self._connections.values() if not line.closed]


def no_peers() -> Peers:
    """The peers of a run on one node: none."""
    return Peers(0, {}, {}, 0, "")
