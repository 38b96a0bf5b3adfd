"""What tests of GLM share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def no_group_stays() -> Iterator[None]:
    """A workload on one rank starts a process group in this process; ranks that are forked from it need their own."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
