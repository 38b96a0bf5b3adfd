"""Configurations on the host: core's errors, missing keys, and the conditions of the reference preset."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case
from flagbench_core.config import ConfigError, schedule


@contextmanager
def config_errors() -> Iterator[None]:
    """Raise core's ConfigError as FlagbenchError (usage)."""
    try:
        yield
    except ConfigError as error:
        raise FlagbenchError(error.message, remedy=error.remedy) from None


def completed(config: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, with the keys that it lacks from a preset.

    Where one has a section and the other a value, the preset's is taken: so every section of the preset is one.
    """
    complete = copy.deepcopy({**preset, **config})
    for key, in_preset in preset.items():
        in_config = complete[key]
        if isinstance(in_preset, Mapping) and isinstance(in_config, Mapping):
            complete[key] = completed(in_config, in_preset)
        elif isinstance(in_preset, Mapping) is not isinstance(in_config, Mapping):
            complete[key] = copy.deepcopy(in_preset)
    return complete


def reference_conditions(case: Case) -> dict[str, Any]:
    """The sequence length and the batch of the reference preset, by the names of conditions; None if it has none.

    A case that splits a batch calls its condition `batch_size` what the preset calls `micro_batch_size`.
    """
    preset = case.presets["reference"]
    work = schedule(preset)
    batch = work.get("batch_size")
    accumulated = work.get("gradient_accumulation_steps")
    if "micro_batch_size" in work:
        batch = work["micro_batch_size"]
        accumulated = work["batch_size"] // batch
    return {
        "sequence_length": preset["data"].get("sequence_length"),
        "batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }
