"""What a node's parent sees of its ranks."""

import pytest

from flagbench_cases.node.local_ranks import REQUIRED, LocalRanks
from flagbench_cases.shared import processes
from flagbench_cases.shared.spool import RankSpool


def test_a_spool_removed_before_a_step_is_noticed(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir()
    ranks = LocalRanks(str(folder), range(4, 6), 2, 8)
    assert ranks.find_removed(ranks.progress()) is None, "no rank has started"
    folder.rmdir()
    assert ranks.find_removed(ranks.progress()) == 4


def test_facts_that_are_lost_are_noticed_at_the_end(tmp_path):
    """On node 0 those of every rank, which the other nodes have sent."""
    for rank in range(4):
        spool = RankSpool(str(tmp_path), rank)
        for kind in sorted(REQUIRED)[rank == 3 :]:
            spool.fact(kind)
    found = [LocalRanks(str(tmp_path), ranks, node, 4).find_incomplete() for node, ranks in enumerate([(0, 1), (2,)])]
    assert found == [3, None]


@pytest.mark.parametrize(("state", "named"), [("T", True), ("D", True), ("S", False), (None, False)])
def test_a_rank_that_cannot_run_is_named(tmp_path, monkeypatch, state, named):
    """A control group that is frozen shows its processes as blocked."""
    RankSpool(str(tmp_path), 0).fact("process", pid=4711)
    monkeypatch.setattr(processes, "state", {4711: state}.get)
    assert LocalRanks(str(tmp_path), [0], 0, 1).stopped() == ({0: 4711} if named else {})
