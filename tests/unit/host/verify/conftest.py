"""What the tests of the verdict share: the case, its claim, replayed records and edits of them.

Every file in replays/ is a whole record whose numbers are fixtures: made up, measured by nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Case, Catalog, Claim
from flagbench.record.model import Record
from flagbench.record.read import read_record

MANIFESTS = Path(__file__).parents[4] / "manifests"
REPLAYS = Path(__file__).parent / "replays"

Edit = Callable[..., Record]


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(MANIFESTS)


@pytest.fixture(scope="session")
def case(catalog: Catalog) -> Case:
    return catalog.cases["distilbert"]


@pytest.fixture(scope="session")
def claim(catalog: Catalog) -> Claim:
    """The claim that the replay a100-1x8 equals in every condition."""
    return catalog.claims["distilbert/a100-1x8-fp32"]


@pytest.fixture(scope="session")
def replay() -> Callable[[str], Record]:
    """Reads a record of replays/ by name."""
    return lambda name: read_record(REPLAYS / f"{name}.json")


@pytest.fixture(scope="session")
def base(replay: Callable[[str], Record]) -> Record:
    """A record of eight A100 that reproduces its claim."""
    return replay("a100-1x8")


@pytest.fixture(scope="session")
def edit() -> Edit:
    """Changes conditions and metrics of a record; `without` takes metrics out."""

    def change(
        record: Record,
        *,
        conditions: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Mapping[str, Any]] | None = None,
        without: tuple[str, ...] = (),
        **fields: Any,
    ) -> Record:
        edits = metrics or {}
        return replace(
            record,
            conditions={**record.conditions, **(conditions or {})},
            metrics=tuple(replace(m, **edits.get(m.name, {})) for m in record.metrics if m.name not in without),
            **fields,
        )

    return change


@pytest.fixture(scope="session")
def runs(base: Record, edit: Edit) -> Callable[..., list[Record]]:
    """Runs of the base record that differ in p_core_host only; `ci95` maps a value to its interval."""

    def make(*values: float, ci95: Callable[[float], tuple[float, float] | None] = lambda v: None) -> list[Record]:
        return [
            edit(base, record_id=f"fixture-run-{i}", metrics={"p_core_host": {"value": v, "ci95": ci95(v)}})
            for i, v in enumerate(values)
        ]

    return make
