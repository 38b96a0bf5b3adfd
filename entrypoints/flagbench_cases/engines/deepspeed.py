"""Training through DeepSpeed.

DeepSpeed compiles extensions on demand, writes to stdout and creates its own process groups; all of this is prevented
here. It is imported on first use.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import os
import sys
from typing import Any

import torch

from flagbench_cases.contract import Context
from flagbench_cases.engines.groups import ensure_group
from flagbench_cases.shared.errors import UsageError

# A CPU extension that DeepSpeed would compile on first use, which takes a minute and leaves a stale lock behind if
# the run is killed.
COMPILED_OPERATOR = "deepspeed_shm_comm"


def load(device: torch.device) -> Any:
    """Import deepspeed with its log on stderr and without compiling extensions."""
    # Without this it probes for accelerators.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its logger keeps the stream present at import
            deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise UsageError(
            f"DeepSpeed cannot be imported ({error})", "choose another engine, or a stack that includes DeepSpeed"
        ) from error
    for handler in logging.getLogger("DeepSpeed").handlers:  # if it was imported before
        handler.setStream(sys.stderr)  # type: ignore[attr-defined]
    deepspeed.ops.__compatible_ops__[COMPILED_OPERATOR] = False
    return deepspeed


def version(device: torch.device) -> str:
    """The version of DeepSpeed."""
    return str(load(device).__version__)


def initialize(
    context: Context,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    ds_config: dict[str, Any],
) -> Any:
    """DeepSpeed's engine for `module`, training `parameters` with `optimizer` as configured by `ds_config`.

    The probe hooks the same parameters, which must be in the order of the forward pass.
    """
    library = load(context.device.torch_device)
    ensure_group(context.device.backend)  # DeepSpeed would open a port for a single rank
    if context.layout.dp > 1:
        context.probe.attach(parameters)
    with contextlib.redirect_stdout(sys.stderr):
        return library.initialize(
            model=module,
            optimizer=optimizer,
            model_parameters=parameters,
            config=copy.deepcopy(ds_config),
            dist_init_required=False,
        )[0]
