"""Workloads on their own: some steps of one, and a function on several gloo ranks of this machine."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def train(work: Any, steps: int) -> tuple[list[float], list[Any]]:
    """Take `steps` steps, epoch after epoch: the losses, and the batches in their order."""
    losses: list[float] = []
    batches: list[Any] = []
    epoch = 0
    while len(losses) < steps:
        for batch in work.batches(epoch):
            losses.append(work.step(work.to_device(batch)))
            batches.append(batch)
            work.context.probe.take()
            if len(losses) == steps:
                break
        epoch += 1
    return losses, batches


def _rank(rank: int, world: int, folder: str, body: Callable[[Path, int, int], Any]) -> None:
    torch.set_num_threads(1)  # a forked process must not wake the thread pool of its parent
    os.environ.update(GLOO_SOCKET_IFNAME="lo", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    address, limit = f"file://{folder}/rendezvous", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world, timeout=limit)
    torch.save(body(Path(folder), rank, world), str(Path(folder) / f"result-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(world: int, folder: Path, body: Callable[[Path, int, int], Any]) -> list[Any]:
    """What `body(folder, rank, world)` returns on each of `world` ranks."""
    folder.mkdir(exist_ok=True)
    arguments = (world, str(folder), body)
    torch.multiprocessing.start_processes(_rank, args=arguments, nprocs=world, start_method="fork")
    options = {"weights_only": False} if hasattr(torch, "compile") else {}
    return [torch.load(str(folder / f"result-{rank}.pt"), **options) for rank in range(world)]
