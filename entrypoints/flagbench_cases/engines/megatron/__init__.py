"""Models that are split over ranks, by Megatron-Core: tensor, pipeline and data parallelism.

`open_engine` chooses the module for the installed release: `mcore` for 0.16, `mcore_legacy` for 0.8. `shape` says
what is computed, `parts` which part of each tensor a rank holds, `common` what both modules share.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from flagbench_cases.shared.errors import UsageError

MODULES = {"0.16": "mcore", "0.8": "mcore_legacy"}
FLOORS = "Megatron-Core 0.16 requires torch 2.6 and Python 3.10, 0.8 torch 1.12 and Python 3.8"
REMEDY = "use an image of the case, or pip install megatron-core==0.16.1. " + FLOORS


def open_engine() -> Any:
    """The module for the installed release. Raises UsageError if Megatron-Core is missing or does not run here."""
    try:
        version = importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("this case requires Megatron-Core, which is not installed", REMEDY) from None
    name = MODULES.get(".".join(version.split(".")[:2]))
    if name is None:
        raise UsageError(f"this case does not run with Megatron-Core {version}", REMEDY)
    try:
        return importlib.import_module("flagbench_cases.engines.megatron." + name)
    except ImportError as error:
        raise UsageError(f"Megatron-Core {version} cannot be imported ({error})", REMEDY) from error
