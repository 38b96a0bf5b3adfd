"""Whether a record may be judged at all: how its run ended, its checks, its numbers, its digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from flagbench.catalog.model import Case
from flagbench.record.model import Metric, Record

MOST_CREDIT = 1.01
"""The publisher's count over the samples trained on, at most: SST-2's 67,349 sentences are credited as 67,584."""

# An interval of equal steps may miss its value in the last bits of a division.
_ROUNDING = 1e-9


def config_digest(config: Mapping[str, Any]) -> str:
    """`sha256:` and the digest of a configuration as canonical JSON: sorted keys, no spaces, UTF-8.

    Raises:
        ValueError: a number in it is not finite, which JSON cannot say.
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def problems(record: Record) -> tuple[str, ...]:
    """Everything that makes a record invalid, one clause each; empty where nothing does."""
    found = []
    if record.status.state != "ok":
        why = f": {record.status.reason}" if record.status.reason else ""
        found.append(f"the run ended as {record.status.state} in {record.status.phase}{why}")
    found += [f"check {c.name} failed: {c.detail}" for c in record.checks if not c.ok]
    found += _digest_problems(record)
    found += [f"metric {m.name} is not a finite number within its interval" for m in record.metrics if not _sound(m)]
    return tuple(found)


def gate_problem(record: Record, case: Case, names: Sequence[str]) -> str | None:
    """Why a record cannot answer the case's gate: it has none of the metrics, or no positive one."""
    gate = next((m for m in map(record.metric, names) if m is not None), None)
    if gate is None:
        return f"the gate metric {case.gate} was not measured"
    if gate.value <= 0:
        return f"the gate metric {gate.name} is {gate.value}, which is no speed"
    return None


def partial_batches(records: Sequence[Record], name: str) -> str | None:
    """Why the metric `name`, which credits every batch as full, says nothing: too many batches of a run were not."""
    for record in records:
        work = record.raw["work"] or {}
        credited, trained = work.get("samples_published_count", 0), work.get("samples_executed", 0)
        if credited > MOST_CREDIT * trained:
            return (
                f"record {record.record_id}: {name} credits full batches, {credited:,} samples in all, and the run "
                f"trained on {trained:,}; give a training set of at least a hundred steps"
            )
    return None


def _digest_problems(record: Record) -> list[str]:
    config = record.raw.get("config")
    if not isinstance(config, Mapping) or record.config_digest is None:
        return ["it has no resolved configuration"]
    try:
        digest = config_digest(config)
    except ValueError:
        return ["its configuration holds a number that is not finite"]
    if digest != record.config_digest:
        return [f"config_digest is {record.config_digest}, and its configuration gives {digest}"]
    return []


def _sound(metric: Metric) -> bool:
    low, high = metric.ci95 or (metric.value, metric.value)
    if not all(map(math.isfinite, (metric.value, low, high, metric.stdev or 0.0))):
        return False
    rounding = _ROUNDING * abs(metric.value)
    return low - rounding <= metric.value <= high + rounding
