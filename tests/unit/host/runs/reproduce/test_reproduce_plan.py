"""What a row is run as, what disturbs it, and when a verdict at a look counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.runs.reproduce import bundle_files, log
from flagbench.runs.reproduce.budget import LimitOptions
from flagbench.runs.reproduce.bundle import unlike
from flagbench.runs.reproduce.nearest import nearest_rows
from flagbench.runs.reproduce.plan import PlanOptions, plan_of
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict.interval import Estimate, Ratio
from flagbench.verdict.result import Against, MetricResult, SeriesSummary
from flagbench.verdict.series import at_look, widened, with_provenance
from flagbench.verdict.stats.looks import LOOKS


@pytest.mark.parametrize("name", CATALOG.claims)
def test_every_row_has_a_plan(name: str) -> None:
    claim = CATALOG.claims[name]
    tiny = plan_of(claim, CATALOG, "cpu", PlanOptions(preset="tiny"), fresh=False)
    assert (tiny.request.options.nodes, tiny.request.options.gpus) == (1, claim.run.gpus)
    assert tiny.request.options.set_ == ()
    assert not claim.run.set or any("settings" in text for text in tiny.differs)
    if claim.stack is None:
        return
    own = plan_of(claim, CATALOG, None, PlanOptions(), fresh=False)
    assert (own.differs, own.request.stack.name) == ((), claim.stack)
    assert [word.partition("=")[0] for word in own.request.options.set_] == [*claim.run.set]
    assert own.request.options.precision == claim.run.precision
    assert own.request.options.seed == (None if "seed" in own.unpublished else claim.conditions.get("seed"))
    assert plan_of(claim, CATALOG, None, PlanOptions(full=True), fresh=True).request.options.seed is None


def test_the_case_chooses_the_layout_for_other_devices() -> None:
    claim = CATALOG.claims["llama2-70b/h800-4x8-amp-tp8-pp4"]
    plan = plan_of(claim, CATALOG, "a100-cuda11.8", PlanOptions(gpus=4), fresh=False)
    names = {word.partition("=")[0] for word in plan.request.options.set_}
    assert names == claim.run.set.keys() - {"tp", "pp"}
    assert {"tp", "pp"} <= {text.partition(":")[0] for text in plan.differs}


def test_the_nearest_row_is_by_device_then_by_their_number() -> None:
    rows = [claim for claim in CATALOG.claims.values() if claim.case == "distilbert"]
    here = {"device_model": "NVIDIA A100-SXM4-40GB", "devices": 2, "nodes": 1}
    found = nearest_rows(rows, here)
    assert found[0].claim.id == "distilbert/a100-1x1-fp32-bs96"
    assert [result.name for result in found[0].differing] == ["devices"]
    assert "devices is 2 here" in found[0].text
    assert {row.claim.conditions["device_model"] for row in found[:4]} == {here["device_model"]}


@pytest.mark.parametrize(("runs", "looks"), [(None, LOOKS), (1, (1,)), (4, (1, 2, 3, 4)), (20, (*LOOKS, 20))])
def test_looks_are_fixed_by_the_number_of_runs(runs: int | None, looks: tuple[int, ...]) -> None:
    assert LimitOptions(runs=runs).looks == looks


def result(low: float, high: float, verdict: Verdict, runs: int) -> VerifyResult:
    ratio = Ratio((low + high) / 2, (low, high))
    expected = Estimate(1.0, runs=0)
    metric = MetricResult(
        name="p_core", held_by="p_core", unit="", better="higher", expected=expected, ratio=ratio, reason="measured"
    )
    ids = tuple(f"record-{number}" for number in range(runs))
    return VerifyResult(
        verdict, (), "measured", "p_core", Against("claim", "x"), ids, (replace(metric, verdict=verdict),), ()
    )


@pytest.mark.parametrize(
    ("low", "high", "verdict", "runs", "found"),
    [
        (0.99, 1.01, Verdict.REPRODUCED, 2, Verdict.REPRODUCED),
        (0.951, 1.04, Verdict.REPRODUCED, 2, Verdict.INCONCLUSIVE),
        (0.90, 0.949, Verdict.BELOW, 5, Verdict.INCONCLUSIVE),
        (0.80, 0.82, Verdict.BELOW, 5, Verdict.BELOW),
        (1.101, 1.2, Verdict.ABOVE, 8, Verdict.INCONCLUSIVE),
        (0.9, 1.2, Verdict.INCONCLUSIVE, 3, Verdict.INCONCLUSIVE),
        (0.951, 1.04, Verdict.NOT_COMPARABLE, 1, Verdict.NOT_COMPARABLE),
        (0.951, 1.04, Verdict.INVALID, 1, Verdict.INVALID),
    ],
)
def test_a_verdict_at_a_look_must_hold_at_its_level(
    low: float, high: float, verdict: Verdict, runs: int, found: Verdict
) -> None:
    judged = at_look(result(low, high, verdict, runs), [LOOKS])
    assert judged.verdict is found
    if found is not verdict:
        assert judged.metrics[0].verdict is found
        assert judged.verdict.value not in judged.reason


def test_several_series_must_hold_at_their_strictest_look() -> None:
    # At 8 runs the look is left with more than at the first one.
    decided = result(0.966, 1.034, Verdict.REPRODUCED, 8)
    assert at_look(decided, [LOOKS]).verdict is Verdict.REPRODUCED
    assert at_look(decided, [LOOKS, LOOKS]).verdict is Verdict.INCONCLUSIVE


def test_looks_are_of_a_claim_and_not_of_a_baseline() -> None:
    series = SeriesSummary("mine", "runs", "mine", "user", "derived", 8, 2, looks=LOOKS)
    against = replace(result(0.99, 1.01, Verdict.SAME, 2), against=Against("baseline", "x"))
    assert with_provenance(against, (), [series], ()).verdict is Verdict.SAME


def test_one_look_is_what_no_look_is() -> None:
    ratio = Ratio(1.0, (0.97, 1.02))
    same = widened(ratio, 0.95, 5)
    assert same is not None
    assert same.ci95 == pytest.approx((0.97, 1.02))
    wide = widened(ratio, 0.99, 5)
    assert wide is not None
    assert wide.ci95 is not None
    assert wide.ci95[0] < 0.97 < 1.02 < wide.ci95[1]
    assert widened(Ratio(1.0), 0.99, 5) is None


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
    names = [entry["name"] for entry in bundle_files.packages()["packages"]]
    assert "msgspec" in names
    assert len(names) == len({*names})


def test_unlike_names_what_differs() -> None:
    assert unlike({"a": {"b": [1, {"c": 2}]}, "d": 1}, {"a": {"b": [1, {"c": 3}]}}) == ["a.b[1].c", "d"]
    assert unlike({"a": [1]}, {"a": [1, 2]}) == ["a"]
