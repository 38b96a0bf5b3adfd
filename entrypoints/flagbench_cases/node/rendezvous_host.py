"""Node 0's side of `rendezvous`: it accepts the other nodes, compares them with itself, begins once all are there."""

import secrets
import socket
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from flagbench_cases.node.network import free_port
from flagbench_cases.node.peers import READ_SECONDS, Peers, Words, name, read_words
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.rendezvous import (
    LAST_WORDS_SECONDS,
    PROTOCOL,
    RETRY_SECONDS,
    Introduction,
    Waiting,
    address,
    take,
)
from flagbench_cases.node.wire import Line, dial, listen, printable, wait
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError

# How long node 0 may take to reach itself, once its name is known.
PROBE_SECONDS = 20.0
SAME_REMEDY = "start every node with the same arguments and the same image"
PROBE_REMEDY = "check that --master names node 0, and that the network of this machine, loopback too, is up"
MOST_DIFFERENCES = 3
# How many may be connected that have not said who they are, and for how long: a node says it at once.
MOST_STRANGERS = 256
STRANGER_SECONDS = 5.0


class Host:
    """Node 0, to which the others connect. Raises CaseError (15) if it cannot listen."""

    def __init__(self, place: Placement, me: Introduction, waiting: Waiting) -> None:
        self._place, self._me, self._waiting = place, me, waiting
        self._guests: Dict[int, Line] = {}
        self._hosts = {0: me.host}
        self._seen: Set[int] = set()
        self._strangers: List[Line] = []
        """Connections that have not identified themselves, or were rejected and wait for the reason."""
        try:
            self._listener = listen(place.port)
        except OSError as error:
            reason = "node 0 cannot listen on port %d (%s)" % (place.port, error.strerror or error)
            remedy = "end what uses that port, or give every node another port in --master"
            raise CaseError(reason, remedy, ExitCode.ENGINE) from None
        self._probe = Probe(place)

    def gather(self) -> Peers:
        """Wait for all nodes. Raises CaseError, which is also sent to the nodes that have connected."""
        try:
            while True:
                self._admit()
                self._probe.advance()
                missing = [node for node in range(1, self._place.nodes) if node not in self._guests]
                if not missing and self._probe.done:
                    return self._begin()
                self._waiting.check(*self._waits(missing))
                wait(self._sources(), 0.05)
        except CaseError as error:
            state = "interrupted" if error.code == ExitCode.INTERRUPTED else "failed"
            outcome = Outcome(state, "launch", error.message, error.remedy, int(error.code))
            lost = error.code in (ExitCode.INTERRUPTED, ExitCode.TIMEOUT)
            words = Words(0 if state == "interrupted" else None, self._me.host, outcome)
            self._end(words, 0.0 if lost else LAST_WORDS_SECONDS)
            raise

    def turn_away(self, words: Words) -> None:
        """Tell every node that connects why node 0 does not run."""
        self._end(words, LAST_WORDS_SECONDS)

    def _waits(self, missing: List[int]) -> Tuple[str, str]:
        """What node 0 waits for, and what to do about it."""
        where = address(self._place)
        if missing:
            nodes = "nodes" if len(missing) > 1 else "node"
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            words = "node 0 waits at %s for %s %s of %d" % (where, nodes, shown, self._place.nodes)
            for line in self._guests.values():
                line.say_once("waits", "for %s %s of %d" % (nodes, shown, self._place.nodes))
            return words, "start what is missing, and check that it reaches this address"
        return "node 0 waits until it can reach itself at %s (%s)" % (where, self._probe.reason), PROBE_REMEDY

    def _begin(self) -> Peers:
        port = free_port("")
        self._probe.close()
        for line in self._strangers:
            line.close()
        for line in self._guests.values():
            line.send({"go": {"port": port, "run_id": self._me.run_id, "host": self._me.host}})
        peers = Peers(0, self._guests, self._hosts, port, self._me.run_id)
        peers.listener = self._listener
        return peers

    # -- who comes -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        clock = time.monotonic()
        for line in [line for line in self._strangers if clock - line.opened > STRANGER_SECONDS]:
            line.close()
            self._strangers.remove(line)
        try:
            while len(self._strangers) < MOST_STRANGERS:
                self._strangers.append(Line(self._listener.accept()[0]))
        except OSError:
            return

    def _admit(self) -> None:
        """Let in who has come, and let go who has left: it may come again."""
        for node, line in list(self._guests.items()):
            for message in line.receive():
                self._heed(message)
            if line.closed:
                line.close()
                del self._guests[node]
        self._accept()
        for line in list(self._strangers):
            for message in line.receive():
                if message.get("probe") == self._probe.secret:
                    self._probe.done = True
                elif isinstance(message.get("node"), int) and message.get("flagbench") == PROTOCOL:
                    self._seen.add(message["node"])
                    self._welcome(line, message["node"], message)
            if line.closed:
                line.close()
            if line.closed or line in self._guests.values():
                self._strangers.remove(line)

    def _heed(self, message: Dict[str, Any]) -> None:
        """Raise CaseError where a node has failed. One that was told to stop has left."""
        words = read_words(message)
        if words is not None and words.outcome.state == "failed":
            found = words.told()
            raise CaseError(found.reason or "", found.remedy or "", ExitCode(found.exit_code))

    def _welcome(self, line: Line, node: int, message: Dict[str, Any]) -> None:
        """Accept a node. Raises CaseError if it does not belong to this run, or has failed."""
        host = printable(str(message.get("host") or line.peer))[:200]
        self._heed(message)
        if node == 0 or node in self._guests:
            reason = "two nodes say that they are node %d: %s and %s" % (node, self._hosts[node], host)
            raise UsageError(reason, "give every node a --node-rank of its own")
        differences = self._differences(message)
        if differences:
            more = len(differences) - MOST_DIFFERENCES
            shown = ", ".join(differences[:MOST_DIFFERENCES]) + (" and %d more" % more if more > 0 else "")
            raise UsageError("%s was started with %s" % (name(node, host), shown), SAME_REMEDY)
        if not 0 < node < self._place.nodes:
            raise UsageError("%s does not exist among %d" % (name(node, host), self._place.nodes), SAME_REMEDY)
        self._hosts[node] = host
        if line.closed:
            return  # it has left again
        self._guests[node] = line
        line.send({"flagbench": PROTOCOL, "host": self._me.host})

    def _differences(self, message: Dict[str, Any]) -> List[str]:
        """What a node was started with that this one was not, in words."""
        theirs = message.get("same")
        theirs = theirs if isinstance(theirs, dict) else {}
        mine, given = self._me.same, message.get("run_id")
        keys = [*mine, *sorted(set(theirs) - set(mine))]
        pairs = [(str(key), theirs.get(key), mine.get(key)) for key in keys]
        if given is not None:  # a node without one takes this node's
            pairs.append(("--run-id", given, self._me.run_id))
        return ["%s %s where node 0 has %s" % (printable(k), _short(a), _short(b)) for k, a, b in pairs if a != b]

    # -- the end ---------------------------------------------------------------------------------------------

    def _lines(self) -> List[Line]:
        return [line for line in [*self._guests.values(), *self._strangers] if not line.closed]

    def _sources(self) -> List[Any]:
        """What may have something to read, or somebody to let in."""
        return [*self._lines(), *([self._listener] if len(self._strangers) < MOST_STRANGERS else [])]

    def _end(self, words: Words, linger: float) -> None:
        """Tell all nodes why the run does not begin, also those that connect within `linger` seconds."""
        told: Set[Line] = set()
        self._probe.close()
        deadline = time.monotonic() + linger
        while True:
            self._accept()
            for line in self._lines():
                self._seen.update(m["node"] for m in line.receive() if isinstance(m.get("node"), int))
                if line not in told:
                    told.add(line)
                    line.send(words.as_message())
                    line.finish()
            over = len(self._seen - {0}) >= self._place.nodes - 1 or self._waiting.over()
            deadline = min(deadline, time.monotonic()) if over else deadline
            left = deadline + READ_SECONDS if self._lines() else deadline
            if time.monotonic() >= left:
                break
            wait(self._sources(), 0.02)
        self._listener.close()
        for line in [*self._guests.values(), *self._strangers]:
            line.close()


