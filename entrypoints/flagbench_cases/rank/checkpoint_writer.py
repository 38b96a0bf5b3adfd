"""Writes checkpoints: every rank that has a state of its own writes a file, and rank 0 makes the folder and names it.

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
from flagbench_cases.shared.checkpoint_facts import FACTS, GENERATORS, SCHEMAS, TENSORS, tensors_of
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.files import sync
from flagbench_core.exit_codes import ExitCode

PART = re.compile(r"\.step-.*\.part")
KEPT_CHECKPOINTS = 2


def probe_file(rank: int) -> str:
    """The file that a rank creates to find out whether all ranks use the same folder."""
    return f"rank-{rank:05d}"


class Files(NamedTuple):
    """The files of a checkpoint that a rank uses."""

    written: str | None
    """The file that it writes; None if another rank writes its state."""
    restored: str
    """The file from which it is restored."""
    split: bool
    """Whether several ranks write a file."""


def files_of(workload: TrainWorkload, job: Any) -> Files:
    """The files of this rank."""
    owners = [workload.state_owner(rank) for rank in range(job.world)]
    owner = owners[job.rank]
    split = any(owners)  # without a split, rank 0 owns the state of all ranks
    restored = TENSORS
    if split:
        restored = tensors_of(owner)
    written = None
    if owner == job.rank:
        written = restored
    return Files(written, restored, split)


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
        """`beat` is called while tensors are written."""
        self.folder = folder
        self.identity = identity
        self.run_id = run_id
        self.job = job
        self.device = device
        self.beat = beat
        self.written: list[str] = []

    def check_shared(self) -> None:
        """Raise UsageError if the ranks do not see the same folder, CaseError (14) if one cannot write there."""
        subject = "checkpoints"
        part = self._make_part(subject)
        try:
            self._on_all(subject, lambda: self._probe(part))
            self._on_all(subject, lambda: self._check_probes(part))
        except CaseError:
            self._discard_on_all(part)
            raise
        self._discard(part)

    def write(self, workload: TrainWorkload, step: int, layout: dict[str, int] | None = None) -> None:
        """Write a checkpoint after `step`; all ranks wait until it is complete. `layout` is that of a split model.

        Raises CaseError (14) on a rank that cannot write, and PeerError on every other rank.
        """
        tensors, facts = workload.state()
        file_name, _, split = files_of(workload, self.job)
        states = self.job.gather(generator_states(self.device))
        subject = f"the checkpoint of step {step}"
        part = self._make_part(subject)
        try:
            files: dict[str, Any] = {}
            for entry in self._on_all(subject, lambda: self._save(part, file_name, tensors)):
                files.update(entry)
            schema = SCHEMAS[0]
            if split:
                schema = SCHEMAS[1]
            content = {
                "schema": schema,
                "step": step,
                "run_id": self.run_id,
                "identity": self.identity,
                "files": files,
                "facts": facts,
            }
            if split:
                content["layout"] = layout
            self._on_all(subject, lambda: self._commit(part, content, states))
        except CaseError:
            self._discard_on_all(part)
            raise
        except BaseException:
            self._discard(part)
            raise

    def _on_all(self, subject: str, action: Callable[[], Any]) -> list[Any]:
        """The return values of `action` on all ranks. Raises on every rank if it fails on one.

        `subject` names the checkpoint in the error.
        """
        result = None
        error = None
        try:
            result = action()
        except OSError as failure:
            error = self._not_written(subject, failure)
        except CaseError as failure:
            error = failure
        return self.job.all_succeed(result, error)

    def _not_written(self, subject: str, error: OSError) -> CaseError:
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
        """The name of a new temporary folder."""
        name_of_rank_0 = self._on_all(subject, self._new_part)[0]
        return str(name_of_rank_0)

    def _new_part(self) -> str | None:
        if self.job.rank != 0:
            return None
        os.makedirs(self.folder, exist_ok=True)
        if not self.written:
            for name in os.listdir(self.folder):
                if PART.fullmatch(name):  # of a run with this name that was killed while writing
                    shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        return os.path.basename(tempfile.mkdtemp(prefix=".step-", suffix=".part", dir=self.folder))

    def _discard(self, part: str) -> None:
        if self.job.rank == 0:
            shutil.rmtree(os.path.join(self.folder, part), ignore_errors=True)

    def _discard_on_all(self, part: str) -> None:
        """Let no rank end before the folder is removed: the launcher stops all ranks as soon as one has ended."""
        self._discard(part)
        self.job.barrier()

    def _probe(self, part: str) -> None:
        folder = os.path.join(self.folder, part)
        if not os.path.isdir(folder):
            raise self._not_shared()
        with open(os.path.join(folder, probe_file(self.job.rank)), "x"):
            pass

    def _check_probes(self, part: str) -> None:
        if self.job.rank == 0:
            names = os.listdir(os.path.join(self.folder, part))
            if sorted(names) != [probe_file(rank) for rank in range(self.job.world)]:
                raise self._not_shared()

    def _not_shared(self) -> CaseError:
        return UsageError(
            "all ranks write their parts of a checkpoint into one folder, "
            f"but {self.folder} is not the same folder on all nodes",
            "set --out to a shared folder",
        )

    # -- files -----------------------------------------------------------------------------------------------

    def _save(self, part: str, name: str | None, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Write this rank's tensors to the file `name`, if it is not None; returns the file's entry by its name."""
        if name is None:
            return {}
        return {name: tensor_file.write(os.path.join(self.folder, part, name), tensors, self.beat)}

    def _commit(self, part: str, content: dict[str, Any], states: Any) -> None:
        """On rank 0: complete the folder, give it its name, and remove the oldest one."""
        if self.job.rank != 0:
            return
        folder = os.path.join(self.folder, part)
        for name in content["files"]:
            os.stat(os.path.join(folder, name))  # written by another rank, perhaps on another node
        generators = {}
        for rank, states_of_rank in enumerate(states):
            for name, state in states_of_rank.items():
                generators[f"{rank}.{name}"] = state
        files = dict(content["files"])
        files[GENERATORS] = tensor_file.write(os.path.join(folder, GENERATORS), generators)
        with open(os.path.join(folder, FACTS), "xb") as file:
            file.write(checkpoint_facts.to_bytes(dict(content, files=files)))
            file.flush()
            os.fsync(file.fileno())
        sync(folder)
        os.chmod(folder, 0o755)
        target = os.path.join(self.folder, f"step-{content['step']:08d}")
        if os.path.isdir(target):  # the run resumed from an earlier checkpoint and reached this step again
            before = tempfile.mkdtemp(prefix=".step-", suffix=".part", dir=self.folder)
            os.rename(target, before)
            os.rename(folder, target)
            shutil.rmtree(before, ignore_errors=True)
        else:
            os.rename(folder, target)
        sync(self.folder)
        self.written.append(target)
        for old in self.written[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old, ignore_errors=True)


def generator_states(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of this rank's random generators."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
