"""The release of torch, by which this package chooses between kernels and between interfaces of torch."""

from __future__ import annotations

import torch


def torch_release() -> tuple[int, ...]:
    """Return the major and minor version of torch, such as (2, 9)."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
