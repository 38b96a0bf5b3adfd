"""Nodes that have met: the last words of one are heard by all, and what makes no sense is passed over."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from flagbench_cases.node import peers, supervisor, wire
from flagbench_cases.node.peers import Peers
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode
from unit.cases.node.nodes import DATA, KILLED, Node, all_of, together

pytestmark = pytest.mark.image


def test_who_comes_when_the_run_has_begun_is_told(pair: list[Peers], node: Node) -> None:
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
    assert pair[0].failure("train") is None, "the run continues"


STOPPED = Outcome("interrupted", "train", "interrupted by SIGTERM", "run again", int(ExitCode.INTERRUPTED))


def test_last_words_name_node_and_cause_on_every_node(node: Node) -> None:
    found = all_of(node, 3)
    found[1].report(KILLED)
    first = found[0].wait_for_failure("train")
    assert (first.state, first.exit_code, first.phase) == ("failed", 4, "train")
    assert first.reason == "node 1 (host-1): rank 1 was killed by SIGKILL"
    found[0].report(first)
    third = found[2].wait_for_failure("train")
    assert third == first, "passed on as it is"


def test_a_node_that_is_gone_without_a_word_is_the_cause(pair: list[Peers]) -> None:
    pair[1].close(0.0)
    found = pair[0].wait_for_failure("train")
    assert (found.state, found.exit_code) == ("failed", 4)
    assert "node 1 (host-1)" in found.reason


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
        {},
    ],
)
def test_words_without_sense_are_none(message: dict[str, Any]) -> None:
    assert peers.parse_report(message) is None


def test_last_words_that_come_with_the_beginning_are_heard(node: Node, port: int) -> None:
    """Node 0 fails right after it has begun; both are read at once."""
    listener = wire.listen(port)
    go = {"go": {"port": 5, "run_id": "r", "record_id": "made-by-0", "host": "host-0"}}
    words = peers.NodeReport(0, "host-0", DATA).as_message()

    def answer() -> None:
        listener.setblocking(True)
        door = listener.accept()[0]
        door.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in (go, words)))
        door.close()

    found = together(answer, lambda: node(1))
    cause = found[1].wait_for_failure("launch")
    assert (cause.exit_code, cause.reason) == (3, "node 0 (host-0): the file x is missing")
    listener.close()


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_node_that_failed_first_ends_after_node_0(nodes: int, node: Node) -> None:
    """Node 0 has read its word and its end long before it ends itself."""
    found = all_of(node, nodes)
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


def test_anything_may_be_sent_of_ranks() -> None:
    assert supervisor.merge_by_rank([{"1": 3}, {"²": 4, "9" * 5000: 1, "x": 2}, 7, {"0": "y", 2: 5}]) == [
        (1, 3),
        (2, 5),
    ]
