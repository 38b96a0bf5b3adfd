"""What a row is run as, what disturbs it, and when a verdict at a look counts."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.records import bundle_documents
from flagbench.records.bundle_documents import differing_paths
from flagbench.records.runs_and_series import SeriesSummary
from flagbench.runs.reproduce import bundle_files, log
from flagbench.runs.reproduce.budget import LimitOptions
from flagbench.runs.reproduce.nearest import nearest_claims
from flagbench.runs.reproduce.plan import PlanOptions, plan_of
from flagbench.verdict.series import look_level
from flagbench.verdict.stats.between import LEVEL
from flagbench.verdict.stats.looks import LOOKS, look_levels


@pytest.mark.parametrize("name", CATALOG.claims)
def test_every_row_has_a_plan(name: str) -> None:
    claim = CATALOG.claims[name]
    tiny = plan_of(claim, CATALOG, "cpu", PlanOptions(preset="tiny"))
    assert (tiny.request.options.nodes, tiny.request.options.gpus) == (1, claim.run.gpus)
    assert tiny.request.options.set_ == ()
    assert not claim.run.set or any("settings" in text for text in tiny.differs)
    if claim.stack is None:
        return
    own = plan_of(claim, CATALOG, None, PlanOptions())
    assert (own.differs, own.request.stack.name) == ((), claim.stack)
    assert [word.partition("=")[0] for word in own.request.options.set_] == [*claim.run.set]
    assert own.request.options.precision == claim.run.precision
    assert own.request.options.seed == (None if "seed" in own.unpublished else claim.conditions.get("seed"))
    assert plan_of(claim, CATALOG, None, PlanOptions(full=True, name="mine")).request.options.seed is None


def test_a_row_of_a_processor_has_its_own_preset() -> None:
    claim = CATALOG.claims["distilbert/a100-1x1-fp32-bs96"]
    run = dataclasses.replace(claim.run, preset="tiny", precision="fp32", set={})
    of_processor = dataclasses.replace(claim, stack="cpu", run=run)
    plan = plan_of(of_processor, CATALOG, None, PlanOptions())
    assert (plan.request.options.preset, plan.comparable, plan.differs) == ("tiny", True, ())
    assert plan_of(of_processor, CATALOG, None, PlanOptions(preset="reference")).differs


def test_the_case_chooses_the_layout_for_other_devices() -> None:
    claim = CATALOG.claims["llama2-70b/h800-4x8-amp-tp8-pp4"]
    plan = plan_of(claim, CATALOG, "a100-cuda11.8", PlanOptions(gpus=4))
    names = {word.partition("=")[0] for word in plan.request.options.set_}
    assert names == claim.run.set.keys() - {"tp", "pp"}
    assert {"tp", "pp"} <= {text.partition(":")[0] for text in plan.differs}


@pytest.mark.parametrize(
    ("name", "precision"),
    [("llama2-70b/h800-4x8-amp-tp8-pp4", "bf16"), ("distilbert/a100-1x8-fp32", None)],
)
def test_a_processor_runs_the_precision_of_a_row_that_it_has(name: str, precision: str | None) -> None:
    """The fp32 row of distilbert ran in TF32, for which a processor takes the case's own."""
    plan = plan_of(CATALOG.claims[name], CATALOG, "cpu", PlanOptions(preset="tiny"))
    assert plan.request.options.precision == precision
    assert any(text.startswith("precision") for text in plan.differs) == (precision is None)


def test_the_nearest_row_is_by_device_then_by_their_number() -> None:
    rows = [claim for claim in CATALOG.claims.values() if claim.case == "distilbert"]
    here = {"device_model": "NVIDIA A100-SXM4-40GB", "devices": 2, "nodes": 1}
    found = nearest_claims(rows, here)
    assert found[0].id == "distilbert/a100-1x1-fp32-bs96"
    assert {claim.device for claim in found[:4]} == {here["device_model"]}


@pytest.mark.parametrize(("runs", "looks"), [(None, LOOKS), (1, (1,)), (4, (1, 2, 3, 4)), (20, (*LOOKS, 20))])
def test_looks_are_fixed_by_the_number_of_runs(runs: int | None, looks: tuple[int, ...]) -> None:
    assert LimitOptions(runs=runs).looks == looks


def of_looks(*looks: tuple[int, ...] | None) -> list[SeriesSummary]:
    return [SeriesSummary("mine", "runs", "mine", "user", "derived", 8, 2, looks=each) for each in looks]


@pytest.mark.parametrize(
    ("looks", "runs", "at"),
    [([LOOKS], 5, 5), ([LOOKS], 4, 5), ([LOOKS], 9, 8), ([LOOKS, None], 8, 8), ([LOOKS, LOOKS], 8, 3)],
)
def test_a_verdict_must_hold_at_the_level_of_its_look(
    looks: list[tuple[int, ...] | None], runs: int, at: int
) -> None:
    # Of several series the strictest look counts.
    assert look_level(of_looks(*looks), runs) == look_levels()[at]


def test_without_a_look_a_verdict_holds_at_95_percent() -> None:
    baseline = [replace(each, side="baseline") for each in of_looks(LOOKS)]
    assert look_level(baseline, 5) == look_level(of_looks(None), 5) == look_level(of_looks((5,)), 5) == LEVEL


def test_a_log_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_BYTES", 30)
    kept = log.Log()
    for number in range(9):
        kept.add(b"line %d\n" % number)
    assert kept.text.splitlines()[1:] == ["line 5", "line 6", "line 7", "line 8"]


def test_a_log_is_bundled_without_credentials() -> None:
    variables = {"REGISTRY_PASSWORD": "correct horse", "PATH": "/bin"}
    assert "horse" not in bundle_files.without_secrets("login with correct horse\n/bin\n", variables)


def test_the_packages_of_this_python_are_listed_once() -> None:
    names = [entry["name"] for entry in bundle_documents.packages()["packages"]]
    assert "msgspec" in names
    assert len(names) == len({*names})


def test_unlike_names_what_differs() -> None:
    assert differing_paths({"a": {"b": [1, {"c": 2}]}, "d": 1}, {"a": {"b": [1, {"c": 3}]}}) == ["a.b[1].c", "d"]
    assert differing_paths({"a": [1]}, {"a": [1, 2]}) == ["a"]
