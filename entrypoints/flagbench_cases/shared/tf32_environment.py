"""Sets environment variables that determine whether torch uses TF32 for fp32, before torch is imported.

On torch 1.12 and 1.13 TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which NGC images set, takes precedence over switches in code;
from torch 2 on, code takes precedence.
"""

from __future__ import annotations

from typing import MutableMapping

OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""The variable by which torch switches TF32 on."""
DRIVER_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""The variable that NVIDIA's libraries read: 0 switches TF32 off, whatever torch's switches say."""


def prepare_environment(env: MutableMapping[str, str], precision: str) -> None:
    """Set or unset both variables in `env`, for processes that have not imported torch yet."""
    env.pop(DRIVER_OVERRIDE, None)
    if precision == "tf32":
        env[OVERRIDE] = "1"
    else:
        env.pop(OVERRIDE, None)
