"""Checkpoints to which several ranks write: complete or absent, and refused by all ranks if one cannot restore it."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flagbench_cases.contract import TrainWorkload
from flagbench_cases.rank import checkpoint
from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.checkpoint_facts import FACTS_FILE, GENERATORS, tensors_of
from flagbench_cases.shared.errors import CaseError, DataError
from unit.cases.rank.toy_loop import job_of
from workloads import on_ranks

pytestmark = pytest.mark.image

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "case": "toy",
    "seed": 3,
    "train": {"checkpoint_every_steps": 3, "window_steps": None},
    "nodes": 1,
    "gpus": 2,
}
STEP, LATER = "step-00000003", "step-00000006"
SECOND = tensors_of(1)


class Halves(TrainWorkload):
    """Each rank has half of the model; only what checkpoints need is implemented."""

    def __init__(self, rank: int, value: float = 0.0, size: int = 4) -> None:
        self.rank = rank
        self.part = torch.full((size,), value + rank)

    def describe(self) -> dict[str, Any]:
        return {"data": {}}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {"half.%d" % self.rank: self.part}, {"steps": 3}

    def state_owner(self, rank: int) -> int:
        return rank

    def check_state(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        found = {name: tensor.shape for name, tensor in tensors.items()}
        if found != {"half.%d" % self.rank: self.part.shape}:
            raise DataError("wrong tensors", "use others")

    def restore(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        self.part.copy_(tensors["half.%d" % self.rank])

    setup = steps_per_epoch = batches = to_device = step = work = evaluate = None  # type: ignore[assignment]


def prepared(folder: Path, rank: int, work: Halves, resume: str | None = None, **changes: Any) -> Any:
    """The checkpoint that was restored, and the function that writes others, to folder/out."""
    plan = {"config": CONFIG, "resume": resume, "checkpoints": str(folder / "out"), "run_id": "r", **changes}
    return checkpoint.prepare(plan, job_of(rank, 2), CPU, work)


def written(folder: Path, rank: int, value: float, **size: int) -> None:
    """A checkpoint after step 3 in folder/out."""
    _, save = prepared(folder, rank, Halves(rank, value, **size))
    save(3)


def caught(call: Callable[[], Any]) -> tuple[str, int, str] | None:
    """Type, exit code and message of the CaseError in which a call ends."""
    try:
        call()
    except CaseError as error:
        return type(error).__name__, int(error.code), error.message if error.remedy else "no remedy"
    return None


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def swap(one: Path) -> None:
    other = one / SECOND
    first = (one / tensors_of(0)).read_bytes()
    (one / tensors_of(0)).write_bytes(other.read_bytes())
    other.write_bytes(first)


def forge(one: Path, **changes: Any) -> None:
    """Change `checkpoint.json`, and its checksum with it."""
    content = {**json.loads((one / FACTS_FILE).read_text()), **changes}
    (one / FACTS_FILE).write_bytes(checkpoint_facts.to_bytes(content))


def relist(one: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the list of files in `checkpoint.json`."""
    files = json.loads((one / FACTS_FILE).read_text())["files"]
    change(files)
    forge(one, files=files)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str | None, list[tuple[str, int]]]] = {
    "none": (lambda one: None, None, []),
    "cut": (lambda one: os.truncate(one / SECOND, 90), SECOND, [("PeerError", 4), ("DataError", 3)]),
    "flipped": (lambda one: flip(one / SECOND), SECOND, [("PeerError", 4), ("DataError", 3)]),
    "first flipped": (lambda one: flip(one / tensors_of(0)), tensors_of(0), [("DataError", 3), ("PeerError", 4)]),
    "missing": (lambda one: (one / SECOND).unlink(), SECOND, [("PeerError", 4), ("DataError", 3)]),
    "swapped": (swap, "tensors", [("DataError", 3), ("DataError", 3)]),
    "of another run": (
        lambda one: shutil.copy(one.parents[2] / "theirs/out" / STEP / SECOND, one / SECOND),
        SECOND,
        [("PeerError", 4), ("DataError", 3)],
    ),
    "generators": (lambda one: flip(one / GENERATORS), GENERATORS, [("DataError", 3), ("DataError", 3)]),
    "facts": (lambda one: flip(one / FACTS_FILE, 40), FACTS_FILE, [("DataError", 3), ("DataError", 3)]),
    "no facts": (lambda one: (one / FACTS_FILE).unlink(), FACTS_FILE, [("DataError", 3), ("DataError", 3)]),
    "other schema": (lambda one: forge(one, schema="checkpoint/v3"), FACTS_FILE, [("DataError", 3)] * 2),
    "not listed": (
        lambda one: relist(one, lambda files: files.pop(SECOND)),
        SECOND,
        [("PeerError", 4), ("DataError", 3)],
    ),
    "outside": (
        lambda one: relist(one, lambda files: files.update({"../x": files[SECOND]})),
        FACTS_FILE,
        [("DataError", 3), ("DataError", 3)],
    ),
    "other shape": (
        lambda one: shutil.copytree(one.parents[2] / "larger/out" / STEP, one, dirs_exist_ok=True),
        "wrong tensors",
        [("DataError", 3), ("DataError", 3)],
    ),
}
"""What is done to the checkpoint, what the message names, and how each rank ends."""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """For each rank, by DAMAGES: how resuming ended, and the rank's half then."""

    def body(folder: Path, rank: int, world: int) -> dict[str, Any]:
        for name, value, size in (("ours", 10.0, 4), ("theirs", 20.0, 4), ("larger", 10.0, 8)):
            written(folder / name, rank, value, size=size)
        found = {}
        one = folder / "ours/out" / STEP
        for name, (damage, _, _) in DAMAGES.items():
            if rank == 0:
                shutil.copytree(one, folder / "kept")
                damage(one)
            dist.barrier()
            work = Halves(rank)
            found[name] = caught(functools.partial(prepared, folder / "ours", rank, work, str(one))), work.part
            dist.barrier()
            if rank == 0:
                shutil.rmtree(one)
                os.rename(folder / "kept", one)
        return found

    return on_ranks(2, tmp_path_factory.mktemp("damaged") / "ranks", body)


