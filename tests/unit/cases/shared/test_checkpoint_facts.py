"""A checkpoint is found, and refused where it is damaged or of other training, before any rank is started."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.errors import DataError, UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

CONFIG: dict[str, Any] = {
    "case": "toy",
    "precision": "fp32",
    "seed": 3,
    "preset": "reference",
    "engine": {"name": "torch"},
    "train": {"learning_rate": 0.1, "window_steps": None, "warmup_steps": 1, "checkpoint_every_steps": 3},
    "nodes": 1,
    "gpus": 1,
}
CONTENTS = {"train_sha256": "a", "weights": "b"}


def write(folder: Path, step: int) -> Path:
    """The facts of a checkpoint in `folder`, the later its step the later written."""
    place = folder / f"step-{step:08d}"
    place.mkdir(parents=True)
    path = place / "checkpoint.json"
    content = {
        "schema": "checkpoint/v1",
        "step": step,
        "run_id": "r",
        "identity": checkpoint_facts.identity(CONFIG, CONTENTS),
        "files": {name: {"bytes": 1, "sha256": "0"} for name in ("tensors.safetensors", "generators.safetensors")},
        "facts": {"scaler": {"scale": 2.0**16}, "epoch_losses": {"0": [math.nan, 3.0]}},
    }
    path.write_bytes(checkpoint_facts.to_bytes(content))
    for name in content["files"]:
        (place / name).write_bytes(b"0")
    os.utime(path, ns=(step, step))
    return path


def test_a_folder_of_checkpoints_means_the_newest(tmp_path: Path) -> None:
    one, two = (str(write(tmp_path, step).parent) for step in (9, 12))
    assert checkpoint_facts.find(str(tmp_path), CONFIG) == two
    assert checkpoint_facts.find(one, CONFIG) == one
    assert checkpoint_facts.read(one)["step"] == 9


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with refuses(DataError, folder):
            checkpoint_facts.find(str(folder), CONFIG)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 4}, "seed"),
        ({"precision": "bf16"}, "precision"),
        ({"gpus": 2}, "devices"),
        ({"engine": {"name": "other"}}, "engine.name"),
    ],
)
def test_other_training_is_refused_with_what_differs(tmp_path: Path, change: dict[str, Any], name: str) -> None:
    write(tmp_path, 9)
    with refuses(UsageError, name):
        checkpoint_facts.find(str(tmp_path), {**CONFIG, **change})


def test_what_does_not_change_training_may_differ(tmp_path: Path) -> None:
    place = write(tmp_path, 9).parent
    train = {**CONFIG["train"], "window_steps": 5, "checkpoint_every_steps": None}
    assert checkpoint_facts.find(str(tmp_path), {**CONFIG, "train": train, "preset": "tiny"}) == str(place)


@pytest.mark.parametrize("content", ["", "{}", "\ud800", "[" * 5000])
def test_facts_that_make_no_sense_are_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, 9).write_bytes(content.encode("utf-8", "surrogatepass"))
    with refuses(DataError, "checkpoint.json"):
        checkpoint_facts.find(str(tmp_path), CONFIG)


@pytest.mark.parametrize("change", [{"step": 10}, {"facts": {"scaler": {"scale": -1.0}}}, {"sha256": None}])
def test_facts_that_were_changed_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write(tmp_path, 9)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with refuses(DataError, path, "checksum"):
        checkpoint_facts.find(str(tmp_path), CONFIG)


@pytest.mark.parametrize("step", [-7, True, 2.0, 2**62])
def test_a_step_that_no_run_reaches_is_refused(tmp_path: Path, step: Any) -> None:
    path = write(tmp_path, 9)
    content = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"}
    path.write_bytes(checkpoint_facts.to_bytes({**content, "step": step}))
    with refuses(DataError, path):
        checkpoint_facts.find(str(tmp_path), CONFIG)


@pytest.mark.parametrize("name", ["tensors.safetensors", "generators.safetensors"])
@pytest.mark.parametrize("content", [None, b"00"])
def test_missing_files_are_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = write(tmp_path, 9).parent / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with refuses(DataError, path):
        checkpoint_facts.find(str(tmp_path), CONFIG)
