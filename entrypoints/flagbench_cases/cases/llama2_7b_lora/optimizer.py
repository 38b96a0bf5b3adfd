"""The loss, AdamW and the loss scaler of both engines."""

from __future__ import annotations

import inspect
from typing import Any

import torch

OPTIMIZER = "AdamW(betas=0.9/0.999, eps=1e-08, weight_decay=%g)"
"""The `optimizer` condition; betas and epsilon are torch's defaults."""


def loss_of(network: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss over a batch, nats per token, in fp32."""
    return network(**batch).loss


def has_fused_adamw() -> bool:
    """Return whether this torch has the fused AdamW (torch 2.0)."""
    return "fused" in inspect.signature(torch.optim.AdamW).parameters


def adamw(parameters: list[torch.nn.Parameter], train: dict[str, Any], fused: bool) -> torch.optim.AdamW:
    """Return the published AdamW: fused for fp16, else updating one parameter at a time.

    fused=False, as passed by the publisher, also disables the multi-tensor path, which is off by default on torch
    1.12.
    """
    options: dict[str, Any] = {"fused": fused} if has_fused_adamw() else {}
    return torch.optim.AdamW(parameters, lr=train["learning_rate"], weight_decay=train["weight_decay"], **options)


def loss_scaler(device: torch.device) -> Any:
    """Return torch's GradScaler with its defaults, as published."""
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type)
    return torch.cuda.amp.GradScaler()
