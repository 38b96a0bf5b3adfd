"""Writes checkpoints: ranks write their tensors to files in one folder, which rank 0 creates, completes and names.

If the model is split over ranks, each rank that has its own part writes it; otherwise rank 0 writes the model. The
reader is rank/checkpoint.py.

The folder has a temporary name until all files are complete and on disk, so that a run that is killed, or a rank that
fails, leaves the previous checkpoint. All methods are called by every rank, and fail on all of them if they fail on
one.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from typing import Any, Callable, NamedTuple

import torch

from flagbench_cases.contract import TrainWorkload
from flagbench_cases.rank import tensor_file
from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.checkpoint_facts import (
    FACTS_FILE,
    GENERATORS,
    SPLIT_SCHEMA,
    TENSORS,
    WHOLE_SCHEMA,
    tensors_of,
)
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.files import sync
from flagbench_core.exit_codes import ExitCode

PART = re.compile(r"\.step-.*\.part")
"""The temporary name of a checkpoint that is not complete."""
KEPT_CHECKPOINTS = 2
"""Complete checkpoints of a run on disk: the last one, and one more in case that is damaged."""
FOLDER_MODE = 0o755
"""The mode of a complete checkpoint. A folder of `tempfile` can be read by its owner only, and that is often root."""


def probe_file(rank: int) -> str:
    """The name of the file that a rank creates to find out whether all ranks use the same folder."""
    return f"rank-{rank:05d}"


class RankFiles(NamedTuple):
    """The files of a checkpoint that a rank uses."""

    to_write: str | None
    """The name of the file that it writes; None if another rank writes its state."""
    to_restore: str
    """The name of the file from which it is restored."""
    is_split: bool
    """Whether several ranks write a file."""


def files_of_rank(workload: TrainWorkload, job: Any) -> RankFiles:
    """The files of a checkpoint of `workload` that this rank uses."""
    owners = [workload.state_owner(rank) for rank in range(job.world)]
    owner = owners[job.rank]
    is_split = any(owners)  # without a split, rank 0 owns the state of all ranks
    to_restore = TENSORS
    if is_split:
        to_restore = tensors_of(owner)
    to_write = None
    if owner == job.rank:
        to_write = to_restore
    return RankFiles(to_write, to_restore, is_split)


class CheckpointWriter:
    """Writes a workload's checkpoints, and keeps the last KEPT_CHECKPOINTS of this run."""

    def __init__(
        self,
        folder: str,
        identity: dict[str, Any],
        run_id: str,
        job: Any,
        device: torch.device,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to write.

        Args:
            folder: the folder of the run's checkpoints; created if it does not exist.
            identity: the configuration and data of the training, which must be the same to resume it.
            run_id: the id of this run.
            job: the ranks of the job.
            device: the device of this rank, whose random generator is saved.
            beat: reports progress while tensors are written.
        """
        self.folder = folder
        self.identity = identity
        self.run_id = run_id
        self.job = job
        self.device = device
        self.beat = beat
        self.written: list[str] = []
        """The complete checkpoints of this run, oldest first; on rank 0 only."""

    def check_shared(self) -> None:
        """Check that all ranks see the same folder and can write there.

        Raises UsageError for different folders, and CaseError (NOT_STORED) if a rank cannot write.
        """
        subject = "checkpoints"
        part = self._make_part(subject)
        try:
            self._run_on_all_ranks(subject, lambda: self._create_probe(part))
            self._run_on_all_ranks(subject, lambda: self._check_probes(part))
        except CaseError:
            self._discard_on_all(part)
            raise
        self._discard(part)

    def write(self, workload: TrainWorkload, step: int, layout: dict[str, int] | None = None) -> None:
        """Write a checkpoint after `step`; all ranks wait until it is complete. `layout` is that of a split model.

        Raises CaseError (NOT_STORED) on a rank that cannot write, and PeerError on every other rank.
        """
        tensors, facts = workload.state()
        rank_files = files_of_rank(workload, self.job)
        states = self.job.gather(generator_states(self.device))
        subject = f"the checkpoint of step {step}"
        part = self._make_part(subject)
        try:
            files: dict[str, Any] = {}
            entries = self._run_on_all_ranks(subject, lambda: self._save(part, rank_files.to_write, tensors))
            for entry in entries:
                files.update(entry)
            content = {
                "schema": WHOLE_SCHEMA,
                "step": step,
                "run_id": self.run_id,
                "identity": self.identity,
                "files": files,
                "facts": facts,
            }
            if rank_files.is_split:
                content["schema"] = SPLIT_SCHEMA
                content["layout"] = layout
            self._run_on_all_ranks(subject, lambda: self._commit(part, content, states))
        except CaseError:
            self._discard_on_all(part)
            raise
        except BaseException:
            self._discard(part)
            raise

    def _run_on_all_ranks(self, subject: str, action: Callable[[], Any]) -> list[Any]:
        """Run `action` on all ranks. Returns its values in rank order; raises on every rank if it fails on one.

        `subject` names the checkpoint in the error.
        """
        result = None
        error = None
        try:
            result = action()
        except OSError as failure:
            error = self._write_error(subject, failure)
        except CaseError as failure:
            error = failure
        return self.job.all_succeed(result, error)

    def _write_error(self, subject: str, error: OSError) -> CaseError:
        """The error for the user if a rank cannot write."""
        remedy = "set --out to a writable folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free space there, or write checkpoints less often"
        return CaseError(
            f"{subject} could not be written to {self.folder} ({error.strerror or error})",
            remedy,
            ExitCode.NOT_STORED,
        )

    # -- the temporary folder --------------------------------------------------------------------------------

    def _make_part(self, subject: str) -> str:
        """Create a temporary folder on rank 0. Returns its name on all ranks."""
        names = self._run_on_all_ranks(subject, self._make_part_on_rank_0)
        return str(names[0])

    def _make_part_on_rank_0(self) -> str | None:
        if self.job.rank != 0:
            return None
        os.makedirs(self.folder, exist_ok=True)
        if not self.written:
            self._remove_old_parts()
        return os.path.basename(self._make_temporary_folder())

    def _remove_old_parts(self) -> None:
        """Remove what an earlier run with the same folder left, if it was killed while it wrote."""
        for name in os.listdir(self.folder):
            if PART.fullmatch(name):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def _make_temporary_folder(self) -> str:
        """Create a folder with a name like PART's. Returns its path."""
        return tempfile.mkdtemp(prefix=".step-", suffix=".part", dir=self.folder)

    def _discard(self, part: str) -> None:
        """Remove the temporary folder, on rank 0."""
        if self.job.rank == 0:
            shutil.rmtree(os.path.join(self.folder, part), ignore_errors=True)

    def _discard_on_all(self, part: str) -> None:
        """Remove the temporary folder before any rank ends: the launcher stops all ranks as soon as one has ended."""
        self._discard(part)
        self.job.barrier()

    def _create_probe(self, part: str) -> None:
        """Create this rank's probe file. Raises UsageError if the temporary folder of rank 0 is not there."""
        folder = os.path.join(self.folder, part)
        if not os.path.isdir(folder):
            raise self._not_shared_error()
        path = os.path.join(folder, probe_file(self.job.rank))
        open(path, "x").close()

    def _check_probes(self, part: str) -> None:
        """On rank 0: raise UsageError unless the probe files of all ranks are in the temporary folder."""
        if self.job.rank != 0:
            return
        names = sorted(os.listdir(os.path.join(self.folder, part)))
        expected = [probe_file(rank) for rank in range(self.job.world)]
        if names != expected:
            raise self._not_shared_error()

    def _not_shared_error(self) -> CaseError:
        """The error for the user if nodes write to different folders."""
        return UsageError(
            "all ranks write their parts of a checkpoint into one folder, "
            f"but {self.folder} is not the same folder on all nodes",
            "set --out to a shared folder",
        )

    # -- files -----------------------------------------------------------------------------------------------

    def _save(self, part: str, name: str | None, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Write this rank's tensors to the file `name`; None: to no file. Returns size and checksum by file name."""
        if name is None:
            return {}
        path = os.path.join(self.folder, part, name)
        return {name: tensor_file.write(path, tensors, self.beat)}

    def _commit(self, part: str, content: dict[str, Any], states: Any) -> None:
        """On rank 0: complete the temporary folder, rename it, and remove the oldest checkpoint.

        `content` is what its `checkpoint.json` lists, except for the file of generators. `states` are the states of
        the random generators, by rank.
        """
        if self.job.rank != 0:
            return
        folder = os.path.join(self.folder, part)
        for name in content["files"]:
            os.stat(os.path.join(folder, name))  # raises OSError if a file of another node is not visible here
        self._complete(folder, content, states)
        target = os.path.join(self.folder, f"step-{content['step']:08d}")
        self._rename(folder, target)
        self.written.append(target)
        for old in self.written[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old, ignore_errors=True)

    def _complete(self, folder: str, content: dict[str, Any], states: Any) -> None:
        """Write the generators and `checkpoint.json`, and flush the folder to disk."""
        generators = {}
        for rank, states_of_rank in enumerate(states):
            for name, state in states_of_rank.items():
                generators[f"{rank}.{name}"] = state
        files = dict(content["files"])
        files[GENERATORS] = tensor_file.write(os.path.join(folder, GENERATORS), generators)
        with open(os.path.join(folder, FACTS_FILE), "xb") as file:
            file.write(checkpoint_facts.to_bytes(dict(content, files=files)))
            file.flush()
            os.fsync(file.fileno())
        sync(folder)
        os.chmod(folder, FOLDER_MODE)

    def _rename(self, folder: str, target: str) -> None:
        """Rename the complete folder to `target`, replacing a checkpoint there, and flush the new name to disk."""
        if os.path.isdir(target):  # the run resumed from an earlier checkpoint and reached this step again
            replaced = self._make_temporary_folder()
            os.rename(target, replaced)
            os.rename(folder, target)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            os.rename(folder, target)
        sync(self.folder)


def generator_states(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of this rank's random generators: `cpu`, and `cuda` on a CUDA device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