def _short(value: Any) -> str:
    text = printable(str(value))
    return text if len(text) <= 80 else text[:77] + "..."


class Probe:
    """Whether the address given to the others reaches this process itself, as torch's rendezvous needs too."""

    def __init__(self, place: Placement) -> None:
        self._place = place
        self.secret = secrets.token_hex(16)
        self.done = False
        self.reason = "no answer yet"
        self._failing_since: Optional[float] = None
        self._line: Optional[Line] = None
        self._answers = dial(place.host, place.port)
        self._again = 0.0

    def advance(self) -> None:
        """Try it again. Raises CaseError: 15 where something else answers, else what a node 0 there says."""
        if self.done:
            self.close()
            return
        if self._line is not None:
            self._hear(self._line)
            return
        if self._again and time.monotonic() < self._again:
            return
        if self._again:
            self._again, self._answers = 0.0, dial(self._place.host, self._place.port)
        answer = take(self._answers, 0.0)
        if isinstance(answer, OSError):
            # On Kubernetes a name may resolve only later; an address must reach this process at once.
            self._fail(answer.strerror or str(answer), known=not isinstance(answer, socket.gaierror))
        elif answer is not None:
            self._line = Line(answer)
            self._line.send({"flagbench": PROTOCOL, "probe": self.secret, "node": 0, "host": "this address"})

    def close(self) -> None:
        """End it."""
        answer = take(self._answers, 0.0)
        if isinstance(answer, socket.socket):
            answer.close()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _hear(self, line: Line) -> None:
        words = next(filter(None, map(read_words, line.receive())), None)
        if words is not None:
            raise CaseError(words.outcome.reason or "", words.outcome.remedy or "", ExitCode(words.outcome.exit_code))
        if line.closed or time.monotonic() - line.opened > PROBE_SECONDS:
            self.close()
            self._fail("something else answers there", known=True)

    def _fail(self, reason: str, known: bool) -> None:
        self.reason = reason
        clock = time.monotonic()
        self._again = clock + RETRY_SECONDS
        self._failing_since = (self._failing_since or clock) if known else None
        if self._failing_since is not None and clock - self._failing_since > PROBE_SECONDS:
            words = "node 0 cannot reach itself at %s (%s)" % (address(self._place), reason)
            raise CaseError(words, PROBE_REMEDY, ExitCode.ENGINE)
