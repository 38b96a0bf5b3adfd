"""What a node's parent sees of its ranks."""

from flagbench_cases.node.local_ranks import LocalRanks


def test_a_spool_removed_before_a_step_is_noticed(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir()
    ranks = LocalRanks(str(folder), range(4, 6), 2, 8)
    assert ranks.find_removed(ranks.progress()) is None, "no rank has started"
    folder.rmdir()
    assert ranks.find_removed(ranks.progress()) == 4
