"""What a configuration says: how long a run is, and which values a settable hyper-parameter may have."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from flagbench.schema import type_name

_BOUNDS = {
    "minimum": (operator.ge, "at least"),
    "exclusive_minimum": (operator.gt, "greater than"),
    "maximum": (operator.le, "at most"),
    "exclusive_maximum": (operator.lt, "less than"),
}


def schedule(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section that says how long a run is: `train` or `infer`, as the kind of the case has it."""
    section: Mapping[str, Any] = config["train"] if "train" in config else config["infer"]
    return section


def setting_fault(spec: Mapping[str, Any], value: Any) -> str | None:
    """Why `value` is not allowed by `spec`, an entry of a case's `settable`; None where it is."""
    kind = type_name(value)
    if kind != spec["type"] and not (spec["type"] == "number" and kind == "integer"):
        return f"expected {spec['type']}, got {kind} {value!r}"
    if "choices" in spec and value not in spec["choices"]:
        return f"{value!r} is not allowed; allowed: {', '.join(map(str, spec['choices']))}"
    for bound, (within, words) in _BOUNDS.items():
        if bound in spec and not within(value, spec[bound]):
            return f"{value!r} must be {words} {spec[bound]}"
    return None
