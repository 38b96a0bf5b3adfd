"""What the tests of the verdict share: a case, its claim, replayed records and edits of them.

Every file in replays/ is a whole record whose numbers are fixtures: made up, measured by nothing. All but `cpu-tiny`
are BASE with few changes, which their names tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.catalog.model import Claim
from flagbench.record.model import Record
from flagbench.record.read import read_record
from flagbench.verify import VerifyResult, verify_claim
from flagbench.verify.result import MetricResult

REPLAYS = Path(__file__).parent / "replays"
ROWS = Path(__file__).parents[3] / "replay" / "records"
MANIFESTS = Path(__file__).parents[4] / "manifests"
CASE = CATALOG.cases["distilbert"]
CLAIM = CATALOG.claims["distilbert/a100-1x8-fp32"]
"""The claim that BASE equals in every condition."""


def replay(name: str) -> Record:
    """A record of replays/ by name."""
    return read_record(REPLAYS / f"{name}.json")


BASE = replay("a100-1x8")
"""A record of eight A100 that reproduces its claim."""


def edit(
    record: Record = BASE,
    *,
    conditions: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Mapping[str, Any]] | None = None,
    without: tuple[str, ...] = (),
    **fields: Any,
) -> Record:
    """The record with other conditions, metrics and fields; `without` takes metrics out."""
    edits = metrics or {}
    return replace(
        record,
        conditions={**record.conditions, **(conditions or {})},
        metrics=tuple(replace(m, **edits.get(m.name, {})) for m in record.metrics if m.name not in without),
        **fields,
    )


def runs(*values: float, ci95: Callable[[float], tuple[float, float] | None] = lambda value: None) -> list[Record]:
    """Runs of BASE that differ in p_core_host only; `ci95` maps a value to its interval."""
    return [
        edit(record_id=f"fixture-run-{index}", metrics={"p_core_host": {"value": value, "ci95": ci95(value)}})
        for index, value in enumerate(values)
    ]


def held(*records: Record, claim: Claim = CLAIM) -> VerifyResult:
    """The records held against a claim of their case."""
    return verify_claim(records, claim, CATALOG.cases[claim.case])


def line(result: VerifyResult, name: str) -> MetricResult:
    """The line of an expected metric."""
    return next(metric for metric in result.metrics if metric.name == name)
