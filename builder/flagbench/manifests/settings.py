"""What a configuration says: the presets, how long a run is, which values a settable hyper-parameter may have."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from flagbench.manifests.model import Case
from flagbench.schema import value_fault
from flagbench_core.evidence.section import kind_of

_KEYWORDS = {"choices": "enum", "exclusive_minimum": "exclusiveMinimum", "exclusive_maximum": "exclusiveMaximum"}
"""JSON Schema's names of what an entry of `settable` may say; the others are the same."""


def schedule(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section that says how long a run is, named as the kind of the case."""
    section: Mapping[str, Any] = config[kind_of(config)]
    return section


def preset_of(case: Case, preset: str) -> dict[str, Any]:
    """A preset with what it does not change of `reference`, as shared/config.py of the image side makes it."""
    return _overlaid(case.presets["reference"], {} if preset == "reference" else case.presets[preset])


def with_settings(case: Case, preset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A preset with the values of `settings`, which are by the names in the case's `settable`."""
    config = preset_of(case, preset)
    for name, value in settings.items():
        *sections, key = case.settable[name]["path"].split(".")
        section = config
        for part in sections:
            section = section[part]
        section[key] = value
    return config


def _overlaid(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(dict(base))
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = _overlaid(found[key], value) if both else copy.deepcopy(value)
    return found


def completed(config: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, with what it lacks as a preset has it; a section stays one, and a value does."""
    found = copy.deepcopy({**preset, **config})
    for key, known in preset.items():
        own = found[key]
        if isinstance(known, Mapping) and isinstance(own, Mapping):
            found[key] = completed(own, known)
        elif isinstance(known, Mapping) is not isinstance(own, Mapping):
            found[key] = copy.deepcopy(known)
    return found


def reference_conditions(case: Case) -> dict[str, Any]:
    """The sequence length and the batch of the reference preset, by the names of conditions; None for what it lacks.

    A case that splits a batch calls its condition `batch_size` what the preset calls `micro_batch_size`.
    """
    preset = case.presets["reference"]
    work = schedule(preset)
    batch, accumulated = work.get("batch_size"), work.get("gradient_accumulation_steps")
    if "micro_batch_size" in work:
        batch = work["micro_batch_size"]
        accumulated = work["batch_size"] // batch
    return {
        "sequence_length": preset["data"].get("sequence_length"),
        "batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }


def setting_fault(spec: Mapping[str, Any], value: Any) -> str | None:
    """Why `value` is not allowed by `spec`, an entry of a case's `settable`; None where it is."""
    if spec["type"] == "integer" and isinstance(value, float):  # JSON Schema takes 8.0 for an integer
        return f"expected integer, got number {value}"
    return value_fault({_KEYWORDS.get(name, name): limit for name, limit in spec.items()}, value)
