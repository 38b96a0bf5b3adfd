"""A model that is split over ranks: a killed run resumes from its checkpoint, unless that is damaged."""

import os
import shutil
import signal
import sys

import pytest

from running import ROOT, CaseRun, need_megatron, run_case, wait_until

pytestmark = pytest.mark.image

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


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of checkpoints of a run, one of whose ranks was killed, and the run's record."""
    need_megatron()
    folder = tmp_path_factory.mktemp("killed")
    out = folder / "out"
    run = flagbench(folder, "--out", str(out), "--set", "checkpoint_every_steps=%d" % EVERY)
    place = out / "checkpoints" / "first"
    # Steps behind the first checkpoint: they are repeated by the run that resumes from it.
    wait_until(lambda: (place / "step-00000006").exists() or run.process.poll() is not None, 120)
    os.kill(run.pids()[1], signal.SIGKILL)
    ended = run.wait(60)
    assert ended.code == 4, ended.stderr
    assert "rank 1 (tp 1, pp 0, dp 0) was killed by SIGKILL" in ended.status["reason"]
    return place, ended.record


def test_a_killed_run_resumes_with_the_same_losses(killed, tmp_path):
    place, before = killed
    one = sorted(name for name in os.listdir(place) if name.startswith("step-"))[0]
    done, whole = int(one.split("-")[1]), losses(before)
    repeated = sorted(step for step in whole if step >= done)
    assert len(repeated) >= EVERY
    ended = flagbench(tmp_path, "--resume", str(place / one), "--steps", str(len(repeated))).wait()
    assert ended.code == 0, ended.stderr
    assert ended.record["quality"]["resumed"] == {"step": done, "checkpoint": one}
    after = losses(ended.record, done)
    assert [after[step] for step in repeated] == [whole[step] for step in repeated]


def test_a_flipped_byte_ends_the_run_before_its_first_step(killed, tmp_path):
    """The rank that finds it is named."""
    place, _ = killed
    one = shutil.copytree(sorted(place.glob("step-*"))[-1], tmp_path / "one")
    with open(one / "tensors-00001.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    ended = run_case(tmp_path, *SPLIT, "--resume", str(one), case=CASE)
    record = ended.failed(3, "data", "rank 1 (tp 1, pp 0, dp 0)", "tensors-00001.safetensors is damaged")
    assert record["work"] is None, "no step was run"


@pytest.mark.parametrize(
    "arguments, code, word",
    [
        (["--set", "tp=1"], 2, "layout.tp is 2, not 1"),
        (["--seed", "1"], 2, "seed is 1234, not 1"),
        ([], 3, "tensors-00001.safetensors"),
    ],
    ids=["layout", "seed", "a file is missing"],
)
def test_what_does_not_fit_is_refused_at_once(killed, tmp_path, arguments, code, word):
    place, _ = killed
    one = shutil.copytree(sorted(place.glob("step-*"))[-1], tmp_path / "one")
    if code == 3:
        (one / word).unlink()
    ended = run_case(tmp_path, *SPLIT, "--resume", str(one), *arguments, case=CASE)
    assert ended.failed(code, None, word)["ranks"] == []
