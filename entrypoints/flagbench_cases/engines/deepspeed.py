"""Training through DeepSpeed.

DeepSpeed compiles extensions when it likes to, writes to stdout, and starts process groups of its own: none of that
happens here. It is imported where it is needed.
"""

import contextlib
import copy
import importlib
import logging
import os
import sys
from typing import Any, Dict, List

import torch

from flagbench_cases.contract import Context
from flagbench_cases.engines.process_group import ensure_group
from flagbench_cases.shared.errors import UsageError

# Extensions that it would compile for the processor the first time, for a minute, behind a lock that a killed run
# leaves behind.
COMPILED = "deepspeed_shm_comm"


def load(device: torch.device) -> Any:
    """deepspeed, imported with its log on stderr and nothing left for it to compile."""
    # Else it tries out what there is.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its logger keeps the stream that it finds
            deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise UsageError(
            "DeepSpeed cannot be imported here (%s)" % error, "choose another engine, or a stack with DeepSpeed"
        ) from error
    for handler in logging.getLogger("DeepSpeed").handlers:  # and where something else imported it before
        handler.setStream(sys.stderr)  # type: ignore[attr-defined]
    deepspeed.ops.__compatible_ops__[COMPILED] = False
    return deepspeed


def version(device: torch.device) -> str:
    """The version of DeepSpeed."""
    return str(load(device).__version__)


def initialize(
    context: Context,
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    parameters: List[torch.nn.Parameter],
    ds_config: Dict[str, Any],
) -> Any:
    """DeepSpeed's engine over `module`, which trains `parameters` with `optimizer` by the given ds_config.json.

    The probe watches the same parameters, which stand in the order of the forward pass.
    """
    library = load(context.device.torch)
    ensure_group(context.device.backend)  # for a single rank DeepSpeed would open a port
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
