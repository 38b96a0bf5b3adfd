"""Which of several pieces of evidence names the cause."""

import pytest

from flagbench_cases.node.outcome import EARLY_REMEDY, SIGNAL_REMEDY, RankEnd, outcome_of
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_core.exit_codes import ExitCode

pytestmark = pytest.mark.image

KILLED = RankEnd(1, 0, -9, 5.0, "train", 16)
SPARED = RankEnd(0, 0, -15, 4.0, "train", 16)  # by the launcher, once another had failed
LEFT = RankEnd(1, 0, 0, 5.0, "train", 16)
BROKEN = {"rank": 0, "time": 6.0, "code": 4, "message": "the connection broke", "remedy": "r", "secondary": True}
DATA = {
    "rank": 1,
    "time": 7.0,
    "code": 3,
    "message": "no label",
    "remedy": "fetch it",
    "secondary": False,
}
FAILED = {"ok": False, "failures": []}


def ending(report, failures=(), ends=(), layout=Layout(), memory=False, code=1, done=False):  # noqa: B008, immutable
    found = {"done": done, "memory_killed": memory, "returncode": code, "phase": "eval"}
    return outcome_of(report, list(failures), ends, layout, **found)


def test_an_agent_is_believed_where_all_ranks_agree():
    assert ending({"ok": True}, [BROKEN], code=0, done=True).state == "ok"
    found = ending({"ok": True}, code=0)
    assert (found.state, found.exit_code) == ("failed", ExitCode.RANK_FAILED)


def test_what_the_agent_found_before_the_ranks_began():
    report = {"ok": False, "code": 13, "phase": "preflight", "message": "no device", "remedy": "add --gpus all"}
    assert ending(report)[1:] == ("preflight", "no device", "add --gpus all", 13)


def test_a_primary_failure_beats_an_earlier_secondary_one():
    found = ending(FAILED, [BROKEN, DATA], [KILLED, SPARED])
    assert (found.reason, found.exit_code) == ("rank 1: no label", ExitCode.DATA)


def test_a_signal_beats_a_broken_connection():
    found = ending(FAILED, [BROKEN], [KILLED, SPARED])
    assert (found.phase, found.exit_code) == ("train", ExitCode.RANK_FAILED)
    assert found.reason.startswith("rank 1 was killed by SIGKILL on node 0, in phase train after 16 steps")
    assert found.remedy == SIGNAL_REMEDY


@pytest.mark.parametrize("report", [FAILED, {"ok": True}, {}])
def test_a_rank_that_left_early_is_the_cause(report):
    found = ending(report, [BROKEN], [LEFT, SPARED])
    assert (found.state, found.phase, found.exit_code) == ("failed", "train", ExitCode.RANK_FAILED)
    assert found.reason.startswith("rank 1 ended with exit 0 on node 0, in phase train after 16 steps")
    assert found.remedy == EARLY_REMEDY


@pytest.mark.parametrize(
    ("failures", "ends", "memory"),
    [
        ([BROKEN], [KILLED, SPARED], False),
        ([BROKEN], [LEFT], False),
        ([BROKEN, DATA], [], False),
        ([], [KILLED], True),
    ],
)
def test_a_rank_of_a_split_model_has_coordinates(failures, ends, memory):
    assert "rank 1 (tp 1, pp 0, dp 0)" in ending(FAILED, failures, ends, Layout(1, 2, 2), memory).reason
    assert "rank 1 (tp 0, pp 1, dp 0)" in ending(FAILED, failures, ends, Layout(1, 1, 2), memory).reason


def test_a_kill_for_memory_is_known_by_the_cgroup():
    found = ending(FAILED, [BROKEN], [KILLED], memory=True)
    assert (found.reason, found.exit_code) == (
        "the kernel's OOM killer killed rank 1",
        ExitCode.OUT_OF_MEMORY,
    )
    assert "a process of this run" in ending({}, memory=True).reason


def test_a_secondary_failure_points_to_other_nodes():
    found = ending({"ok": False, "failures": []}, [BROKEN])
    assert (found.reason, found.remedy) == ("rank 0: the connection broke", "see the log of the other nodes")


def test_an_agent_killed_after_all_ranks_finished_is_ok():
    assert ending({}, code=-9, done=True).state == "ok"
    assert ending({}, [BROKEN], code=-9, done=True).state == "failed"
    assert ending(FAILED, code=1, done=True).state == "failed"


def test_an_agent_that_died_itself():
    found = ending({}, code=-9)
    assert (found.phase, found.reason) == ("launch", "the launcher of the ranks ended with SIGKILL")
