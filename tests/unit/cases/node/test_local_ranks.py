"""The processes of a node's ranks: how they begin and end, and what their parent sees of them meanwhile."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flagbench_cases.node.local_ranks import REQUIRED, LocalRanks
from flagbench_cases.shared import processes
from flagbench_cases.shared.spool import RankSpool
from running import wait_until

pytestmark = pytest.mark.image

ENTRYPOINTS = Path(__file__).parents[4] / "entrypoints"
DONE = "from flagbench_cases.shared.spool import RankSpool\nRankSpool(%r, 3).phase('done')\n"


@pytest.fixture
def started(tmp_path):
    """`started(code)`: rank 3 of four, on node 1 of two, whose interpreter runs `code` before its own module."""

    def start(code):
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text("import os, signal, sys\n" + code)
        path = os.pathsep.join([str(tmp_path / "site"), str(ENTRYPOINTS)])
        ranks.start(dict(os.environ, PYTHONPATH=path))
        return ranks

    ranks = LocalRanks(str(tmp_path), [3], 3, 4)
    yield start
    ranks.close()


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("os._exit(0)", ("launch", 0)),
        ("os._exit(5)", ("launch", 5)),
        ("os.execv('/bin/true', ['true'])", ("launch", 0)),
        ("os.kill(os.getpid(), signal.SIGKILL)", ("launch", -signal.SIGKILL)),
        ("os.kill(os.getpid(), signal.SIGTERM)", ("launch", -signal.SIGTERM)),
        ("os.abort()", ("launch", -signal.SIGABRT)),
        (DONE + "os._exit(9)", ("done", 9)),
        (DONE + "os._exit(0)", None),
    ],
)
def test_exit_0_is_believed_of_a_rank_that_is_done_only(tmp_path, started, code, end):
    ranks = started(code.replace("%r", repr(str(tmp_path))))
    wait_until(lambda: not ranks.running(), 30)
    assert [(found.rank, found.node, found.phase, found.code) for found in ranks.find_ends()] == (
        [(3, 3, *end)] if end else []
    )


def test_a_rank_has_the_variables_of_torch_launcher(tmp_path, started):
    ranks = started("open(%r, 'w').write(repr(dict(os.environ)))\nos._exit(0)" % str(tmp_path / "environment"))
    wait_until(lambda: not ranks.running(), 30)
    found = eval((tmp_path / "environment").read_text())
    expected = {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(("released", "code"), [(b"\n", 0), (b"", 1)])
def test_a_rank_waits_for_its_parent_and_ends_with_it(released, code):
    wait = "from flagbench_cases.rank import worker; worker.wait_for_release(); assert not sys.stdin.read()"
    command = [sys.executable, "-c", "import sys; " + wait]
    env = dict(os.environ, PYTHONPATH=str(ENTRYPOINTS))
    assert subprocess.run(command, input=released, env=env, check=False).returncode == code


def test_the_others_are_released_once_the_first_rank_has_checked_the_node(tmp_path):
    ranks = LocalRanks(str(tmp_path), range(2), 0, 2)
    wait = "import os, sys\nif 'RANK' in os.environ:\n    os._exit(len(os.read(0, 1)))"
    (tmp_path / "sitecustomize.py").write_text(wait)
    ranks.start(dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ENTRYPOINTS)])))
    assert not ranks.release(ranks.progress())
    wait_until(lambda: len(ranks.find_ends()) == 1, 30)
    spool = RankSpool(str(tmp_path), 0)
    assert not ranks.release(ranks.progress())
    spool.beat()
    assert ranks.release(ranks.progress())
    wait_until(lambda: not ranks.running(), 30)
    ranks.close()
    assert [end.code for end in ranks.find_ends()] == [1, 1]


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


def test_a_rank_that_stops_before_its_first_fact_is_named(started):
    ranks = started("os.kill(os.getpid(), signal.SIGSTOP)")
    wait_until(ranks.stopped, 30)
    ((rank, pid),) = ranks.stopped().items()
    assert rank == 3
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not ranks.running(), 30)
    assert ranks.stopped() == {}
