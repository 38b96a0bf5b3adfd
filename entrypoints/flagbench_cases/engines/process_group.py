"""A process group of a single rank, for libraries that always need one."""

import torch.distributed as dist


def ensure_group(backend: str) -> None:
    """Create a single-rank group unless one exists. With several ranks it exists before a workload is built."""
    if not dist.is_initialized():
        # An in-process store opens no port.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
