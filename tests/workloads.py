"""Workloads on their own: some steps of one, and a function on several gloo ranks of this machine."""

from __future__ import annotations

import datetime
import functools
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Dict

import cloudpickle
import torch
import torch.distributed as dist

from flagbench_cases.contract import Context
from flagbench_cases.rank.device import CpuDevice
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import RankSpool

# What ranks import, some of it not installed everywhere; torch's optimizers import torch._dynamo when they are made.
LIBRARIES = [
    "torch._dynamo",
    "torch.distributed",
    "transformers.models.llama.modeling_llama",
    "accelerate",
    "peft",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.datasets.gpt_dataset",
]


def set_up(
    build: Callable[[Context], Any],
    config: Dict[str, Any],
    folder: Path,
    rank: int = 0,
    world: int = 1,
    weights: str | None = None,
) -> Any:
    """The workload of a rank on the processor, set up."""
    device = CpuDevice(rank)
    probe, spool = CollectiveProbe(device.clock), RankSpool(str(folder), rank)
    work = build(Context(config, device, rank, Layout(world), rank, probe, spool, None, weights))
    work.setup()
    return work


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


def on_ranks(world: int, folder: Path, body: Callable[[Path, int, int], Any]) -> list[Any]:
    """What `body(folder, rank, world)` returns on each of `world` ranks.

    The ranks are forked from a process that has run no test: what a test left in this one (a process group, threads,
    generators, a default type) does not reach them. AssertionError, with the traceback, where a rank fails.
    """
    folder.mkdir(exist_ok=True)
    function = body.func if isinstance(body, functools.partial) else body
    # Closures and functions of test modules, which another process cannot import by their name.
    module = sys.modules[function.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        pickled = cloudpickle.dumps(body)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    clean = multiprocessing.get_context("forkserver")
    clean.set_forkserver_preload(LIBRARIES)
    process = clean.Process(target=_start_ranks, args=(world, str(folder), pickled, dict(os.environ)))
    process.start()
    process.join()
    failure = folder / "failure.txt"
    assert process.exitcode == 0, failure.read_text() if failure.exists() else "exit code %s" % process.exitcode
    process.close()
    options = {"weights_only": False} if hasattr(torch, "compile") else {}
    return [torch.load(str(folder / f"result-{rank}.pt"), **options) for rank in range(world)]


def _start_ranks(world: int, folder: str, pickled: bytes, environment: Dict[str, str]) -> None:
    """In a clean process: fork the ranks and wait for them."""
    os.environ.clear()
    os.environ.update(environment)
    try:
        body = cloudpickle.loads(pickled)
        torch.multiprocessing.start_processes(_rank, (world, folder, body), nprocs=world, start_method="fork")
    except Exception:
        (Path(folder) / "failure.txt").write_text(traceback.format_exc())
        raise


def _rank(rank: int, world: int, folder: str, body: Callable[[Path, int, int], Any]) -> None:
    torch.set_num_threads(1)  # a forked process must not wake the thread pool of its parent
    os.environ.update(GLOO_SOCKET_IFNAME="lo", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    address, limit = f"file://{folder}/rendezvous", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world, timeout=limit)
    torch.save(body(Path(folder), rank, world), str(Path(folder) / f"result-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
