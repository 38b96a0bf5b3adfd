"""Whether torch multiplies matrices in fp16 on a processor, which torch 1.12 does not."""

import pytest
import torch


def _multiplied() -> bool:
    one = torch.ones(1, 1, dtype=torch.float16)
    try:
        torch.matmul(one, one)
    except RuntimeError:
        return False
    return True


HALF = _multiplied()
needs_half = pytest.mark.skipif(not HALF, reason="this torch multiplies no matrices in fp16 on a processor")
