"""How the nodes of a run find each other, before any rank is started: every parent connects to that of node 0.

Node 0 compares what they were started with, says who is missing and, once all are there, where torch's own rendezvous
takes placement. A node that has failed already says so to the others, which would wait for it in vain.
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
# Seconds between two lines about what this node waits for.
REPORT_SECONDS = 5.0
RETRY_SECONDS = 0.3
# How long node 0, which answers at once, may take to answer.
ANSWER_SECONDS = 30.0
# How long a node that has failed by itself tries to tell the others.
REPORT_FAILURE_SECONDS = 10.0
NODE_0_REMEDY = "check --master, and that node 0 has been started"


class NodeInfo(NamedTuple):
    """What a node tells the others of itself. `same`: what must be equal on all nodes, by name."""

    host: str
    run_id: str
    given_run_id: Optional[str]
    same: Dict[str, Any]


class Deadline:
    """A wait with a limit, which reports at once and then every few seconds what it waits for."""

    def __init__(self, seconds: float, interruption: Interruption) -> None:
        self.seconds = seconds
        self._interruption = interruption
        self._began = time.monotonic()
        self._said = float("-inf")

    def expired(self) -> bool:
        """Whether the time is over or a signal has come."""
        return bool(self._interruption) or time.monotonic() - self._began > self.seconds

    def check(self, words: str, remedy: str) -> None:
        """Report what it waits for; raises CaseError: interrupted (7) after a signal, timeout (6) at the limit."""
        elapsed = time.monotonic() - self._began
        if self._interruption:
            raise CaseError(self._interruption.reason, "run again", ExitCode.INTERRUPTED)
        if elapsed > self.seconds:
            raise CaseError("%s, and has done so for %.0f s" % (words, elapsed), remedy, ExitCode.TIMEOUT)
        if time.monotonic() - self._said >= REPORT_SECONDS:
            self._said = time.monotonic()
            log("%s (%.0f s of at most %.0f s); %s" % (words, elapsed, self.seconds, remedy))


def log(words: str) -> None:
    """One line on stderr; a lost stderr is ignored."""
    try:
        sys.stderr.write("flagbench: %s\n" % words)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def address(placement: Placement) -> str:
    """HOST:PORT of node 0."""
    return "%s:%d" % ("[%s]" % placement.host if ":" in placement.host else placement.host, placement.port)


def poll_result(answers: ConnectResult, seconds: float) -> Union[socket.socket, OSError, None]:
    """The result of a `connect_async`; None if it is not known after `seconds`."""
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None


class RendezvousClient:
    """A node other than node 0, on its way to it."""

    def __init__(self, placement: Placement, me: NodeInfo, deadline: Deadline) -> None:
        self._placement, self._me, self._deadline = placement, me, deadline
        self._hello = {"flagbench": PROTOCOL, "node": placement.node_rank, "host": me.host}
        self._hello.update(run_id=me.given_run_id, same=me.same)
        self._who = "node %d waits for node 0 at %s" % (placement.node_rank, address(placement))

    def join(self) -> Peers:
        """Wait until node 0 says that all nodes are there. Raises CaseError."""
        why = "no answer yet"
        while True:
            line = self._connect(why)
            line.send(self._hello)
            try:
                found = self._listen(line)
            except CaseError:
                line.close()
                raise
            if found is not None:
                return found
            line.close()
            why = "it closed the connection"
            time.sleep(RETRY_SECONDS)

    def report_failure(self, words: NodeReport) -> None:
        """Tell node 0 how this node has failed. Raises CaseError where it does not come in time."""
        line = self._connect("no answer yet")
        line.send({**self._hello, **words.as_message()})
        line.end_sending()
        while not line.closed and not self._deadline.expired():
            line.receive()
            time.sleep(0.02)
        line.close()

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

    def _listen(self, line: Connection) -> Optional[Peers]:
        """Read what node 0 sends: the connection once the run begins, None if it is closed before."""
        welcome = False
        missing = "for the other nodes"
        while True:
            messages = line.receive()
            for number, message in enumerate(messages):
                words = parse_report(message)
                if words is not None and words.outcome.state != "ok":
                    found = words.outcome_with_node()
                    raise CaseError(found.reason or "", found.remedy or "", ExitCode(found.exit_code))
                if isinstance(message.get("go"), dict):
                    begun = self._begin(line, message["go"])
                    for later in messages[number + 1 :]:
                        begun.handle(0, later)
                    return begun
                welcome = welcome or message.get("flagbench") == PROTOCOL
                missing = printable(str(message.get("waits") or missing))[:200]
            if line.foreign is not None:
                reason = "what answers at %s is not flagbench: %r" % (address(self._placement), line.foreign)
                raise CaseError(reason, NODE_0_REMEDY, ExitCode.ENGINE)
            if line.closed:
                return None
            if not welcome and time.monotonic() - line.opened > ANSWER_SECONDS:
                reason = "%s accepts connections and has not answered for %.0f s" % (
                    address(self._placement),
                    ANSWER_SECONDS,
                )
                raise CaseError("node 0 at " + reason, NODE_0_REMEDY, ExitCode.TIMEOUT)
            if welcome:
                words_ = "node %d waits with node 0 at %s %s" % (self._placement.node_rank, address(self._placement), missing)
                self._deadline.check(words_, "start them")
            else:
                self._deadline.check("%s (connected, no answer yet)" % self._who, NODE_0_REMEDY)
            line.wait(0.1)

    def _begin(self, line: Connection, go: Dict[str, Any]) -> Peers:
        port, run_id = go.get("port"), str(go.get("run_id"))
        if not isinstance(port, int) or not 0 < port < 65536:
            raise CaseError("node 0 named no port", "use the same image on every node", ExitCode.USAGE)
        hosts = {0: printable(str(go.get("host") or line.peer))[:200], self._placement.node_rank: self._me.host}
        return Peers(self._placement.node_rank, {0: line}, hosts, port, run_id)


def connect(placement: Placement, me: NodeInfo, seconds: float, interruption: Interruption) -> Peers:
    """Wait until all nodes are there, at most `seconds`; returns the connections to them.

    Raises CaseError: usage (2) for nodes that do not belong together, timeout (6), interrupted (7), network (15), and
    for a node that has failed meanwhile whatever it failed with.
    """
    from flagbench_cases.node.rendezvous_server import RendezvousServer

    deadline = Deadline(seconds, interruption)
    return RendezvousClient(placement, me, deadline).join() if placement.node_rank else RendezvousServer(placement, me, deadline).wait_for_all()


def report_failure(placement: Placement, host: str, outcome: Outcome, interruption: Interruption) -> None:
    """Tell the other nodes of a failure before they have connected, for a while: they may start later."""
    from flagbench_cases.node.rendezvous_server import RendezvousServer

    deadline = Deadline(REPORT_FAILURE_SECONDS, interruption)
    me = NodeInfo(host, "", None, {})
    words = NodeReport(placement.node_rank, host, outcome)
    log("%s; the other nodes are told, for at most %.0f s" % (outcome.reason, REPORT_FAILURE_SECONDS))
    try:
        if placement.node_rank:
            RendezvousClient(placement, me, deadline).report_failure(words)
        else:
            RendezvousServer(placement, me, deadline).reject_all(words)
    except CaseError:
        return
