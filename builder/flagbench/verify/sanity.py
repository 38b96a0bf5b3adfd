"""Whether a record is valid: how its run ended, its checks, its numbers, its digest."""

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

CLOCK_DRIFT = 1e-4
"""Of a device's clock against the host's, at most."""

# An interval of equal steps may miss its value in the last bits of a division.
_ROUNDING = 1e-9


def config_digest(config: Mapping[str, Any]) -> str:
    """`sha256:` and the digest of a configuration as canonical JSON: sorted keys, no spaces, UTF-8.

    Raises:
        ValueError: a number in it is not finite, which JSON cannot express.
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
    found += _order_problems(record)
    return tuple(found)


def gate_problem(record: Record, case: Case, names: Sequence[str]) -> str | None:
    """Why a record cannot answer the case's gate: it has none of the metrics, or no positive one."""
    gate = next((m for m in map(record.metric, names) if m is not None), None)
    if gate is None:
        return f"the gate metric {case.gate} was not measured"
    if gate.value <= 0:
        return f"the gate metric {gate.name} is {gate.value}, which is not a speed"
    return None


def partial_batches(records: Sequence[Record], name: str) -> str | None:
    """Why the metric `name`, which counts every batch as full, is meaningless: too many batches of a run were not."""
    for record in records:
        work = record.raw["work"] or {}
        credited, trained = work.get("samples_published_count", 0), work.get("samples_executed", 0)
        if credited > MOST_CREDIT * trained:
            return (
                f"record {record.record_id}: {name} credits full batches, {credited:,} samples in all, and the run "
                f"trained on {trained:,}; give a training set of at least a hundred steps"
            )
    return None


def _order_problems(record: Record) -> list[str]:
    """Where p_core >= p_train >= p_whole is violated by more than one step; empty if it holds or cannot be checked.

    p_core is over the window. So is p_train, but in a whole run, where it is over all steps: these take at least as
    long as the window's, and did as much more as the record counts.
    """
    window, work = record.raw.get("window") or {}, record.raw.get("work") or {}
    core, train, whole = (record.metric(name) for name in ("p_core", "p_train", "p_whole"))
    found = []
    host = window.get("host_seconds")
    if host is not None and window["steps"] and window["seconds"] > host * _one_step(window["steps"]):
        found.append(f"the window's device time of {window['seconds']} s is longer than the {host} s it took")
    if core and train and core.n and train.n:
        more = 1.0
        if core.n != train.n:
            more = work.get("samples_executed", math.inf) / (window.get("samples") or 1)
        if train.value > core.value * more * _one_step(core.n):
            found.append(f"p_train is {train.value}, which is faster than p_core, {core.value}")
    if train and whole and train.n and whole.value > train.value * _one_step(train.n):
        found.append(f"p_whole is {whole.value}, which is faster than p_train, {train.value}")
    return found


def _one_step(steps: int) -> float:
    """The share by which a time of so many steps may differ: one step, and a device's clock from the host's."""
    return 1 + 1 / steps + CLOCK_DRIFT


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
