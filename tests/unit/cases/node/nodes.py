"""Several nodes in one process: what the tests of nodes that meet share."""

from __future__ import annotations

import threading
from typing import Any, Callable

from flagbench_cases.node.peers import Peers
from flagbench_cases.node.placement import Placement
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode

SAME = {"version": "1", "nodes": 2, "seed": 0}
DATA = Outcome("failed", "data", "the file x is missing", "fetch it", int(ExitCode.DATA))
KILLED = Outcome("failed", "train", "rank 1 was killed by SIGKILL", "see who sent it", int(ExitCode.RANK_FAILED))
Node = Callable[..., Peers]


def placement(rank: int, port: int, nodes: int = 2, host: str = "127.0.0.1") -> Placement:
    return Placement(nodes, rank, host, port, "test")


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
