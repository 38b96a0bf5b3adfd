"""Models that are split over ranks, by Megatron-Core: tensor, pipeline and data parallelism.

`open_engine` chooses the module for the installed release, `mcore` for current ones. `shape` says what is computed,
`parts` which part of each tensor a rank holds.
"""

import importlib
from typing import Any

from flagbench_cases.shared.errors import UsageError


def open_engine() -> Any:
    """The module for the installed release. Raises UsageError if Megatron-Core is missing or does not run here."""
    try:
        return importlib.import_module("flagbench_cases.engines.megatron.mcore")
    except ImportError as error:
        raise UsageError(
            "this case requires Megatron-Core, which cannot be imported (%s)" % error,
            "use an image of the case, or pip install megatron-core==0.16.1",
        ) from error
