"""Checkpoints: whole or not there, of the same training, and going on from one is as if nothing had happened."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.contract import Evaluation, TrainWorkload, Work
from flagbench_cases.rank import checkpoint
from flagbench_cases.rank.checkpoint_writer import CheckpointWriter
from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.errors import CaseError, DataError, UsageError
from flagbench_cases.shared.spool import RankSpool, SpoolReader
from flagbench_core.exit_codes import ExitCode
from unit.cases.rank.toy_loop import Device, NoCollectives, job_of
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "case": "toy",
    "division": "faithful",
    "precision": "fp32",
    "seed": 3,
    "weights": "random",
    "model": {"width": 4},
    "data": {"source": "synthetic"},
    "train": {"learning_rate": 0.1, "window_steps": None, "warmup_steps": 1, "checkpoint_every_steps": 3},
    "nodes": 1,
    "gpus": 1,
}


CONTENTS = {"train_sha256": "a", "weights": "b"}


def identity(contents: dict[str, str] = CONTENTS) -> dict[str, Any]:
    return checkpoint_facts.identity(CONFIG, contents)


def read(out: Path, contents: dict[str, str] = CONTENTS) -> checkpoint.Checkpoint:
    """The newest checkpoint in a folder."""
    return checkpoint.read(checkpoint_facts.find(str(out), CONFIG), identity(contents))


class Dropped(TrainWorkload):
    """A linear layer behind a dropout, so that the losses depend on the generator too; four batches an epoch."""

    def __init__(self) -> None:
        torch.manual_seed(CONFIG["seed"])
        self.module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.1)
        rows = torch.arange(16.0).view(4, 4)
        self.loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=1)

    def setup(self) -> None:
        pass

    def steps_per_epoch(self) -> int:
        return len(self.loader)

    def batches(self, epoch: int) -> Any:
        return self.loader

    def to_device(self, batch: Any) -> Any:
        return batch

    def step(self, batch: Any) -> float:
        loss = self.module(batch[0]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def work(self, batch: Any) -> Work:
        return Work(1, 1, 1, 1, 1.0, 1.0)

    def evaluate(self, last: bool) -> Evaluation:
        return Evaluation(None, None, 0, None)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors = {"module." + name: tensor for name, tensor in self.module.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors.update(("optimizer.%d.%s" % (index, name), torch.as_tensor(v)) for name, v in state.items())
        return tensors, {"kind": "adam"}

    def describe(self) -> dict[str, Any]:
        return {"data": CONTENTS}

    def restore(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        assert facts == {"kind": "adam"}
        prefix = "module."
        self.module.load_state_dict({n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)})
        content = self.optimizer.state_dict()
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                content["state"].setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict(content)


def run(folder: Path, resume: Path | None = None, every: int = 3) -> list[float]:
    """Train three epochs, or what a checkpoint left of them; the losses."""
    (folder / "spool").mkdir(parents=True)
    workload = Dropped()
    plan = {"config": CONFIG, "resume": resume and str(resume), "checkpoints": str(folder / "out"), "run_id": "r"}
    saved, save = checkpoint.prepare(plan, job_of(0, 1), CPU, workload)
    set_generators = None
    if saved is not None:
        set_generators = functools.partial(checkpoint.restore_generators, CPU, saved.generators, 0)
    first = saved.step if saved else 0
    how = TrainPlan(3, 1, None, None, False, first_step=first, checkpoint_every=every)
    spool = RankSpool(str(folder / "spool"), 0)
    spool.reserve(how.capacity(4))
    TrainLoop(workload, how, spool, Device(), NoCollectives(), save, set_generators).run()
    return [step.loss for step in SpoolReader(str(folder / "spool"), 0).steps()]


def test_only_the_last_two_are_kept(tmp_path: Path) -> None:
    run(tmp_path)
    assert sorted(os.listdir(tmp_path / "out")) == ["step-00000009", "step-00000012"]
    assert sorted(os.listdir(tmp_path / "out/step-00000009")) == sorted(
        ["checkpoint.json", "generators.safetensors", "tensors.safetensors"]
    )
    assert checkpoint_facts.read(str(tmp_path / "out/step-00000009"))["schema"] == "checkpoint/v1"


def test_a_resumed_run_has_the_losses_of_the_whole(tmp_path: Path) -> None:
    """Within an epoch; and at its border, where the next epoch's loader draws from the generator."""
    whole = run(tmp_path / "whole")
    one = tmp_path / "whole/out/step-00000009"
    assert run(tmp_path / "rest", one) == whole[9:]
    assert run(tmp_path / "every four", every=4) == whole
    assert run(tmp_path / "border", tmp_path / "every four/out/step-00000008") == whole[8:]


def test_a_run_that_goes_back_keeps_what_it_writes(tmp_path: Path) -> None:
    """Its checkpoints stand where those of the abandoned run do, and are the newest, whatever their step."""
    run(tmp_path)
    writer = CheckpointWriter(str(tmp_path / "out"), identity(), "r", job_of(0, 1), CPU)
    for step in (6, 9):
        writer.write(Dropped(), step)
    assert sorted(os.listdir(tmp_path / "out")) == ["step-00000006", "step-00000009", "step-00000012"]
    assert read(tmp_path / "out").step == 9
    writer.write(Dropped(), 12)
    assert sorted(os.listdir(tmp_path / "out")) == ["step-00000009", "step-00000012"]


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    run(tmp_path)
    os.rename(tmp_path / "out/step-00000012", tmp_path / "out/.step-00000012.77.part")
    assert read(tmp_path / "out").step == 9


def test_other_data_or_weights_are_other_training(tmp_path: Path) -> None:
    run(tmp_path)
    with refuses(UsageError, "contents.weights is b, not c"):
        read(tmp_path / "out", {**CONTENTS, "weights": "c"})


@pytest.mark.parametrize("name", [checkpoint_facts.TENSORS, checkpoint_facts.GENERATORS])
@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, name: str, cut: bool) -> None:
    run(tmp_path)
    path = tmp_path / "out/step-00000012" / name
    content = path.read_bytes()
    path.write_bytes(content[:-3] if cut else content[:-1] + bytes([content[-1] ^ 1]))
    with refuses(DataError, path, "damaged"):
        read(tmp_path / "out")
    path.unlink()
    with refuses(DataError, path):
        read(tmp_path / "out")


@pytest.mark.parametrize("states", [{"1.cpu": torch.get_rng_state()}, {"0.cpu": torch.zeros(3, dtype=torch.uint8)}])
def test_generators_that_are_not_this_ranks_are_refused(tmp_path: Path, states: dict[str, torch.Tensor]) -> None:
    run(tmp_path)
    saved = read(tmp_path / "out")
    checkpoint.check_generators(CPU, saved, 0)
    with refuses(DataError, checkpoint_facts.GENERATORS):
        checkpoint.check_generators(CPU, saved._replace(generators=states), 0)


def test_a_checkpoint_that_cannot_be_written(tmp_path: Path) -> None:
    workload = Dropped()
    writer = CheckpointWriter(str(tmp_path / "out"), identity(), "r", job_of(0, 1), CPU)
    writer.write(workload, 3)
    (tmp_path / "out/step-00000006").write_text("a file where the checkpoint should stand")
    with refuses(CaseError, "step 6", code=ExitCode.NOT_STORED):
        writer.write(workload, 6)
    assert [name for name in os.listdir(tmp_path / "out") if name.startswith(".")] == []
    assert json.loads((tmp_path / "out/step-00000003/checkpoint.json").read_text())["step"] == 3
