"""Which of several pieces of evidence names the cause."""

import pytest

from flagbench_cases.node.outcome import EARLY_REMEDY, SIGNAL_REMEDY, RankEnd, may_be_secondary, outcome_of
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_core.exit_codes import ExitCode

pytestmark = pytest.mark.image

KILLED = RankEnd(1, 0, -9, "train", 16)
ABORTED = RankEnd(0, 0, -6, "train", 16)
FAILED = RankEnd(0, 0, 1, "train", 16)
LEFT = RankEnd(1, 0, 0, "train", 16)
BROKEN = {"rank": 0, "time": 6.0, "code": 4, "message": "the connection broke", "remedy": "r", "secondary": True}
DATA = {
    "rank": 1,
    "time": 7.0,
    "code": 3,
    "message": "no label",
    "remedy": "fetch it",
    "secondary": False,
}


def ending(failures=(), ends=(), layout=Layout(), memory=False, done=False):  # noqa: B008, immutable
    return outcome_of(list(failures), ends, layout, done=done, memory_killed=memory, phase="eval")


def test_a_run_is_ok_if_every_rank_finished_and_ended_well():
    assert ending(done=True).state == "ok"
    found = ending()
    assert (found.state, found.exit_code) == ("failed", ExitCode.RANK_FAILED)
    found = ending(done=True, ends=[RankEnd(1, 0, 9, "done", 16)])
    assert (found.state, found.reason) == (
        "failed",
        "rank 1 ended with exit 9 on node 0, in phase done after 16 steps",
    )


def test_a_failed_check_of_the_node_has_its_own_phase():
    failure = dict(DATA, code=13, phase="preflight", message="no device", remedy="add --gpus all")
    assert ending([failure], [FAILED])[1:] == ("preflight", "no device", "add --gpus all", 13)


def test_a_primary_failure_beats_an_earlier_secondary_one():
    found = ending([BROKEN, DATA], [KILLED, FAILED])
    assert (found.reason, found.exit_code) == ("rank 1: no label", ExitCode.DATA)


def test_a_signal_beats_a_broken_connection():
    found = ending([BROKEN], [KILLED, FAILED])
    assert (found.phase, found.exit_code) == ("train", ExitCode.RANK_FAILED)
    assert found.reason.startswith("rank 1 was killed by SIGKILL on node 0, in phase train after 16 steps")
    assert found.remedy == SIGNAL_REMEDY


@pytest.mark.parametrize("peer", [FAILED, ABORTED])
def test_a_rank_that_left_early_is_the_cause(peer):
    """Its peer reports that the connection broke, or is aborted by NCCL for that."""
    found = ending([BROKEN] if peer is FAILED else [], [peer, LEFT])
    assert (found.state, found.phase, found.exit_code) == ("failed", "train", ExitCode.RANK_FAILED)
    assert found.reason.startswith("rank 1 ended with exit 0 on node 0, in phase train after 16 steps")
    assert found.remedy == EARLY_REMEDY


@pytest.mark.parametrize(
    ("failures", "ends", "memory"),
    [
        ([BROKEN], [KILLED, FAILED], False),
        ([BROKEN], [LEFT], False),
        ([BROKEN, DATA], [], False),
        ([], [KILLED], True),
    ],
)
def test_a_rank_of_a_split_model_has_coordinates(failures, ends, memory):
    assert "rank 1 (tp 1, pp 0, dp 0)" in ending(failures, ends, Layout(1, 2, 2), memory).reason
    assert "rank 1 (tp 0, pp 1, dp 0)" in ending(failures, ends, Layout(1, 1, 2), memory).reason


def test_a_kill_for_memory_is_known_by_the_cgroup():
    found = ending([BROKEN], [KILLED], memory=True)
    assert (found.reason, found.exit_code) == (
        "the kernel's OOM killer killed rank 1",
        ExitCode.OUT_OF_MEMORY,
    )
    assert "a process of this run" in ending(memory=True).reason


def test_a_secondary_failure_points_to_other_nodes():
    found = ending([BROKEN], [FAILED])
    assert (found.reason, found.remedy) == ("rank 0: the connection broke", "see the log of the other nodes")


@pytest.mark.parametrize(
    ("failures", "ends", "secondary"),
    [
        ([BROKEN], [FAILED], True),
        ([], [ABORTED], True),
        ([], [LEFT, ABORTED], False),
        ([], [KILLED], False),
        ([DATA], [LEFT], False),
    ],
)
def test_another_node_may_be_the_cause(failures, ends, secondary):
    assert may_be_secondary(failures, ends) is secondary
