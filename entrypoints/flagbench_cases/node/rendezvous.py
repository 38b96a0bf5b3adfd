"""How the nodes of a run find each other, before any rank is started: every parent connects to that of node 0.

Node 0 compares what they were started with, says who is missing and, once all are there, where torch's own rendezvous
takes place. A node that has failed already says so to the others, which would wait for it in vain.
"""

import queue
import socket
import sys
import time
from typing import Any, Dict, NamedTuple, Optional, Union

from flagbench_cases.node.peers import Peers, Words, read_words
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.wire import Answers, Line, dial, printable
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
LAST_WORDS_SECONDS = 10.0
NODE_0_REMEDY = "check --master, and that node 0 has been started"


class Introduction(NamedTuple):
    """What a node tells the others of itself. `same`: what must be equal on all nodes, by name."""

    host: str
    run_id: str
    given_run_id: Optional[str]
    same: Dict[str, Any]


class Waiting:
    """A wait with a limit, which reports at once and then every few seconds what it waits for."""

    def __init__(self, seconds: float, interruption: Interruption) -> None:
        self.seconds = seconds
        self._interruption = interruption
        self._began = time.monotonic()
        self._said = float("-inf")

    def over(self) -> bool:
        """Whether the time is over or a signal has come."""
        return bool(self._interruption) or time.monotonic() - self._began > self.seconds

    def check(self, words: str, remedy: str) -> None:
        """Report what it waits for; raises CaseError: interrupted (7) after a signal, timeout (6) at the limit."""
        elapsed = time.monotonic() - self._began
        if self._interruption:
            raise CaseError(self._interruption.words, "run again", ExitCode.INTERRUPTED)
        if elapsed > self.seconds:
            raise CaseError("%s, and has done so for %.0f s" % (words, elapsed), remedy, ExitCode.TIMEOUT)
        if time.monotonic() - self._said >= REPORT_SECONDS:
            self._said = time.monotonic()
            say("%s (%.0f s of at most %.0f s); %s" % (words, elapsed, self.seconds, remedy))


def say(words: str) -> None:
    """One line on stderr; a lost stderr is ignored."""
    try:
        sys.stderr.write("flagbench: %s\n" % words)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def address(place: Placement) -> str:
    """HOST:PORT of node 0."""
    return "%s:%d" % ("[%s]" % place.host if ":" in place.host else place.host, place.port)


def take(answers: Answers, seconds: float) -> Union[socket.socket, OSError, None]:
    """The result of a `dial`; None if it is not known after `seconds`."""
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None


class Guest:
    """A node other than node 0, on its way to it."""

    def __init__(self, place: Placement, me: Introduction, waiting: Waiting) -> None:
        self._place, self._me, self._waiting = place, me, waiting
        self._hello = {"flagbench": PROTOCOL, "node": place.node_rank, "host": me.host}
        self._hello.update(run_id=me.given_run_id, same=me.same)
        self._who = "node %d waits for node 0 at %s" % (place.node_rank, address(place))

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

    def confess(self, words: Words) -> None:
        """Tell node 0 how this node has failed. Raises CaseError where it does not come in time."""
        line = self._connect("no answer yet")
        line.send({**self._hello, **words.as_message()})
        line.finish()
        while not line.closed and not self._waiting.over():
            line.receive()
            time.sleep(0.02)
        line.close()

    def _connect(self, why: str) -> Line:
        answers = dial(self._place.host, self._place.port)
        while True:
            self._waiting.check("%s (%s)" % (self._who, why), NODE_0_REMEDY)
            answer = take(answers, 0.1)
            if isinstance(answer, socket.socket):
                return Line(answer)
            if answer is not None:
                why = answer.strerror or str(answer)
                time.sleep(RETRY_SECONDS)
                answers = dial(self._place.host, self._place.port)

    def _listen(self, line: Line) -> Optional[Peers]:
        """Read what node 0 sends: the connection once the run begins, None if it is closed before."""
        welcome = False
        missing = "for the other nodes"
        while True:
            messages = line.receive()
            for number, message in enumerate(messages):
                words = read_words(message)
                if words is not None and words.outcome.state != "ok":
                    found = words.told()
                    raise CaseError(found.reason or "", found.remedy or "", ExitCode(found.exit_code))
                if isinstance(message.get("go"), dict):
                    begun = self._begin(line, message["go"])
                    for later in messages[number + 1 :]:
                        begun.take(0, later)
                    return begun
                welcome = welcome or message.get("flagbench") == PROTOCOL
                missing = printable(str(message.get("waits") or missing))[:200]
            if line.strange is not None:
                reason = "what answers at %s is not flagbench: %r" % (address(self._place), line.strange)
                raise CaseError(reason, NODE_0_REMEDY, ExitCode.ENGINE)
            if line.closed:
                return None
            if not welcome and time.monotonic() - line.opened > ANSWER_SECONDS:
                reason = "%s accepts connections and has not answered for %.0f s" % (
                    address(self._place),
                    ANSWER_SECONDS,
                )
                raise CaseError("node 0 at " + reason, NODE_0_REMEDY, ExitCode.TIMEOUT)
            if welcome:
                words_ = "node %d waits with node 0 at %s %s" % (self._place.node_rank, address(self._place), missing)
                self._waiting.check(words_, "start them")
            else:
                self._waiting.check("%s (connected, no answer yet)" % self._who, NODE_0_REMEDY)
            line.wait(0.1)

    def _begin(self, line: Line, go: Dict[str, Any]) -> Peers:
        port, run_id = go.get("port"), str(go.get("run_id"))
        if not isinstance(port, int) or not 0 < port < 65536:
            raise CaseError("node 0 named no port", "use the same image on every node", ExitCode.USAGE)
        hosts = {0: printable(str(go.get("host") or line.peer))[:200], self._place.node_rank: self._me.host}
        return Peers(self._place.node_rank, {0: line}, hosts, port, run_id)


def meet(place: Placement, me: Introduction, seconds: float, interruption: Interruption) -> Peers:
    """Wait until all nodes are there, at most `seconds`; returns the connections to them.

    Raises CaseError: usage (2) for nodes that do not belong together, timeout (6), interrupted (7), network (15), and
    for a node that has failed meanwhile whatever it failed with.
    """
    from flagbench_cases.node.rendezvous_host import Host

    waiting = Waiting(seconds, interruption)
    return Guest(place, me, waiting).join() if place.node_rank else Host(place, me, waiting).gather()


def tell(place: Placement, host: str, outcome: Outcome, interruption: Interruption) -> None:
    """Tell the other nodes of a failure before they have connected, for a while: they may start later."""
    from flagbench_cases.node.rendezvous_host import Host

    waiting = Waiting(LAST_WORDS_SECONDS, interruption)
    me = Introduction(host, "", None, {})
    words = Words(place.node_rank, host, outcome)
    say("%s; the other nodes are told, for at most %.0f s" % (outcome.reason, LAST_WORDS_SECONDS))
    try:
        if place.node_rank:
            Guest(place, me, waiting).confess(words)
        else:
            Host(place, me, waiting).turn_away(words)
    except CaseError:
        return
