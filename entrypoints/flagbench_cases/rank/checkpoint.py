"""Checkpoints: everything needed to resume training, written atomically and without pickle.

A checkpoint is a folder `step-00000120`: `tensors.safetensors` of the workload, `generators.safetensors` of every
rank's random generators, and `checkpoint.json` with the identity of the training and the files' checksums. It is
written under a temporary name and renamed when complete, so that a killed run keeps the previous one.

The tensors are those of rank 0, so that a model that is split over ranks (tp or pp above 1) has no checkpoints:
shared/engine_support.py refuses them. In cases that can be resumed, the order of batches does not depend on torch's
generators.
"""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from flagbench_cases.contract import TrainWorkload
from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.checkpoint_facts import FACTS, GENERATORS, REMEDY, TENSORS
from flagbench_cases.shared.errors import CaseError, DataError, ExitCode
from flagbench_cases.shared.files import open_file, sync

PART = re.compile(r"\.step-.*\.part")
KEPT = 2


class Checkpoint(NamedTuple):
    """A validated checkpoint in memory."""

    folder: str
    step: int
    tensors: Dict[str, torch.Tensor]
    facts: Dict[str, Any]
    generators: Dict[str, torch.Tensor]


def generators(device: torch.device) -> Dict[str, torch.Tensor]:
    """The states of this rank's random generators."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(device: torch.device, states: Dict[str, torch.Tensor]) -> None:
    """Restore the states that `generators` returned."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


class Writer:
    """Writes a workload's checkpoints. Called by every rank, written by rank 0; keeps the last KEPT of this run."""

    def __init__(self, folder: str, identity: Dict[str, Any], run_id: str, job: Any, device: torch.device) -> None:
        self.folder = folder
        self.identity = identity
        self.run_id = run_id
        self.job = job
        self.device = device
        self.written: List[str] = []

    def write(self, workload: TrainWorkload, step: int) -> None:
        """Write a checkpoint after `step`; all ranks wait until it is complete. Raises CaseError (14) on rank 0."""
        tensors, facts = workload.state()
        states = self.job.gather(generators(self.device))
        if self.job.rank == 0:
            named = {"%d.%s" % (rank, name): t for rank, each in enumerate(states) for name, t in each.items()}
            try:
                self._write(step, tensors, named, facts)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise CaseError(
                    "the checkpoint of step %d could not be written to %s (%s)"
                    % (step, self.folder, error.strerror or error),
                    "free space there, or write checkpoints less often" if full else "set --out to a writable folder",
                    ExitCode.NOT_STORED,
                ) from error
        self.job.barrier()

    def _write(
        self, step: int, tensors: Dict[str, torch.Tensor], states: Dict[str, torch.Tensor], facts: Dict[str, Any]
    ) -> None:
        os.makedirs(self.folder, exist_ok=True)
        if not self.written:
            for name in os.listdir(self.folder):
                if PART.fullmatch(name):  # of a run with this name that was killed while writing
                    shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        target = os.path.join(self.folder, "step-%08d" % step)
        part = tempfile.mkdtemp(prefix=".step-", suffix=".part", dir=self.folder)
        try:
            files = {
                name: _save(os.path.join(part, name), t) for name, t in ((TENSORS, tensors), (GENERATORS, states))
            }
            content = {
                "schema": "checkpoint/v1",
                "step": step,
                "run_id": self.run_id,
                "identity": self.identity,
                "files": files,
                "facts": facts,
            }
            _write_file(os.path.join(part, FACTS), checkpoint_facts.to_bytes(content))
            sync(part)
            os.chmod(part, 0o755)
            if os.path.isdir(target):  # the run resumed from an earlier checkpoint and reached this step again
                before = tempfile.mkdtemp(prefix=".step-", suffix=".part", dir=self.folder)
                os.rename(target, before)
                os.rename(part, target)
                shutil.rmtree(before, ignore_errors=True)
            else:
                os.rename(part, target)
            sync(self.folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        self.written.append(target)
        for old in self.written[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _save(path: str, tensors: Dict[str, torch.Tensor]) -> Dict[str, Any]:
    """Write tensors as safetensors; returns the file's size and checksum."""
    from safetensors.torch import save

    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    _write_file(path, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _write_file(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read(folder: str, ours: Dict[str, Any]) -> Checkpoint:
    """Read the checkpoint in `folder`. Raises DataError if it is damaged, UsageError if its identity is not
    `ours`."""
    content = checkpoint_facts.read(folder)
    checkpoint_facts.check_identity(content["identity"], ours)
    tensors, states = (_load(folder, name, content["files"]) for name in (TENSORS, GENERATORS))
    return Checkpoint(folder, content["step"], tensors, content["facts"], states)


def of_rank(states: Dict[str, torch.Tensor], rank: int) -> Dict[str, torch.Tensor]:
    """The generator states of one rank."""
    prefix = "%d." % rank
    return {name[len(prefix) :]: state for name, state in states.items() if name.startswith(prefix)}


def _load(folder: str, name: str, files: Dict[str, Any]) -> Dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = os.path.join(folder, name)
    try:
        with open_file(path, "rb") as file:
            content = file.read()
        if hashlib.sha256(content).hexdigest() != files[name]["sha256"]:
            raise DataError("%s is damaged: its checksum differs" % path, REMEDY)
        return load(content)
    except (OSError, SafetensorError, KeyError) as error:
        raise DataError("%s cannot be read (%s)" % (path, error), REMEDY) from error


def prepare(
    plan: Dict[str, Any], job: Any, device: torch.device, workload: TrainWorkload
) -> Tuple[Optional[Checkpoint], Optional[Callable[[int], None]]]:
    """Restore `workload` from the plan's checkpoint, if any; returns it, and a function that writes new ones, if
    due."""
    config, saved = plan["config"], None
    every = config["train"].get("checkpoint_every_steps")
    if not plan.get("resume") and not every:
        return None, None
    training = checkpoint_facts.identity(config, workload.describe()["data"])
    if plan.get("resume"):
        saved = read(plan["resume"], training)
        workload.restore(saved.tensors, saved.facts)
    if not every:
        return saved, None
    writer = Writer(plan["checkpoints"], training, plan["run_id"], job, device)
    return saved, lambda step: writer.write(workload, step)
