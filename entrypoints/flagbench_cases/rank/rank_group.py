"""Communication among the ranks of a job, apart from that of the workload."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from flagbench_cases.shared.errors import CaseError, PeerError, UsageError
from flagbench_cases.shared.spool import RankSpool, path_of, receive

CHOSEN_NETWORK = re.compile("NCCL INFO Using network (.+)")
"""What NCCL logs when it starts (src/init.cc): `IB`, `Socket`, or the name of a plugin."""


class Job:
    """The ranks of the job; uses torch.distributed if there are several."""

    def __init__(self, device: Any, timeout: float) -> None:
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        # The parent process detects hangs; the timeout of collectives is only a fallback.
        self.limit = timedelta(seconds=2 * timeout + 600)
        self.control: Any = None
        if self.world > 1:
            dist.init_process_group(device.backend, init_method="env://", timeout=self.limit)
            if device.backend == "gloo":
                self.control = dist.group.WORLD
            else:
                self.control = dist.new_group(backend="gloo", timeout=self.limit)

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def gather(self, value: Any) -> Any:
        """Every rank's value, in rank order, on rank 0; None elsewhere."""
        if self.world == 1:
            return [value]
        values = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.control)
        return values

    def all_succeed(self, value: Any, error: CaseError | None) -> list[Any]:
        """Every rank's value, in rank order, if no rank has an error. Otherwise a rank raises its own, and the ranks
        without one raise PeerError."""
        answers = self.all_gather((value, error is not None))
        if error is not None:
            raise error
        failed = [rank for rank, (_, has_error) in enumerate(answers) if has_error]
        if failed:
            raise PeerError(failed)
        return [value for value, _ in answers]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier(group=self.control)


def keep_nccl_log(spool: RankSpool) -> None:
    """Have NCCL, before it starts, log to a file of the spool what it chooses, unless the user asked for this log.

    NCCL_DEBUG=WARN, which images and clusters set, does not ask for it; torch's errors have what NCCL warns of.
    """
    user_asks = os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")
    if not user_asks and "NCCL_DEBUG_FILE" not in os.environ:
        file = path_of(spool.folder, spool.rank, "nccl")
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=file)


def nccl_networks(spool: RankSpool) -> list[str]:
    """The networks that NCCL chose on this rank by its log, each once; none without a log."""
    try:
        with open(path_of(spool.folder, spool.rank, "nccl"), encoding="utf-8", errors="replace") as file:
            matches = [match for match in map(CHOSEN_NETWORK.search, file) if match]
            return sorted({match.group(1).strip() for match in matches})
    except OSError:
        return []


def check_same_configuration(job: Job, plan: dict[str, Any]) -> None:
    """Raise UsageError on every rank if a node's arguments or software differ from those of node 0."""
    setup = {"configuration": plan["config_digest"], "stack": plan["stack"]["name"], "torch": str(torch.__version__)}
    setups = job.all_gather(setup)
    for rank, rank_setup in enumerate(setups):
        for what, value in rank_setup.items():
            first = setups[0][what]
            if value != first:
                raise UsageError(
                    f"rank {rank} has the {what} {value}, but rank 0 has {first}",
                    "start every node with the same arguments and the same image",
                )


def collect_spools(job: Job, plan: dict[str, Any], spool: RankSpool) -> None:
    """Send the spools of other nodes to node 0, where the record is assembled."""
    files = None if plan["node_rank"] == 0 else spool.files()
    for rank, files_of_rank in enumerate(job.gather(files) or []):
        if files_of_rank:
            receive(spool.folder, rank, files_of_rank)
