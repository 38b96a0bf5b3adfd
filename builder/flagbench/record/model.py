"""A record as typed data. Unknown fields are kept in `raw` and ignored otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """One measured value. `ci95` is the 95 % interval (low, high), where the run gives one."""

    name: str
    value: float
    unit: str
    scope: str
    n: int | None
    stdev: float | None
    ci95: tuple[float, float] | None
    ci_method: str | None
    note: str | None


@dataclass(frozen=True)
class Check:
    """One sanity check of a run."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Status:
    """How a run ended: `state` is ok, failed or interrupted; `phase` is where."""

    state: str
    phase: str
    reason: str | None
    remedy: str | None
    exit_code: int


@dataclass(frozen=True)
class Record:
    """What one run printed: `record/v1`."""

    record_id: str
    run_id: str
    created_at: str
    case: str
    stack: str
    preset: str
    division: str
    config_digest: str | None
    conditions: Mapping[str, str | int | float | bool | None]
    metrics: tuple[Metric, ...]
    checks: tuple[Check, ...]
    status: Status
    raw: Mapping[str, Any]

    def metric(self, name: str) -> Metric | None:
        """A measured metric by name, or None if it was not measured."""
        return next((m for m in self.metrics if m.name == name), None)
