"""Nodes that meet over real sockets: who is missing is named, who does not belong ends all, and what one node ends
with reaches the others."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

import pytest

from flagbench_cases.node import peers, rendezvous, supervisor, wire
from flagbench_cases.node.peers import Peers
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.rendezvous import NodeInfo
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode
from running import free_port

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("quick")]

SAME = {"version": "1", "nodes": 2, "seed": 0}
DATA = Outcome("failed", "data", "the file x is missing", "fetch it", int(ExitCode.DATA))
KILLED = Outcome("failed", "train", "rank 1 was killed by SIGKILL", "see who sent it", int(ExitCode.RANK_FAILED))
STOPPED = Outcome("interrupted", "train", "interrupted by SIGTERM", "run again", int(ExitCode.INTERRUPTED))
Node = Callable[..., Peers]


def placement(rank: int, port: int, nodes: int = 2, host: str = "127.0.0.1") -> Placement:
    return Placement(nodes, rank, host, port, "test")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of seconds, as fractions of one."""
    monkeypatch.setattr(rendezvous, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(rendezvous, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(rendezvous, "REPORT_FAILURE_SECONDS", 0.5)
    monkeypatch.setattr(peers, "NODE_SKEW_SECONDS", 0.2)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def node(port: int, quick: None) -> Iterator[Node]:
    """Has one node meet the others, in this thread; the test's end closes its connections."""
    met: list[Peers] = []

    def meet(rank: int, seconds: float = 20.0, nodes: int = 2, run_id: str | None = None, **same: Any) -> Peers:
        made, same = "made-by-%d" % rank, {**SAME, "nodes": nodes, **same}
        me = NodeInfo("host-%d" % rank, run_id or made, run_id, same, record_id=made)
        met.append(rendezvous.connect(placement(rank, port, nodes), me, seconds, Interruption()))
        return met[-1]

    yield meet
    for one in met:
        one.close(0.0)


def together(*starts: Callable[[], Any]) -> list[Any]:
    """What each of several nodes comes to, all at once: what it returns, or the CaseError it ends with."""
    found: list[Any] = [None] * len(starts)

    def run(index: int) -> None:
        try:
            found[index] = starts[index]()
        except CaseError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(starts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a node waits for ever"
    return found


def all_of(node: Node, nodes: int) -> list[Peers]:
    return together(*(lambda rank=rank: node(rank, nodes=nodes) for rank in range(nodes)))


@pytest.fixture
def pair(node: Node) -> list[Peers]:
    return together(lambda: node(0, run_id="mine"), lambda: node(1))


def codes(found: list[Any]) -> list[Any]:
    return [error.code for error in found]


def test_nodes_meet_with_the_run_id_of_node_0(pair: list[Peers]) -> None:
    assert [one.run_id for one in pair] == ["mine", "mine"]
    assert [one.record_id for one in pair] == ["made-by-0", "made-by-0"]
    assert pair[0].port == pair[1].port > 0
    assert pair[0].hosts == pair[1].hosts == {0: "host-0", 1: "host-1"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_node_is_a_timeout(rank: int, node: Node, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaseError) as caught:
        node(rank, seconds=0.5)
    assert caught.value.code == ExitCode.TIMEOUT
    lines = [line for line in capsys.readouterr().err.splitlines() if "127.0.0.1:%d" % port in line]
    assert lines
    assert all("node %d" % missing in lines[0] for missing in (0, 1)), lines[0]


@pytest.mark.parametrize("other", [{"seed": 1}, {"nodes": 3}, {"run_id": "another"}])
def test_nodes_with_other_settings_end_all(node: Node, other: dict[str, Any]) -> None:
    found = together(lambda: node(0, run_id="mine"), lambda: node(1, **other))
    assert codes(found) == [ExitCode.USAGE] * 2
    key = next(iter(other)).replace("run_id", "--run-id")
    assert all(key in error.message and "node 1 (host-1)" in error.message for error in found)


def test_two_nodes_of_one_rank_end_all(node: Node) -> None:
    found = together(*(lambda rank=rank: node(rank, nodes=3) for rank in (0, 1, 1)))
    assert codes(found) == [ExitCode.USAGE] * 3
    assert "rank 1" in found[0].message


def test_a_second_node_0_elsewhere_ends_both(node: Node, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens at home, and finds the first one at the address that both were given."""
    ports, real = [port, free_port()], rendezvous.listen
    monkeypatch.setattr(rendezvous, "listen", lambda asked: real(ports.pop()))
    assert codes(together(lambda: node(0), lambda: node(0))) == [ExitCode.USAGE] * 2


@contextlib.contextmanager
def listening(port: int, content: bytes) -> Iterator[list[int]]:
    """Something else listens where node 0 should, sends this to all who come, and closes. Yields who came."""
    came: list[int] = []

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            came.append(1)
            with contextlib.suppress(OSError):  # the other side has gone
                self.request.sendall(content)

    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Other) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield came
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("content", [b"SSH-2.0-OpenSSH_9.2\r\n", b"[" * 10**6])
def test_another_protocol_on_that_port_is_named(node: Node, port: int, content: bytes) -> None:
    with listening(port, content), pytest.raises(CaseError) as caught:
        node(1)
    assert caught.value.code == ExitCode.ENGINE
    assert str(port) in caught.value.message


def test_a_closing_server_is_not_stormed(node: Node, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "RETRY_SECONDS", 0.2)
    with listening(port, b"") as came, pytest.raises(CaseError) as caught:
        node(1, seconds=1.0)
    assert caught.value.code == ExitCode.TIMEOUT
    assert len(came) <= 8


def reached(port: int) -> socket.socket:
    """A connection to a port that is listened to soon."""
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.01)


def test_strangers_disturb_nobody(node: Node, port: int) -> None:
    """A health check that connects and goes, a scanner that talks or is silent, a node that goes and comes again: the
    nodes meet all the same."""
    hello = json.dumps({"flagbench": 1, "node": 1, "host": "h", "run_id": None, "same": SAME}).encode() + b"\n"
    contents = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000 + b"\n", b'{"node": "x", "flagbench": 1}\n', b"[]\n"]

    def late() -> Peers:
        for content in [*contents, hello]:
            with reached(port) as door:
                door.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # node 0 reads content and end at once
                door.sendall(content)
        with reached(port):
            return node(1)

    found = together(lambda: node(0), late)
    assert [type(one) for one in found] == [Peers, Peers], found


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_before_joining_ends_the_others(rank: int, node: Node, port: int) -> None:
    def failing() -> None:
        rendezvous.report_failure(placement(rank, port), "host", DATA, Interruption())

    found = together(failing, lambda: node(1 - rank))
    assert found[1].code == ExitCode.DATA
    assert "node %d (host)" % rank in found[1].message
    assert str(DATA.reason) in found[1].message


def test_a_name_that_resolves_late_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes the name of node 0 exists only once its pod does."""
    real = socket.getaddrinfo
    refusals = [socket.gaierror(number, "Name or service not known") for number in (-2, -3, -2, -2)]

    def getaddrinfo(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    found = together(lambda: node(0), lambda: node(1))
    assert [one.node for one in found] == [0, 1]


def test_a_silent_name_server_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: over.wait(60) and [])
    asked = Interruption()
    asked.number = 15
    place, me = placement(1, 1, host="job-0.job"), NodeInfo("h", "r", None, SAME)
    for interruption, seconds, code in (
        (asked, 60.0, ExitCode.INTERRUPTED),
        (Interruption(), 0.05, ExitCode.TIMEOUT),
    ):
        with pytest.raises(CaseError) as caught:
            rendezvous.connect(place, me, seconds, interruption)
        assert caught.value.code == code
    assert not over.is_set()
    over.set()


def test_a_node_does_not_take_itself_for_node_0(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to a port of this machine that nobody listens to can come from that very port, and succeeds."""
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda to, timeout: real(to, timeout, source_address=to))
    answer = wire.connect_async("127.0.0.1", port).get(timeout=10)
    assert isinstance(answer, ConnectionRefusedError)


# -- nodes that have met -------------------------------------------------------------------------------------


def test_a_node_that_comes_late_is_told(pair: list[Peers], node: Node) -> None:
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            pair[0].poll()
            time.sleep(0.01)

    def late() -> Any:
        try:
            return node(1)
        finally:
            over.set()

    assert together(run, late)[1].code == ExitCode.USAGE
    assert pair[0].find_failure("train") is None, "the run continues"


def test_a_failure_reaches_every_node_as_it_is(node: Node) -> None:
    found = all_of(node, 3)
    found[1].report(KILLED)
    first = found[0].wait_for_failure("train")
    assert (first.state, first.exit_code, first.phase) == ("failed", 4, "train")
    assert first.reason == "node 1 (host-1): rank 1 was killed by SIGKILL"
    found[0].report(first)
    assert found[2].wait_for_failure("train") == first


def test_a_node_that_is_gone_is_the_cause(pair: list[Peers]) -> None:
    pair[1].close(0.0)
    found = pair[0].wait_for_failure("train")
    assert (found.state, found.exit_code) == ("failed", 4)
    assert "node 1 (host-1)" in found.reason


def test_a_node_stopped_alone_has_failed(pair: list[Peers]) -> None:
    pair[1].report(STOPPED)
    found = pair[0].wait_for_failure("train")
    assert pair[0].interrupted()
    assert not pair[0].wait_for_interruption(Interruption())
    assert (found.state, found.exit_code) == ("failed", 4)


def test_nodes_stopped_with_node_0_are_interrupted(pair: list[Peers]) -> None:
    pair[0].report(STOPPED)
    found = pair[1].wait_for_failure("train")
    assert (found.state, found.exit_code) == ("interrupted", 7)


@pytest.mark.parametrize(
    "message",
    [{"end": None}, {"end": {"state": "failed", "exit_code": 999}}, {"end": {"state": "odd", "exit_code": 4}}],
)
def test_invalid_reports_are_ignored(message: dict[str, Any]) -> None:
    assert peers.parse_report(message) is None


def test_a_failure_sent_with_the_start_is_read(node: Node, port: int) -> None:
    """Node 0 fails right after it has begun; both messages are read at once."""
    go = {"go": {"port": 5, "run_id": "r", "record_id": "made-by-0", "host": "host-0"}}
    messages = (go, peers.NodeReport(0, "host-0", DATA).as_message())
    with listening(port, b"".join(json.dumps(message).encode() + b"\n" for message in messages)):
        cause = node(1).wait_for_failure("launch")
    assert (cause.exit_code, cause.reason) == (3, "node 0 (host-0): the file x is missing")


def test_a_failed_node_ends_after_node_0(node: Node) -> None:
    """Node 0 has read its report long before it ends itself."""
    found = all_of(node, 3)
    ended: list[int] = []

    def first() -> None:
        cause = found[0].wait_for_failure("train")
        found[0].report(cause)
        deadline = time.monotonic() + 1.0  # the record is made
        while time.monotonic() < deadline:
            found[0].poll()
            time.sleep(0.01)
        ended.append(0)
        found[0].close(2.0)

    def other(rank: int) -> None:
        found[rank].report(KILLED if rank == 1 else found[rank].wait_for_failure("train"))
        found[rank].close()
        ended.append(rank)

    together(first, lambda: other(1), lambda: other(2))
    assert ended[0] == 0
    assert sorted(ended) == [0, 1, 2]


def test_states_of_other_nodes_are_validated() -> None:
    sent = [{"1": 3}, {"²": 4, "9" * 5000: 1, "x": 2}, 7, {"0": "y", 2: 5}]
    assert supervisor.merge_by_rank(sent) == [(1, 3), (2, 5)]
