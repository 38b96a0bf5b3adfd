"""Fixtures of nodes that meet over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flagbench_cases.node import peers, rendezvous, rendezvous_client, rendezvous_protocol, rendezvous_server
from flagbench_cases.node.peers import Peers
from flagbench_cases.node.rendezvous_protocol import NodeInfo
from flagbench_cases.shared.interruption import Interruption
from running import free_port
from unit.cases.node.nodes import SAME, Node, placement, together


@pytest.fixture
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


@pytest.fixture
def pair(node: Node) -> list[Peers]:
    return together(lambda: node(0, run_id="mine"), lambda: node(1))
