"""A model that is split over ranks: a killed run resumes from its checkpoint, unless that is damaged."""

import os
import shutil
import signal
import sys

import jsonschema
import pytest

from running import CaseRun, need_megatron, run_case, wait_until

pytestmark = pytest.mark.image

COMMAND = [sys.executable, "-m", "flagbench_cases", "llama2-70b"]
FLAGBENCH = [sys.executable, "-m", "flagbench", "run", "llama2-70b:cpu", "--via", "native", "--json"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
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
    assert (ended.code, ended.status["state"]) == (4, "failed"), ended.stderr
    assert "rank 1 (tp 1, pp 0, dp 0) was killed by SIGKILL" in ended.status["reason"]
    return place, ended.record


def test_a_killed_run_resumes_with_the_same_losses(killed, tmp_path, record_schema):
    place, before = killed
    one = sorted(name for name in os.listdir(place) if name.startswith("step-"))[0]
    done, whole = int(one.split("-")[1]), losses(before)
    repeated = sorted(step for step in whole if step >= done)
    assert len(repeated) >= EVERY
    ended = flagbench(tmp_path, "--resume", str(place / one), "--steps", str(len(repeated))).wait()
    jsonschema.Draft202012Validator(record_schema).validate(ended.record)
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
    ended = run_case(tmp_path, *SPLIT, "--resume", str(one), command=COMMAND)
    assert (ended.code, ended.status["phase"]) == (3, "data"), ended.stderr
    assert "rank 1 (tp 1, pp 0, dp 0)" in ended.status["reason"]
    assert "tensors-00001.safetensors is damaged" in ended.status["reason"]
    assert ended.record["work"] is None, "no step was run"


def lose(one):
    (one / "tensors-00001.safetensors").unlink()


@pytest.mark.parametrize(
    "damage, arguments, code, word",
    [
        (lambda one: None, ["--set", "tp=1"], 2, "layout.tp is 2, not 1"),
        (lambda one: None, ["--seed", "1"], 2, "seed is 1234, not 1"),
        (lose, [], 3, "tensors-00001.safetensors"),
        (lambda one: os.truncate(one / "tensors-00001.safetensors", 999), [], 3, "tensors-00001.safetensors"),
    ],
    ids=["layout", "seed", "missing", "cut"],
)
def test_what_does_not_fit_is_refused_before_a_rank_is_started(killed, tmp_path, damage, arguments, code, word):
    place, _ = killed
    one = shutil.copytree(sorted(place.glob("step-*"))[-1], tmp_path / "one")
    damage(one)
    ended = run_case(tmp_path, *SPLIT, "--resume", str(one), *arguments, command=COMMAND)
    assert (ended.code, ended.status["exit_code"]) == (code, code)
    assert word in ended.status["reason"]
    assert ended.status["remedy"]
    assert ended.record["ranks"] == []
