"""What a configuration says: how long a run is, and which values a settable hyper-parameter may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flagbench.schema import value_fault

_KEYWORDS = {"choices": "enum", "exclusive_minimum": "exclusiveMinimum", "exclusive_maximum": "exclusiveMaximum"}
"""JSON Schema's names of what an entry of `settable` may say; the others are the same."""


def schedule(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section that says how long a run is: `train` or `infer`, as the kind of the case has it."""
    section: Mapping[str, Any] = config["train"] if "train" in config else config["infer"]
    return section


def setting_fault(spec: Mapping[str, Any], value: Any) -> str | None:
    """Why `value` is not allowed by `spec`, an entry of a case's `settable`; None where it is."""
    return value_fault({_KEYWORDS.get(name, name): limit for name, limit in spec.items()}, value)
