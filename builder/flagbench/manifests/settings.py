"""Configurations of runs on the host: translates core's errors, fills in missing keys, reads the reference preset.

A configuration is the preset of a case, resolved with the options of a run by flagbench_core.
"""

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
    """Turn core's ConfigError into FlagbenchError (USAGE)."""
    try:
        yield
    except ConfigError as error:
        raise FlagbenchError(error.message, remedy=error.remedy) from None


def can_be_split(case: Case) -> bool:
    """Whether the case's first engine splits a model, and the model is one whose memory can be predicted."""
    engine = next(iter(case.engines.values()))
    model = case.presets["reference"].get("model", {})
    splits_model = "tp" in engine.layout or "pp" in engine.layout
    return splits_model and "vocab_multiple" in model


def completed(config: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the keys that it lacks, which are taken from a preset.

    If a key is a section in one and a value in the other, the preset's is taken, so that a caller can rely on the
    sections of the preset.
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
    """Read the sequence length and the batch of the reference preset, by the names of conditions.

    A value is None if the preset does not set it. If a case splits its batches, its condition `batch_size` is the
    preset's `micro_batch_size`.
    """
    preset = case.presets["reference"]
    section = schedule(preset)
    batch_size = section.get("batch_size")
    accumulation_steps = section.get("gradient_accumulation_steps")
    if "micro_batch_size" in section:
        batch_size = section["micro_batch_size"]
        accumulation_steps = section["batch_size"] // batch_size
    return {
        "sequence_length": preset["data"].get("sequence_length"),
        "batch_size": batch_size,
        "gradient_accumulation_steps": accumulation_steps,
    }
