"""A killed run resumes from its checkpoint, and ends as if nothing had happened."""

import os
import signal

import pytest

from running import CaseRun, alive, wait_until

pytestmark = [pytest.mark.image, pytest.mark.old_torch]

# Dropout is on: the losses depend on the random generators too.
TRAINING = ["--preset", "tiny", "--gpus", "2", "--set", "max_epochs=1", "--set", "mmlu_train_mode=false"]


def start(folder, *more):
    folder.mkdir()
    return CaseRun(str(folder), [*TRAINING, *more], isolated=False, case="llama2-7b-lora")


def checkpoints(out, run_id):
    place = out / "checkpoints" / run_id
    return sorted(name for name in os.listdir(place) if name.startswith("step-")) if place.exists() else []


def curve(record):
    return [loss for _, loss in record["quality"]["loss_curve"]]


def test_a_killed_run_resumes_from_its_checkpoint(tmp_path):
    whole = start(tmp_path / "whole").wait().record
    assert whole["status"]["state"] == "ok"
    steps = whole["work"]["steps"]
    every = max(2, steps // 4)

    out = tmp_path / "out"
    options = ["--out", str(out), "--run-id", "first", "--set", "checkpoint_every_steps=%d" % every]
    killed = start(tmp_path / "killed", *options)
    wait_until(lambda: checkpoints(out, "first") or killed.process.poll() is not None, 120)
    ranks = killed.pids()
    assert killed.process.poll() is None, "it ended before it could be killed"
    killed.process.send_signal(signal.SIGKILL)
    killed.wait()
    wait_until(lambda: not any(alive(pid) for pid in ranks), 10)
    (left, *_) = checkpoints(out, "first")[-1:]

    # Under the same name: its checkpoints go where those of the killed run are.
    rest = start(tmp_path / "rest", *options, "--resume", str(out / "checkpoints" / "first")).wait()
    record = rest.record
    assert rest.code == 0, rest.stderr
    done = int(left.split("-")[1])
    assert record["quality"]["resumed"] == {"step": done, "checkpoint": left}
    assert record["work"]["steps"] == steps - done
    assert curve(record) == curve(whole)[done:]
    last = [[e["extra"] for e in each["quality"]["evaluations"]][-1] for each in (whole, record)]
    assert last[0] == last[1]
    # What it has not trained itself is not in its times.
    names = {metric["name"] for metric in record["metrics"]}
    assert "p_core" in names
    assert not names & {"e2e_time", "p_whole"}


def test_checkpoints_need_a_place(tmp_path):
    start(tmp_path / "run", "--set", "checkpoint_every_steps=2").wait().failed(2, "usage", "--out")
