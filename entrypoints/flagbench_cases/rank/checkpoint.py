"""Restores training from checkpoints, and prepares the writer of new ones (rank/checkpoint_writer.py).

A checkpoint is everything that is needed to resume training, written atomically and without pickle. It is a folder
such as `step-00000120` with `tensors.safetensors` of the workload, `generators.safetensors` of every rank's random
generators, and `checkpoint.json` with the identity of the training and the files' checksums. If ranks have parts of a
split model, each part has a file such as `tensors-00003.safetensors` instead. Several nodes must share the folder.

In cases that can be resumed, the order of batches does not depend on torch's generators.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Callable, NamedTuple

import torch

from flagbench_cases.contract import TrainWorkload
from flagbench_cases.rank.checkpoint_writer import CheckpointWriter, files_of_rank
from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.checkpoint_facts import GENERATORS, NOT_SHARED, REMEDY, TENSORS
from flagbench_cases.shared.errors import CaseError, DataError, UsageError
from flagbench_cases.shared.files import open_file, pieces
from flagbench_cases.shared.parallel_layout import layout_of


class Checkpoint(NamedTuple):
    """The parts of a validated checkpoint that one rank needs."""

    folder: str
    step: int
    """The number of steps trained when it was written."""
    tensors: dict[str, torch.Tensor]
    """The state of the workload by name: parameters, optimizer and so on."""
    facts: dict[str, Any]
    """Values of the workload's state that are not tensors."""
    generators: dict[str, torch.Tensor]
    """The states of the random generators of all ranks, by `RANK.cpu` and `RANK.cuda`."""
    sha256: str
    """The checksum of its `checkpoint.json`."""


class Checkpointing(NamedTuple):
    """How a run uses checkpoints."""

    saved: Checkpoint | None
    """The checkpoint from which the workload was restored; None if the run starts from the beginning."""
    write: Callable[[int], None] | None
    """Writes the checkpoint of the step with the given number; None if the run writes no checkpoints."""


def read(
    folder: str, identity: dict[str, Any], name: str = TENSORS, beat: Callable[[], None] = lambda: None
) -> Checkpoint:
    """Read the checkpoint in `folder` with the tensors in the file `name`.

    `beat` reports progress. Raises DataError if the checkpoint is damaged or lacks the file, UsageError if it belongs
    to other training than `identity`.
    """
    content = checkpoint_facts.read(folder)
    checkpoint_facts.check_identity(content["identity"], identity)
    for file_name in (name, GENERATORS):
        _verify(folder, file_name, content["files"], beat)
    # The parts of a split model are large: together, the ranks of a node would need too much memory for copies.
    tensors = _load(folder, name, mapped=name != TENSORS)
    states = _load(folder, GENERATORS, mapped=False)
    return Checkpoint(folder, content["step"], tensors, content["facts"], states, content["sha256"])


def _verify(folder: str, name: str, files: dict[str, Any], beat: Callable[[], None]) -> None:
    """Raise DataError unless a file has the checksum listed in `files`, by name `bytes` and `sha256`."""
    path = os.path.join(folder, name)
    digest = hashlib.sha256()
    if name not in files:
        raise DataError(f"{folder} has no {name}", REMEDY)
    try:
        with open_file(path, "rb") as file:
            for piece in pieces(file):
                digest.update(piece)
                beat()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error})", NOT_SHARED) from error
    if digest.hexdigest() != files[name]["sha256"]:
        raise DataError(f"{path} is damaged: its checksum differs", REMEDY)


def _load(folder: str, name: str, mapped: bool) -> dict[str, torch.Tensor]:
    """The tensors of a file by name. `mapped`: they stay in the file, which is mapped to memory, not read."""
    # Imported here: runs without checkpoints do not need this library.
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    path = os.path.join(folder, name)
    try:
        if mapped:
            return load_file(path)
        with open_file(path, "rb") as file:
            return load(file.read())
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({error})", REMEDY) from error


def prepare(
    plan: dict[str, Any],
    job: Any,
    device: torch.device,
    workload: TrainWorkload,
    beat: Callable[[], None] = lambda: None,
) -> Checkpointing:
    """Restore `workload` from the plan's checkpoint, if it has one, and prepare to write checkpoints, if it says so.

    Called by every rank; if it fails on one, it fails on all. `beat` reports progress.
    """
    config = plan["config"]
    saved = None
    steps_between = config["train"].get("checkpoint_every_steps")
    if not plan.get("resume") and not steps_between:
        return Checkpointing(None, None)
    training = checkpoint_facts.identity(config, workload.describe()["data"])
    files = files_of_rank(workload, job)
    if plan.get("resume"):
        saved = _read_on_all(plan["resume"], training, files.to_restore, job, device, workload, beat)
        workload.restore(saved.tensors, saved.facts)
        saved = saved._replace(tensors={})  # frees their memory: they are not needed any more
    if not steps_between:
        return Checkpointing(saved, None)
    writer = CheckpointWriter(plan["checkpoints"], training, plan["run_id"], job, device, beat)
    if files.is_split:
        writer.check_shared()
    layout = layout_of(config)._asdict()
    return Checkpointing(saved, lambda step: writer.write(workload, step, layout))


def _read_on_all(
    folder: str,
    training: dict[str, Any],
    name: str,
    job: Any,
    device: torch.device,
    workload: TrainWorkload,
    beat: Callable[[], None],
) -> Checkpoint:
    """Read the part of a checkpoint that this rank needs, and check that it can be restored.

    Raises CaseError on every rank if one rank cannot restore its part, or reads another checkpoint than rank 0.
    """
    saved = None
    error = None
    try:
        saved = read(folder, training, name, beat)
        workload.check_state(saved.tensors, saved.facts)
        check_generators(device, saved, job.rank)
    except CaseError as failure:
        error = failure
    checksum = None
    if saved is not None:
        checksum = saved.sha256
    checkpoints = job.all_succeed((checksum, os.path.basename(folder)), error)
    first_checksum, first_name = checkpoints[0]
    for rank, (rank_checksum, rank_name) in enumerate(checkpoints):
        if rank_checksum != first_checksum:
            raise UsageError(
                f"rank {rank} resumes from another checkpoint ({rank_name}) than rank 0 ({first_name})",
                "give all nodes the same --resume folder",
            )
    assert saved is not None
    return saved


def check_generators(device: torch.device, saved: Checkpoint, rank: int) -> None:
    """Raise DataError unless the states of a rank's random generators can be restored."""
    where = f"{GENERATORS} of {saved.folder}"
    if f"{rank}.cpu" not in saved.generators:
        raise DataError(f"{where} has no state {rank}.cpu", REMEDY)
    generator_devices = {f"{rank}.cpu": torch.device("cpu"), f"{rank}.cuda": device}
    for name, generator_device in generator_devices.items():
        if name not in saved.generators:
            continue
        try:
            torch.Generator(generator_device).set_state(saved.generators[name])
        except (RuntimeError, TypeError) as error:
            raise DataError(f"{where} has an unusable state {name}: {error}", REMEDY) from None


def restore_generators(device: torch.device, states: dict[str, torch.Tensor], rank: int) -> None:
    """Restore a rank's random generators from the states of all ranks in a checkpoint."""
    torch.set_rng_state(states[f"{rank}.cpu"])
    if device.type == "cuda" and f"{rank}.cuda" in states:
        torch.cuda.set_rng_state(states[f"{rank}.cuda"], device)
