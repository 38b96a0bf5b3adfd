"""A process group of one rank, for code that communicates even where it is alone."""

import torch.distributed as dist


def ensure_group(backend: str) -> None:
    """Start a group of this rank alone where there is none: several ranks are in theirs before a workload is made."""
    if not dist.is_initialized():
        # The store is this process's own: no port is opened.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
