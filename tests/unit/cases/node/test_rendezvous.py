"""Nodes on their way to each other: who is missing is said, who does not belong ends all, over real sockets."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flagbench_cases.node import (
    peers,
    rendezvous,
    rendezvous_client,
    rendezvous_protocol,
    rendezvous_server,
    supervisor,
    wire,
)
from flagbench_cases.node.network import free_port
from flagbench_cases.node.peers import Peers
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.rendezvous_protocol import NodeInfo
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import CaseError, ExitCode
from flagbench_cases.shared.interruption import Interruption

pytestmark = pytest.mark.image

SAME = {"version": "1", "nodes": 2, "seed": 0}
DATA = Outcome("failed", "data", "the file x is missing", "fetch it", int(ExitCode.DATA))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of seconds, as fractions of one."""
    monkeypatch.setattr(rendezvous_protocol, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(rendezvous_client, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(rendezvous_server, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(rendezvous_server, "REPORT_FAILURE_SECONDS", 0.5)
    monkeypatch.setattr(peers, "SKEW_SECONDS", 0.2)


@pytest.fixture
def port() -> int:
    return free_port()


def node(
    rank: int, port: int, seconds: float = 20.0, nodes: int = 2, run_id: str | None = None, **same: Any
) -> Peers:
    """One node that meets the others, in this thread."""
    me = NodeInfo("host-%d" % rank, run_id or "made-by-%d" % rank, run_id, {**SAME, "nodes": nodes, **same})
    return rendezvous.connect(Placement(nodes, rank, "127.0.0.1", port, "test"), me, seconds, Interruption())


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


@pytest.fixture
def pair(port: int) -> Iterator[list[Peers]]:
    both = together(lambda: node(0, port, run_id="mine"), lambda: node(1, port))
    yield both
    for one in both:
        one.close(0.0)


def codes(found: list[Any]) -> list[Any]:
    return [error.code for error in found]


def test_nodes_meet_and_take_node_0s_run_id_and_port(pair: list[Peers]) -> None:
    assert [one.run_id for one in pair] == ["mine", "mine"]
    assert pair[0].port == pair[1].port > 0
    assert pair[0].hosts == pair[1].hosts == {0: "host-0", 1: "host-1"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_node_is_said_at_once_and_again_and_is_a_timeout(
    rank: int, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with pytest.raises(CaseError) as caught:
        node(rank, port, seconds=0.5)
    assert time.monotonic() - began < 5
    assert caught.value.code == ExitCode.TIMEOUT
    lines = [line for line in capsys.readouterr().err.splitlines() if "127.0.0.1:%d" % port in line]
    assert len(lines) >= 3
    assert all("node %d" % missing in lines[0] for missing in (0, 1)), lines[0]


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"nodes": 3}, {"version": "2"}, {"more": True}, {"run_id": "another"}],
    ids=lambda other: next(iter(other)),
)
def test_nodes_that_were_started_with_something_else_end_all(port: int, other: dict[str, Any]) -> None:
    found = together(lambda: node(0, port, run_id="mine"), lambda: node(1, port, **other))
    assert codes(found) == [ExitCode.USAGE] * 2
    key = next(iter(other)).replace("run_id", "--run-id")
    assert all(key in error.message and "node 1 (host-1)" in error.message for error in found)


def test_two_nodes_of_one_rank_end_all(port: int) -> None:
    same = {"nodes": 3}
    found = together(*(lambda rank=rank: node(rank, port, **same) for rank in (0, 1, 1)))
    assert codes(found) == [ExitCode.USAGE] * 3
    assert "rank 1" in found[0].message


def test_a_second_node_0_elsewhere_ends_both(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens at home, and finds the first one at the address that both were given."""
    other = free_port()
    real = rendezvous_server.listen
    monkeypatch.setattr(
        rendezvous_server, "listen", lambda asked: real(other if threading.current_thread().name == "b" else asked)
    )

    def second() -> Any:
        threading.current_thread().name = "b"
        return node(0, port)

    found = together(lambda: node(0, port), second)
    assert codes(found) == [ExitCode.USAGE] * 2


def test_a_port_in_use_ends_node_0_at_once(port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen(1)
        with pytest.raises(CaseError) as caught:
            node(0, port)
    assert caught.value.code == ExitCode.ENGINE
    assert str(port) in caught.value.message


@pytest.fixture
def stranger(port: int) -> Iterator[Callable[[bytes | None], None]]:
    """What listens where node 0 should, and says something else, or nothing."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen(8)
    kept: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def answer(content: bytes | None) -> None:
        def serve() -> None:
            while content is not None:
                try:
                    kept.append(listener.accept()[0])
                    kept[-1].sendall(content)
                except OSError:  # closed, here or there
                    return

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()

    yield answer
    listener.shutdown(socket.SHUT_RDWR)  # which ends a wait in accept; closing it does not
    for one in kept:
        one.close()
    for thread in threads:
        thread.join(10)
    listener.close()


@pytest.mark.parametrize(
    "content", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\n" * 9, b"[" * 10**6]
)
def test_another_protocol_on_that_port_is_named(
    port: int, stranger: Callable[[bytes | None], None], content: bytes
) -> None:
    stranger(content)
    with pytest.raises(CaseError) as caught:
        node(1, port)
    assert caught.value.code == ExitCode.ENGINE


def test_a_node_0_that_never_answers_is_a_timeout(
    port: int, stranger: Callable[[bytes | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_client, "ANSWER_SECONDS", 0.3)
    stranger(None)
    with pytest.raises(CaseError) as caught:
        node(1, port)
    assert caught.value.code == ExitCode.TIMEOUT


def test_strangers_at_the_door_disturb_nobody(port: int) -> None:
    """A health check that connects and goes, a scanner that talks: the nodes meet all the same."""

    def knock() -> None:
        deadline = time.monotonic() + 20
        for content in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x00" * 1000 + b"\n",
            b'{"node": "x", "flagbench": 1}\n',
            b"[]\n",
        ):
            while time.monotonic() < deadline:
                try:
                    with socket.create_connection(("127.0.0.1", port)) as door:
                        door.sendall(content)
                    break
                except OSError:
                    time.sleep(0.01)

    def late() -> Peers:
        knock()
        return node(1, port)

    found = together(lambda: node(0, port), late)
    assert [one.node for one in found] == [0, 1]
    for one in found:
        one.close(0.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_failed_before_it_joined_ends_the_others(rank: int, port: int) -> None:
    def failing() -> None:
        rendezvous.report_failure(Placement(2, rank, "127.0.0.1", port, "test"), "host", DATA, Interruption())

    found = together(failing, lambda: node(1 - rank, port))
    assert found[1].code == ExitCode.DATA
    assert "node %d (host)" % rank in found[1].message
    assert str(DATA.reason) in found[1].message


def test_who_comes_when_the_run_has_begun_is_told(pair: list[Peers], port: int) -> None:
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            pair[0].poll()
            time.sleep(0.01)

    def late() -> Any:
        try:
            return node(1, port)
        finally:
            over.set()

    found = together(run, late)
    assert found[1].code == ExitCode.USAGE
    assert pair[0].failure("train") is None, "the run continues"


UNKNOWN = socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_name_that_never_resolves_is_a_timeout_with_its_reason(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(*arguments: Any, **options: Any) -> Any:
        raise UNKNOWN

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(CaseError) as caught:
        node(rank, port, seconds=0.3, nodes=2)
    assert caught.value.code == ExitCode.TIMEOUT
    assert rank == 0 or "not known" in caught.value.message


def test_a_name_that_comes_late_is_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes the name of node 0 exists only once its pod does."""
    real = socket.getaddrinfo
    refusals = [UNKNOWN, UNKNOWN, socket.gaierror(-3, "Temporary failure in name resolution"), UNKNOWN]

    def getaddrinfo(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    found = together(lambda: node(0, port), lambda: node(1, port))
    assert [one.node for one in found] == [0, 1]
    for one in found:
        one.close(0.0)


def test_a_silent_name_server_delays_neither_a_signal_nor_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: over.wait(60) and [])
    asked = Interruption()
    asked.number = 15
    place, me = Placement(2, 1, "job-0.job", 1, "test"), NodeInfo("h", "r", None, SAME)
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


# -- once they have met ---------------------------------------------------------------------------------------------

KILLED = Outcome("failed", "train", "rank 1 was killed by SIGKILL", "see who sent it", int(ExitCode.RANK_FAILED))
STOPPED = Outcome("interrupted", "train", "interrupted by SIGTERM", "run again", int(ExitCode.INTERRUPTED))


def test_last_words_name_node_and_cause_on_every_node(port: int) -> None:
    found = together(*(lambda rank=rank: node(rank, port, nodes=3) for rank in range(3)))
    found[1].report(KILLED)
    first = found[0].wait_for_failure("train")
    assert (first.state, first.exit_code, first.phase) == ("failed", 4, "train")
    assert first.reason == "node 1 (host-1): rank 1 was killed by SIGKILL"
    found[0].report(first)
    third = found[2].wait_for_failure("train")
    assert third == first, "passed on as it is"
    for one in found:
        one.close(0.0)


def test_a_node_that_is_gone_without_a_word_is_the_cause(pair: list[Peers]) -> None:
    pair[1].close(0.0)
    found = pair[0].wait_for_failure("train")
    assert (found.state, found.exit_code) == ("failed", 4)
    assert "node 1 (host-1)" in found.reason


def test_a_node_that_ended_well_is_no_cause(pair: list[Peers]) -> None:
    pair[1].report(Outcome("ok", "done", None, None, 0))
    assert pair[0].wait_for_failure("train", 0.5) is None


def test_a_node_that_was_stopped_alone_is_lost_to_the_others(pair: list[Peers]) -> None:
    pair[1].report(STOPPED)
    found = pair[0].wait_for_failure("train")
    assert pair[0].interrupted()
    assert not pair[0].also_interrupted(Interruption())
    assert (found.state, found.exit_code) == ("failed", 4)


def test_nodes_that_are_stopped_with_node_0_are_interrupted(pair: list[Peers]) -> None:
    pair[0].report(STOPPED)
    found = pair[1].wait_for_failure("train")
    assert (found.state, found.exit_code) == ("interrupted", 7)


@pytest.mark.parametrize(
    "message",
    [
        {"end": None},
        {"end": {"state": "failed", "exit_code": 999}},
        {"end": {"state": "odd", "exit_code": 4}},
        {"end": {"state": "failed", "exit_code": [4]}},
        {"end": {"state": ["failed"], "exit_code": 4}},
        {"beat": 3},
        {},
    ],
)
def test_words_without_sense_are_none(message: dict[str, Any]) -> None:
    assert peers.parse_report(message) is None


def test_words_are_cut_and_cleaned_before_they_are_shown() -> None:
    reason = "\x1b[31mred\n\ud800" + "x" * 10**5
    words = peers.parse_report(
        {"end": {"state": "failed", "exit_code": 4, "reason": reason, "node": 1, "host": "\r"}}
    )
    assert words is not None
    shown = words.outcome_with_node().reason or ""
    assert shown.isprintable()
    assert len(shown) < 5000


def test_a_line_reads_whole_objects_from_pieces() -> None:
    ours, theirs = socket.socketpair()
    line = wire.Connection(ours)
    theirs.sendall(b'{"a": 1}\n{"b"')
    assert line.receive() == [{"a": 1}]
    theirs.sendall(b": 2}\n")
    theirs.close()
    assert line.receive() == [{"b": 2}]
    assert line.closed
    line.close()


# -- what was once wrong here ---------------------------------------------------------------------------------------


def hello(port: int, rank: int, nodes: int = 2) -> bytes:
    """What a node says first."""
    same = {**SAME, "nodes": nodes}
    return json.dumps({"flagbench": 1, "node": rank, "host": "h", "run_id": None, "same": same}).encode() + b"\n"


def test_a_node_that_says_who_it_is_and_goes_may_come_again(port: int) -> None:
    """As one that is stopped while it joins: node 0 reads its word and its end at once."""

    def twice() -> Peers:
        with reached(port) as door:
            door.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # until it is closed
            door.sendall(hello(port, 1))
        return node(1, port)

    found = together(lambda: node(0, port), twice)
    assert [type(one) for one in found] == [Peers, Peers], found
    for one in found:
        one.close(0.0)


def reached(port: int) -> socket.socket:
    """A connection to a port that is listened to soon."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_connections_that_are_held_open_in_silence_keep_nobody_out(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            return node(1, port)

        found = together(lambda: node(0, port), late)
        assert [type(one) for one in found] == [Peers, Peers], found
        found[1].report(KILLED)
        cause = found[0].wait_for_failure("train")
        assert cause is not None
        assert cause.exit_code == 4
        for one in found:
            one.close(0.0)
    finally:
        for one in held:
            one.close()
        for descriptor in filled:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_last_words_that_come_with_the_beginning_are_heard(port: int) -> None:
    """Node 0 fails right after it has begun; both are read at once."""
    listener = wire.listen(port)
    go = {"go": {"port": 5, "run_id": "r", "host": "host-0"}}
    words = peers.NodeReport(0, "host-0", DATA).as_message()

    def answer() -> None:
        listener.setblocking(True)
        door = listener.accept()[0]
        door.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in (go, words)))
        door.close()

    found = together(answer, lambda: node(1, port))
    cause = found[1].wait_for_failure("launch")
    assert (cause.exit_code, cause.reason) == (3, "node 0 (host-0): the file x is missing")
    found[1].close(0.0)
    listener.close()


def test_a_node_does_not_take_itself_for_node_0(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to a port of this machine that nobody listens to can come from that very port, and succeeds."""
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda to, timeout: real(to, timeout, source_address=to))
    answer = wire.connect_async("127.0.0.1", port).get(timeout=10)
    assert isinstance(answer, ConnectionRefusedError)


def test_a_door_that_closes_at_once_is_not_stormed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
            return node(1, port, seconds=1.0)
        finally:
            over.set()

    found = together(shut, late)
    listener.close()
    assert found[1].code == ExitCode.TIMEOUT
    assert len(came) <= 8


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_node_that_failed_first_ends_after_node_0(nodes: int, port: int) -> None:
    """Node 0 has read its word and its end long before it ends itself."""
    found = together(*(lambda rank=rank: node(rank, port, nodes=nodes) for rank in range(nodes)))
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

    together(first, *(lambda rank=rank: other(rank) for rank in range(1, nodes)))
    assert ended[0] == 0
    assert sorted(ended) == list(range(nodes))


def test_what_another_node_sends_of_its_ranks_may_be_anything() -> None:
    assert supervisor.merge_by_rank([{"1": 3}, {"²": 4, "9" * 5000: 1, "x": 2}, 7, {"0": "y", 2: 5}]) == [
        (1, 3),
        (2, 5),
    ]