@pytest.mark.parametrize("name", DAMAGES)
def test_what_one_rank_cannot_restore_none_does(damaged: list[dict[str, Any]], name: str) -> None:
    """The rank that finds the damage says so; the others end because of it, and have restored nothing."""
    _, named, ends = DAMAGES[name]
    for rank, found in enumerate(damaged):
        error, half = found[name]
        if not ends:
            assert error is None
            assert half.tolist() == [10.0 + rank] * 4
            continue
        assert half.tolist() == [float(rank)] * 4
        assert error[:2] == ends[rank]
        if error[0] != "PeerError":
            assert named in error[2]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """For each rank: what else ends before anything is trained."""

    def body(folder: Path, rank: int, world: int) -> dict[str, Any]:
        for name in ("ours", "theirs"):
            written(folder / name, rank, 10.0)
        ours, theirs = (str(folder / name / "out" / STEP) for name in ("ours", "theirs"))
        found = {}
        other = {**CONFIG, "seed": 4}
        ask = functools.partial(prepared, folder / "ours", rank, Halves(rank))
        found["training"] = caught(lambda: ask(ours, config=other))
        forged = folder / "theirs/out" / STEP
        if rank == 0:
            forge(forged, run_id="q")
        dist.barrier()
        found["not the same"] = caught(lambda: ask(theirs if rank else ours))
        elsewhere = str(folder / ("out-%d" % rank))
        found["not shared"] = caught(lambda: ask(checkpoints=elsewhere))
        found["left"] = os.listdir(folder / "out-0")
        return found

    return on_ranks(2, tmp_path_factory.mktemp("refused") / "ranks", body)


def test_other_training_is_refused_by_all(damaged: Any, refused: list[dict[str, Any]]) -> None:
    for found in refused:
        kind, code, message = found["training"]
        assert (kind, code) == ("UsageError", 2)
        assert "seed is 3, not 4" in message


def test_ranks_that_find_different_checkpoints_are_refused(refused: list[dict[str, Any]]) -> None:
    assert [found["not the same"][:2] for found in refused] == [("UsageError", 2)] * 2


def test_folders_that_are_not_shared(refused: list[dict[str, Any]]) -> None:
    """As on two nodes whose --out is their own."""
    assert [found["not shared"][:2] for found in refused] == [("PeerError", 4), ("UsageError", 2)]
    assert "out-1" in refused[1]["not shared"][2]
    assert [found["left"] for found in refused] == [[], []]


# Writing


def whole(one: Path) -> dict[str, Any]:
    """The content of a checkpoint's `checkpoint.json`, whose files are all there."""
    content = checkpoint_facts.read(str(one))
    assert sorted(os.listdir(one)) == sorted([FACTS_FILE, *content["files"]])
    for name, listed in content["files"].items():
        assert (one / name).stat().st_size == listed["bytes"]
    return content


def test_what_is_written(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> None:
        _, save = prepared(folder, rank, Halves(rank, 10.0))
        for step in (3, 6, 9):
            save(step)

    on_ranks(2, tmp_path, body)
    assert sorted(os.listdir(tmp_path / "out")) == [LATER, "step-00000009"]
    content = whole(tmp_path / "out" / LATER)
    assert (content["schema"], content["step"]) == ("checkpoint/v2", 6)
    assert content["layout"] == {"dp": 2, "tp": 1, "pp": 1}
    assert sorted(content["files"]) == [GENERATORS, tensors_of(0), SECOND]
    flat = checkpoint_facts.identity(CONFIG, {})
    assert content["identity"] == flat


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, small_disk: Path) -> None:
    """Rank 1 has no room; both end, and nothing else is left. Rank 0 may find the disk full too."""

    def body(folder: Path, rank: int, world: int) -> Any:
        work = Halves(rank, 10.0)
        _, save = prepared(small_disk, rank, work)
        save(3)
        if rank == 1:
            work.part = torch.ones(2**17)
        error = caught(lambda: save(6))
        return error, os.listdir(small_disk / "out")

    (first, left), (second, _) = on_ranks(2, tmp_path / "ranks", body)
    assert first[:2] in (("PeerError", 4), ("CaseError", 14))
    assert second[:2] == ("CaseError", 14)
    assert "step 6" in second[2]
    assert os.strerror(errno.ENOSPC) in second[2]
    assert left == [STEP]
    assert whole(small_disk / "out" / STEP)["step"] == 3


def test_a_rank_killed_while_it_writes(tmp_path: Path) -> None:
    """The other rank does not wait for it."""

    def body(folder: Path, rank: int, world: int) -> None:
        work = Halves(rank, 10.0)
        written(folder, rank, 10.0)

        def beat() -> None:  # before the tensor, when the file has its header
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        plan = {"config": CONFIG, "resume": None, "checkpoints": str(folder / "out"), "run_id": "r"}
        _, save = checkpoint.prepare(plan, job_of(rank, 2), CPU, work, beat)
        assert save is not None
        save(6)

    with pytest.raises(AssertionError):
        on_ranks(2, tmp_path, body)
    out = tmp_path / "out"
    assert [name for name in os.listdir(out) if not name.endswith(".part")] == [STEP]
    assert whole(out / STEP)["step"] == 3
