"""Schema-valid manifest data turned into Case, Stack and Claim: their fields are the manifests' keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from flagbench.catalog.model import Case, Claim, ClaimMetric, Stack

Raw = Mapping[str, Any]


def build_case(raw: Raw, path: Path) -> Case:
    """A Case from its manifest's data, the groups in `depends_on` expanded to condition names."""
    groups = raw["condition_groups"]
    metrics = [
        {**metric, "depends_on": [condition for group in metric["depends_on"] for condition in groups[group]]}
        for metric in raw["metrics"]
    ]
    formula = raw["flops"].get("published")
    values = {**raw, "metrics": metrics, "published_formula": formula, "raw": raw, "path": path}
    return msgspec.convert(values, Case)


def build_stack(raw: Raw, path: Path, cases: Mapping[str, Case]) -> Stack:
    """A Stack from its manifest's data; it runs every case of `cases` that neither side refuses."""
    base, device, docker = raw["base"], raw["device"], raw["docker"]
    runs = [
        name
        for name, case in sorted(cases.items())
        if name not in raw["does_not_run"] and raw["name"] not in case.does_not_run
    ]
    values = {
        **raw,
        "base_image": base["image"],
        "base_obtain": base["obtain"],
        "device_kind": device["kind"],
        "visibility_variable": device["visibility_variable"],
        "docker": {**docker, **{f"multi_node_{key}": needs for key, needs in docker["multi_node"].items()}},
        "runs": runs,
        "raw": raw,
        "path": path,
    }
    return msgspec.convert(values, Stack)


def build_claims(raw: Raw, path: Path) -> tuple[Claim, ...]:
    """The claims of one file, in its order; they share its case, and its source where it has only one."""
    return tuple(_claim(claim, raw, path) for claim in raw["claims"])


def _claim(claim: Raw, file: Raw, path: Path) -> Claim:
    sources = file.get("sources", {})
    # Every field is given, in its order: `flagbench list --json` prints them.
    metrics = [
        {**dict.fromkeys(ClaimMetric.__annotations__), **metric, "source": sources.get(metric.get("source"))}
        for metric in claim["metrics"]
    ]
    values = {
        **claim,
        "case": file["case"],
        **{f"precision_{key}": value for key, value in claim["precision"].items()},
        "metrics": metrics,
        "source": file.get("source") or sources[claim["source"]],
        "path": path,
    }
    return msgspec.convert(values, Claim)
