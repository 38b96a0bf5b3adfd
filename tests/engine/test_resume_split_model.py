"""A model that is split over ranks: a killed run resumes from its checkpoint."""

import os
import signal
import sys

import pytest

from running import ROOT, CaseRun, need_megatron, wait_until

pytestmark = [pytest.mark.image, pytest.mark.old_torch]

CASE = "llama2-70b"
FLAGBENCH = [sys.executable, "-m", "flagbench", "run", CASE + ":cpu", "--via", "native", "--json"]
PATHS = os.pathsep.join(os.path.join(ROOT, name) for name in ("builder", "entrypoints"))
SPLIT = ["--preset", "tiny", "--gpus", "2", "--set", "tp=2", "--precision", "fp32", "--run-id", "first"]
EVERY = 3


def flagbench(folder, *arguments):
    """`flagbench run` natively, with a store of its own."""
    environment = {"PYTHONPATH": PATHS, "FLAGBENCH_STORE": "file://%s" % (folder / "store")}
    return CaseRun(str(folder), [*SPLIT, *arguments], isolated=False, command=FLAGBENCH, env=environment)


def losses(record, first=0):
    """The losses of a run's steps by their number in training."""
    return {first + step: loss for step, loss in record["quality"]["loss_curve"]}


def test_a_killed_run_resumes_with_the_same_losses(tmp_path):
    """One of its ranks is killed after the first checkpoint; the steps since then are repeated."""
    need_megatron()
    first, rest = tmp_path / "first", tmp_path / "rest"
    first.mkdir()
    rest.mkdir()
    run = flagbench(first, "--out", str(first / "out"), "--set", "checkpoint_every_steps=%d" % EVERY)
    place = first / "out" / "checkpoints" / "first"
    wait_until(lambda: (place / "step-00000006").exists() or run.process.poll() is not None, 120)
    os.kill(run.pids()[1], signal.SIGKILL)
    killed = run.wait(60)
    assert killed.code == 4, killed.stderr
    assert "rank 1 (tp 1, pp 0, dp 0) was killed by SIGKILL" in killed.status["reason"]
    one = sorted(name for name in os.listdir(place) if name.startswith("step-"))[0]
    done, whole = int(one.split("-")[1]), losses(killed.record)
    repeated = sorted(step for step in whole if step >= done)
    assert len(repeated) >= EVERY
    ended = flagbench(rest, "--resume", str(place / one), "--steps", str(len(repeated))).wait()
    assert ended.code == 0, ended.stderr
    assert ended.record["quality"]["resumed"] == {"step": done, "checkpoint": one}
    after = losses(ended.record, done)
    assert [after[step] for step in repeated] == [whole[step] for step in repeated]
