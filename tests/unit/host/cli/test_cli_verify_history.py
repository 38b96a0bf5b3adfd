"""The spread between the earlier runs of a store is what a verdict on few runs rests on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.history.priors import store_priors
from flagbench.records.read import read_record
from flagbench.records.store import Store
from flagbench.verdict.stats.between import DEFAULT, SESSION_SPREAD, Prior
from forging import consistent
from honest import CLAIMS, Pace, honest_record
from unit.host.conftest import Flagbench

Edit = Callable[[dict[str, Any]], object]

CLAIM = CLAIMS["distilbert/a100-1x8-fp32"]
RUNS = ((1, 0.98), (2, 0.99), (3, 1.0), (4, 1.01), (5, 1.02))


def put(store: Store, number: int, factor: float = 1.0, edit: Edit = lambda raw: None, **changes: Any) -> None:
    """Store a run of one configuration at another speed; its verdict is not asked for."""
    name = f"2026010{number}T120000Z-run"
    made = {"record_id": name, "run_id": name, "created_at": f"2026-01-0{number}T12:00:00Z", **changes}
    record = honest_record(CLAIM, Pace(slower=1 / factor, seed=number), **made)
    edit(record)
    store.put(json.dumps(record).encode())


@pytest.fixture
def prior(store: Store) -> Callable[[], Prior]:
    """What is known of the gate's spread, of the record that was stored last."""
    put(store, 9)

    def known() -> Prior:
        record = read_record(store.read(next(iter(store.list_records()))))
        return store_priors(store, [record], [record]).get("p_core", DEFAULT)

    return known


def test_earlier_runs_of_the_same_configuration_count(prior: Any, store: Store) -> None:
    for number, factor in RUNS:
        put(store, number, factor)
    put(store, 6, 0.5, config_digest="sha256:" + "0" * 64)
    put(store, 7, 0.5, status={"state": "failed", "phase": "train", "reason": "stopped", "exit_code": 4})
    put(store, 8, 0.5, run_id="20260109T120000Z-run")  # another copy of the run that is verified
    # One a day: their spread, 1.6 %, is that of runs and of sessions.
    found = prior()
    assert (round(found.spread, 3), found.df) == (0.016, 4)
    assert (round(found.session.spread, 3), found.session.df) == (0.016, 4)


def test_runs_under_another_name_of_their_stack_count(prior: Any, store: Store) -> None:
    for number, factor in RUNS:
        put(store, number, factor, stack="a100")
    assert prior().df == 4


def test_earlier_runs_of_one_session_say_nothing_of_others(prior: Any, store: Store) -> None:
    for number, factor in RUNS:
        put(store, number, factor, created_at=f"2026-01-01T12:{10 * number}:00Z")
    found = prior()
    assert (round(found.spread, 3), found.df, found.session) == (0.016, 4, SESSION_SPREAD)


def test_sessions_of_another_machine_are_not_its_own(prior: Any, store: Store) -> None:
    def elsewhere(raw: dict[str, Any]) -> None:
        for device in [*raw["system"]["devices"], *raw["ranks"]]:
            device["uuid"] = f"GPU-elsewhere-{device.get('index', device.get('rank'))}"

    for number, factor in RUNS:
        put(store, number, factor, elsewhere)
    assert prior() == DEFAULT


def _doctored(raw: dict[str, Any]) -> None:
    for metric in raw["metrics"]:
        metric["value"] *= 1.001


@pytest.mark.parametrize("edit", [_doctored, lambda raw: (raw.pop("evidence"), raw.pop("evidence_digest"))])
def test_a_run_whose_numbers_are_not_proved_is_no_history(prior: Any, store: Store, edit: Edit) -> None:
    for number in (1, 2, 3):
        put(store, number, edit=edit)
    for number in (4, 5, 6, 7):
        put(store, number)
    assert prior() == DEFAULT
    put(store, 8)
    assert prior().df == 4


def test_copies_of_a_run_with_other_ids_are_no_further_runs(prior: Any, store: Store) -> None:
    for number in range(1, 8):

        def copied(raw: dict[str, Any], number: int = number) -> None:
            made = honest_record(CLAIM, Pace(slower=1.0, seed=1))
            made["evidence"]["memory"]["peak"][0] += number
            kept = {name: raw[name] for name in ("record_id", "run_id", "created_at")}
            raw.update({**consistent(made), **kept})

        put(store, number, edit=copied)
    assert prior() == DEFAULT


def test_a_file_is_verified_without_a_store(prior: Any, flagbench: Flagbench, store: Store, tmp_path: Path) -> None:
    for number, factor in RUNS:
        put(store, number, factor)
    (tmp_path / "last.json").write_bytes(store.read(next(iter(store.list_records()))))

    def interval(name: str) -> list[float]:
        verdict = json.loads(flagbench("verify --json", name).out)
        return [float(end) for m in verdict["metrics"] if m["name"] == "p_core" for end in m["measured"]["ci95"]]

    assert interval("last") != interval(str(tmp_path / "last.json"))
