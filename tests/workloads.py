"""Workloads on their own: some steps of one, and a function on several gloo ranks of this machine.

    python -m workloads FOLDER WORLD

starts the ranks of `on_ranks`.
"""

from __future__ import annotations

import datetime
import functools
import os
import subprocess
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
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import RankSpool
from warmup import warm

BODY = "body.pickle"


def set_up(
    build: Callable[[Context], Any],
    config: Dict[str, Any],
    folder: Path,
    rank: int = 0,
    world: int = 1,
    weights: str | None = None,
) -> Any:
    """The workload of a rank on the processor, set up."""
    device = CpuDevice()
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
            work.context.probe.take_gradients()
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
        (folder / BODY).write_bytes(cloudpickle.dumps(body))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    env = dict(os.environ, **warm(os.pathsep.join(path for path in sys.path if path)))
    code = subprocess.run([sys.executable, "-m", "workloads", str(folder), str(world)], env=env).returncode
    failure = folder / "failure.txt"
    assert code == 0, failure.read_text() if failure.exists() else "exit code %s" % code
    options = {"weights_only": False} if hasattr(torch, "compile") else {}
    return [torch.load(str(folder / f"result-{rank}.pt"), **options) for rank in range(world)]


def main(folder: Path, world: int) -> int:
    """Fork the ranks and wait for them."""
    try:
        body = cloudpickle.loads((folder / BODY).read_bytes())
        torch.multiprocessing.start_processes(_rank, (world, folder, body), nprocs=world, start_method="fork")
    except Exception:
        (folder / "failure.txt").write_text(traceback.format_exc())
        return 1
    return 0


def _rank(rank: int, world: int, folder: Path, body: Callable[[Path, int, int], Any]) -> None:
    torch.set_num_threads(1)  # a forked process must not wake the thread pool of its parent
    os.environ.update(GLOO_SOCKET_IFNAME="lo", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    address, limit = f"file://{folder}/rendezvous", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world, timeout=limit)
    torch.save(body(folder, rank, world), str(folder / f"result-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
