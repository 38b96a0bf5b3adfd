"""Nodes on their way to each other: who is missing is said, who does not belong ends all, over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from flagbench_cases.node import rendezvous, rendezvous_client, rendezvous_server, wire
from flagbench_cases.node.peers import Peers
from flagbench_cases.node.rendezvous_protocol import NodeInfo
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode
from running import free_port
from unit.cases.node.nodes import DATA, KILLED, SAME, Node, placement, together

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("quick")]


def codes(found: list[Any]) -> list[Any]:
    return [error.code for error in found]


def test_nodes_meet_and_take_node_0s_run_id_and_port(pair: list[Peers]) -> None:
    assert [one.run_id for one in pair] == ["mine", "mine"]
    assert [one.record_id for one in pair] == ["made-by-0", "made-by-0"]
    assert pair[0].port == pair[1].port > 0
    assert pair[0].hosts == pair[1].hosts == {0: "host-0", 1: "host-1"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_node_is_a_timeout(rank: int, node: Node, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with pytest.raises(CaseError) as caught:
        node(rank, seconds=0.5)
    assert time.monotonic() - began < 5
    assert caught.value.code == ExitCode.TIMEOUT
    lines = [line for line in capsys.readouterr().err.splitlines() if "127.0.0.1:%d" % port in line]
    assert len(lines) >= 3
    assert all("node %d" % missing in lines[0] for missing in (0, 1)), lines[0]


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"nodes": 3}, {"run_id": "another"}],
    ids=lambda other: next(iter(other)),
)
def test_nodes_started_with_something_else_end_all(node: Node, other: dict[str, Any]) -> None:
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
    ports, real = [port, free_port()], rendezvous_server.listen
    monkeypatch.setattr(rendezvous_server, "listen", lambda asked: real(ports.pop()))
    found = together(lambda: node(0), lambda: node(0))
    assert codes(found) == [ExitCode.USAGE] * 2


def test_a_port_in_use_ends_node_0_at_once(node: Node, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen(1)
        with pytest.raises(CaseError) as caught:
            node(0)
    assert caught.value.code == ExitCode.ENGINE
    assert str(port) in caught.value.message


@contextlib.contextmanager
def listening(port: int, content: bytes) -> Iterator[None]:
    """Something else listens where node 0 should, and says this to all who come."""

    class Says(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the other side has gone
                self.request.sendall(content)

    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Says) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("content", [b"SSH-2.0-OpenSSH_9.2\r\n", b"[" * 10**6])
def test_another_protocol_on_that_port_is_named(node: Node, port: int, content: bytes) -> None:
    with listening(port, content), pytest.raises(CaseError) as caught:
        node(1)
    assert caught.value.code == ExitCode.ENGINE
    assert str(port) in caught.value.message


def reached(port: int) -> socket.socket:
    """A connection to a port that is listened to soon."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_strangers_at_the_door_disturb_nobody(node: Node, port: int) -> None:
    """A health check that connects and goes, a scanner that talks: the nodes meet all the same."""

    contents = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000 + b"\n", b'{"node": "x", "flagbench": 1}\n', b"[]\n"]

    def late() -> Peers:
        for content in contents:
            with reached(port) as door:
                door.sendall(content)
        return node(1)

    found = together(lambda: node(0), late)
    assert [one.node for one in found] == [0, 1]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_failed_before_it_joined_ends_the_others(rank: int, node: Node, port: int) -> None:
    def failing() -> None:
        rendezvous.report_failure(placement(rank, port), "host", DATA, Interruption())

    found = together(failing, lambda: node(1 - rank))
    assert found[1].code == ExitCode.DATA
    assert "node %d (host)" % rank in found[1].message
    assert str(DATA.reason) in found[1].message


UNKNOWN = socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_name_that_never_resolves_is_a_timeout(rank: int, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*arguments: Any, **options: Any) -> Any:
        raise UNKNOWN

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(CaseError) as caught:
        node(rank, seconds=0.3, nodes=2)
    assert caught.value.code == ExitCode.TIMEOUT
    assert rank == 0 or "not known" in caught.value.message


def test_a_name_that_comes_late_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes the name of node 0 exists only once its pod does."""
    real = socket.getaddrinfo
    refusals = [UNKNOWN, UNKNOWN, socket.gaierror(-3, "Temporary failure in name resolution"), UNKNOWN]

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
    began = time.monotonic()
    for interruption, seconds, code in (
        (asked, 60.0, ExitCode.INTERRUPTED),
        (Interruption(), 0.05, ExitCode.TIMEOUT),
    ):
        with pytest.raises(CaseError) as caught:
            rendezvous.connect(place, me, seconds, interruption)
        assert caught.value.code == code
    assert time.monotonic() - began < 5
    over.set()


def test_a_node_that_goes_may_come_again(node: Node, port: int) -> None:
    """As one that is stopped while it joins: node 0 reads its word and its end at once."""
    hello = {"flagbench": 1, "node": 1, "host": "h", "run_id": None, "same": SAME}

    def twice() -> Peers:
        with reached(port) as door:
            door.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # until it is closed
            door.sendall(json.dumps(hello).encode() + b"\n")
        return node(1)

    found = together(lambda: node(0), twice)
    assert [type(one) for one in found] == [Peers, Peers], found


def test_silent_connections_keep_nobody_out(node: Node, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than `select` can watch, and than node 0 may have open at once."""
    monkeypatch.setattr(rendezvous_server, "MAX_UNIDENTIFIED", 20)
    monkeypatch.setattr(rendezvous_server, "IDENTIFY_SECONDS", 0.2)
    # Descriptors beyond the 1024 that `select` can watch.
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))
    filled: list[int] = []
    held: list[socket.socket] = []
    try:
        while not filled or filled[-1] < 1100:
            filled.append(os.open(os.devnull, os.O_RDONLY))

        def late() -> Peers:
            for _ in range(50):
                held.append(reached(port))
            return node(1)

        found = together(lambda: node(0), late)
        assert [type(one) for one in found] == [Peers, Peers], found
        found[1].report(KILLED)
        assert found[0].wait_for_failure("train").exit_code == 4
    finally:
        for one in held:
            one.close()
        for descriptor in filled:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_node_does_not_take_itself_for_node_0(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to a port of this machine that nobody listens to can come from that very port, and succeeds."""
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda to, timeout: real(to, timeout, source_address=to))
    answer = wire.connect_async("127.0.0.1", port).get(timeout=10)
    assert isinstance(answer, ConnectionRefusedError)


def test_a_door_that_closes_at_once_is_not_stormed(node: Node, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_client, "RETRY_SECONDS", 0.2)
    listener = wire.listen(port)
    over = threading.Event()
    came = []

    def shut() -> None:
        while not over.is_set():
            select.select([listener], [], [], 0.05)
            try:
                listener.accept()[0].close()
                came.append(1)
            except OSError:
                continue

    def late() -> Any:
        try:
            return node(1, seconds=1.0)
        finally:
            over.set()

    found = together(shut, late)
    listener.close()
    assert found[1].code == ExitCode.TIMEOUT
    assert len(came) <= 8
