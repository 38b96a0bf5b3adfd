"""Which of several pieces of evidence names the cause."""

import pytest

from flagbench_cases.ending import why
from flagbench_cases.errors import ExitCode

pytestmark = pytest.mark.image

DIED = {
    "ok": False,
    "failures": [{"rank": 1, "exit_code": -9, "time": 5.0}, {"rank": 0, "exit_code": -15, "time": 4.0}],
}
BROKEN = {"rank": 0, "time": 6.0, "code": 4, "message": "the connection broke", "remedy": "r", "secondary": True}
DATA = {"rank": 1, "time": 7.0, "code": 3, "message": "no label", "remedy": "fetch it", "secondary": False}


def ending(report, failures=(), memory=False, code=1):
    return why(report, list(failures), memory_killed=memory, returncode=code, phase="train")


def test_an_agent_that_says_all_is_well():
    assert ending({"ok": True}, [BROKEN], code=0).state == "ok"


def test_what_the_agent_found_before_the_ranks_began():
    report = {"ok": False, "code": 13, "phase": "preflight", "message": "no device", "remedy": "add --gpus all"}
    assert ending(report)[1:] == ("preflight", "no device", "add --gpus all", 13)


def test_a_cause_beats_its_echo_though_it_was_written_later():
    found = ending(DIED, [BROKEN, DATA])
    assert (found.reason, found.exit_code) == ("rank 1: no label", ExitCode.DATA)


def test_a_signal_beats_the_peers_broken_connection_and_the_launchers_own_sigterm_is_none():
    found = ending(DIED, [BROKEN])
    assert (found.reason, found.exit_code) == ("rank 1 was ended by SIGKILL", ExitCode.RANK_FAILED)


def test_a_kill_for_memory_is_known_by_the_cgroup():
    found = ending(DIED, [BROKEN], memory=True)
    assert (found.reason, found.exit_code) == ("the kernel killed rank 1 for memory", ExitCode.OUT_OF_MEMORY)
    assert "a process of this run" in ending({}, memory=True).reason


def test_only_an_echo_is_left_where_another_node_failed():
    found = ending({"ok": False, "failures": []}, [BROKEN])
    assert (found.reason, found.remedy) == ("rank 0: the connection broke", "see the log of the other nodes")


def test_an_agent_that_died_itself():
    found = ending({}, code=-9)
    assert (found.phase, found.reason) == ("launch", "the launcher of the ranks ended with SIGKILL")


def test_an_agent_that_was_asked_to_stop_while_its_parent_was_not():
    found = ending({"ok": False, "failures": [], "signal": 15}, code=1)
    assert (found.phase, found.reason) == ("launch", "the launcher of the ranks ended with SIGTERM")
