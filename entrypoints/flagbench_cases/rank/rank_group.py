"""Communication among the ranks of a job, apart from that of the workload: values, barriers, settings, spools.

rank/run.py creates the Job; loops, checkpoints and repeats exchange values through it.
"""

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


LIMIT_FACTOR = 2
MIN_LIMIT_SECONDS = 600
"""The timeout of a collective is LIMIT_FACTOR times that of the run plus MIN_LIMIT_SECONDS. It is only a fallback:
the parent process detects hangs, and does so after the timeout of the run."""


class Job:
    """The ranks of the job; uses torch.distributed if there are several.

    `rank` is that of this process, `world` the number of ranks, and `control` a group on the hosts (gloo), so that
    exchanging values does not use the devices.
    """

    def __init__(self, device: Any, store: dist.Store | None, timeout: float) -> None:
        """Join the other ranks.

        Args:
            store: the one in which the ranks meet; None for a single rank.
            timeout: seconds without progress after which the parent process ends the run.
        """
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.collective_timeout = timedelta(seconds=LIMIT_FACTOR * timeout + MIN_LIMIT_SECONDS)
        self.control: Any = None
        if store is not None:
            store.set_timeout(self.collective_timeout)
            dist.init_process_group(
                device.backend, store=store, rank=self.rank, world_size=self.world, timeout=self.collective_timeout
            )
            if device.backend == "gloo":
                self.control = dist.group.WORLD
            else:
                self.control = dist.new_group(backend="gloo", timeout=self.collective_timeout)

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
        values: list[Any] | None = None
        if self.rank == 0:
            values = [None] * self.world
        dist.gather_object(value, values, dst=0, group=self.control)
        return values

    def all_succeed(self, value: Any, error: CaseError | None) -> list[Any]:
        """Every rank's value, in rank order, if no rank has an error.

        Otherwise, a rank with an error raises it, and every other rank raises PeerError.
        """
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


def end_on_nccl_errors() -> None:
    """Have an error of NCCL end this process, by the variable that torch's own launcher sets, unless it is set."""
    name = "NCCL_ASYNC_ERROR_HANDLING"
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release >= (2, 2):
        name = f"TORCH_{name}"
    os.environ.setdefault(name, "1")


def keep_nccl_log(spool: RankSpool) -> None:
    """Have NCCL log its choice of networks to a file of the spool. Must be called before NCCL starts.

    If the user asked for NCCL's log, it stays as it is. NCCL_DEBUG=WARN, which images and clusters set, does not
    count as asking: torch's errors contain the same warnings.
    """
    user_asks = os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")
    if not user_asks and "NCCL_DEBUG_FILE" not in os.environ:
        file = path_of(spool.folder, spool.rank, "nccl")
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=file)


def read_nccl_networks(spool: RankSpool) -> list[str]:
    """The networks that NCCL chose on this rank according to its log, sorted; empty without a log."""
    networks: set[str] = set()
    try:
        with open(path_of(spool.folder, spool.rank, "nccl"), encoding="utf-8", errors="replace") as file:
            for line in file:
                match = CHOSEN_NETWORK.search(line)
                if match is not None:
                    networks.add(match.group(1).strip())
    except OSError:  # NCCL was not used, or the user has the log
        return []
    return sorted(networks)


def check_same_configuration(job: Job, plan: dict[str, Any]) -> None:
    """Raise UsageError on every rank if a node's arguments or software differ from those of node 0."""
    setup = {"configuration": plan["config_digest"], "stack": plan["stack"]["name"], "torch": str(torch.__version__)}
    setups = job.all_gather(setup)
    for rank, rank_setup in enumerate(setups):
        for name, value in rank_setup.items():
            expected = setups[0][name]
            if value != expected:
                raise UsageError(
                    f"rank {rank} has the {name} {value}, but rank 0 has {expected}",
                    "start every node with the same arguments and the same image",
                )


def collect_spools(job: Job, plan: dict[str, Any], spool: RankSpool) -> None:
    """Send the spools of other nodes to node 0, where the record is assembled."""
    files = None
    if plan["node_rank"] != 0:
        files = spool.files()
    files_by_rank = job.gather(files)
    if files_by_rank is None:  # on every rank except rank 0
        return
    for rank, files_of_rank in enumerate(files_by_rank):
        if files_of_rank is not None:
            receive(spool.folder, rank, files_of_rank)
