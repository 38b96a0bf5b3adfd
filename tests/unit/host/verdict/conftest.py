"""What the tests of the verdict share: a case, its claim, replayed records and edits of them.

Every file in replays/ is a whole record whose numbers are fixtures: made up, measured by nothing, and consistent with
their evidence (tests/make_replays.py). All but `cpu-tiny` differ in little, which their names tell.

`replay` gives them round numbers, which their evidence does not: a comparison is tested on what follows from numbers
once they are proved. A module that tests the proof says so by TESTED.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace

import flagbench.history.verdicts  # noqa: F401 - imported first, it keeps what the tests here replace
from catalogs import CATALOG
from flagbench.manifests.rows import Claim
from flagbench.records.model import Metric, Record, Work
from flagbench.records.read import read_record
from flagbench.verdict import VerifyResult, rules, verify_claim
from flagbench.verdict.result import Finding, MetricResult
from flagbench.verdict.rules import Needs
from flagbench.verdict.subject import Subject
from honest import CLAIMS, Pace, honest_record

Raw = dict[str, Any]
REPLAYS = Path(__file__).parent / "replays"
MEASURED = Path(__file__).parents[4] / "docs" / "measured"
"""Records of accelerators."""
ROWS = Path(__file__).parents[3] / "replay" / "records"
CASE = CATALOG.cases["distilbert"]
CLAIM = CATALOG.claims["distilbert/a100-1x8-fp32"]
"""The claim that BASE equals in every condition."""


_METHOD = {"n": 200, "ci_method": "within-run block bootstrap"}
ROUND = (
    Metric("e2e_time", 360.0, "s", "job"),
    Metric("p_whole", 1760.0, "samples/s", "job"),
    Metric("p_train", 1860.0, "samples/s", "job", ci95=(1850.0, 1870.0), **_METHOD),
    Metric("p_core", 1920.0, "samples/s", "job", ci95=(1910.0, 1930.0), **_METHOD),
    Metric("p_core_host", 1940.0, "samples/s", "job", ci95=(1930.0, 1950.0), **_METHOD),
    Metric("acc", 0.913, "fraction", "job"),
    Metric("loss", 0.21, "nats", "job"),
    Metric("mem_peak", 13.9, "GiB", "device"),
)
"""Numbers of a run that reproduces CLAIM."""
_OTHERS = {"cpu-tiny": (106.0, 101.0, 111.0), "a100-1x8-above": (2300.0, 2280.0, 2320.0)}
_OTHERS |= {"a100-1x8-below": (1510.0, 1490.0, 1530.0), "a100-1x8-inconclusive": (1880.0, 1810.0, 1950.0)}


def replay(name: str) -> Record:
    """A record of replays/ by name, with round numbers of p_core_host and all else that its run measured."""
    record = read_record(REPLAYS / f"{name}.json")
    value, *interval = _OTHERS.get(name, (1940.0, 1930.0, 1950.0))
    metrics = [replace(m, value=value, ci95=(*interval,)) if m.name == "p_core_host" else m for m in ROUND]
    quality = record.quality and replace(record.quality, losses=None, loss_curve=())
    work = Work("samples", 20, 640, 5120) if "partial" in name else None
    window = record.window if "unsteady" in name else None
    return replace(record, metrics=tuple(metrics), quality=quality, work=work, window=window, flops=None)


BASE = replay("a100-1x8")
"""A record of eight A100 that reproduces its claim."""


@pytest.fixture(autouse=True)
def _believed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is believed of a record, by the TESTED of a module: for "comparisons", the default, each number, and that
    its parts agree; for "records" nothing."""
    tested = getattr(request.module, "TESTED", "comparisons")
    if tested == "comparisons":
        for name in ("verify", "compare"):
            monkeypatch.setattr(import_module(f"flagbench.verdict.{name}"), "recompute", Subject)
        for name in ("rules", "compare"):
            monkeypatch.setattr(import_module(f"flagbench.verdict.{name}"), "check_record", _on_any_record)


def _on_any_record(subject: Subject) -> tuple[Finding, ...]:
    """What is found in the way that a run ended."""
    found = [
        (each.id, what) for each in rules.RULES.values() if each.needs is Needs.RECORD for what in each.find(subject)
    ]
    return tuple(Finding(rule, message, subject.record.record_id) for rule, message in found)


@cache
def _made(claim: str, steps: int | None, count: int, seed: int) -> str:
    return json.dumps(honest_record(CLAIMS[claim], Pace(noise=0.01, seed=seed), steps=steps, count=count))


def made(
    claim: str = CLAIM.id, steps: int | None = None, *, count: int = 130, run: str = "", seed: int = 0, **fields: Any
) -> Raw:
    """A consistent record that reproduces a claim, to be edited; `run`: of this id, on the day `seed`."""
    raw: Raw = json.loads(_made(claim, steps, count, seed))
    if run:
        raw.update(record_id=run, run_id=run, created_at=f"2026-02-{1 + seed:02}T12:00:00Z")
    return {**raw, **fields}


def read(raw: Raw) -> Record:
    """A document as a record."""
    return read_record(json.dumps(raw).encode())


def verified(*raws: Raw, claim: str = CLAIM.id) -> VerifyResult:
    """Documents held against a claim."""
    return held(*map(read, raws), claim=CATALOG.claims[claim])


def edit(
    record: Record = BASE,
    *,
    conditions: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Mapping[str, Any]] | None = None,
    without: tuple[str, ...] = (),
    **fields: Any,
) -> Record:
    """The record with other conditions, metrics and fields; `without` takes metrics out.

    With another id it is the record of another run, on another day.
    """
    edits = metrics or {}
    if "record_id" in fields:
        number = crc32(fields["record_id"].encode())
        created_at = f"2026-{1 + number % 10:02d}-{1 + number // 10 % 28:02d}T{number // 280 % 24:02d}:30:00Z"
        others = {name: part for name, part in record.raw.items() if name != "evidence"}
        other = {"run_id": fields["record_id"], "created_at": created_at, "raw": others}
        fields = {**other, **fields}
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
    """The records compared with a claim of their case."""
    return verify_claim(records, claim, CATALOG.cases[claim.case])


def line(result: VerifyResult, name: str) -> MetricResult:
    """The line of an expected metric."""
    return next(metric for metric in result.metrics if metric.name == name)
