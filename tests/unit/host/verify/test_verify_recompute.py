"""A record's numbers are computed again from its evidence: a number edited alone is named, with both values."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs import CATALOG
from flagbench.catalog.model import NOT_PUBLISHED
from flagbench.evidence.section import digest_of
from flagbench.record.model import Record
from flagbench.record.read import MAX_BYTES, RecordError, read_record
from flagbench.verify import Verdict, VerifyResult, recompute, verify_baseline, verify_claim
from flagbench_cases.record import measured
from flagbench_cases.shared import config as configs
from flagbench_cases.shared.spool import Step
from honest import CLAIMS, Pace, honest_record

from .conftest import REPLAYS

Edit = Callable[[dict[str, Any]], object]
OK = {"state": "ok", "phase": "done", "reason": None, "exit_code": 0}

DISTILBERT, LORA, AQUILA = "distilbert/a100-1x8-fp32", "llama2-7b-lora/a100-1x1-fp16-bs4", "aquila-33b/a100-1x8-tp8"
PIPELINE = "llama2-70b/h800-4x8-amp-tp8-pp4"


@pytest.fixture
def _numbers_are_proved() -> None:
    """Here they are not: see conftest.py."""


@cache
def _made(claim: str, steps: int | None, count: int) -> str:
    return json.dumps(honest_record(CLAIMS[claim], Pace(noise=0.01), steps=steps, count=count))


def made(claim: str = DISTILBERT, *, steps: int | None = None, count: int = 130) -> dict[str, Any]:
    """A consistent record, to be edited."""
    found: dict[str, Any] = json.loads(_made(claim, steps, count))
    return found


def read(raw: dict[str, Any]) -> Record:
    return read_record(json.dumps(raw).encode())


def verify(raw: dict[str, Any], claim: str = DISTILBERT) -> VerifyResult:
    found = CLAIMS[claim]
    return verify_claim([read(raw)], found, CATALOG.cases[found.case])


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_honest_record_is_never_invalid_and_reproduces_its_claim_if_that_has_a_speed(claim: str) -> None:
    result = verify(made(claim), claim)
    case = CATALOG.cases[CLAIMS[claim].case]
    comparable = CLAIMS[claim].metric(case.gate) is not None
    silent = any(CLAIMS[claim].conditions[name] == NOT_PUBLISHED for name in case.work_conditions)
    held = Verdict.INCONCLUSIVE if silent else Verdict.REPRODUCED
    assert result.verdict is (held if comparable else Verdict.NOT_COMPARABLE)


@pytest.mark.parametrize(("claim", "steps"), [(DISTILBERT, 50), (LORA, 50), (LORA, None)])
def test_an_honest_window_and_other_units_hold_too(claim: str, steps: int | None) -> None:
    assert verify(made(claim, steps=steps), claim).verdict is not Verdict.INVALID


def metric(name: str, **fields: Any) -> Edit:
    """Set fields of a metric; `factor` multiplies its value and interval."""

    def edit(raw: dict[str, Any]) -> None:
        (found,) = (entry for entry in raw["metrics"] if entry["name"] == name)
        factor = fields.pop("factor", None)
        if factor:
            found["value"] *= factor
            if "ci95" in found:
                found["ci95"] = [bound * factor for bound in found["ci95"]]
        found.update(fields)

    return edit


def put(*path: Any, value: Any = None, factor: float | None = None) -> Edit:
    """Set the entry at a path, or multiply it."""

    def edit(raw: dict[str, Any]) -> None:
        holder: Any = raw
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = value if factor is None else holder[path[-1]] * factor

    return edit


def drop(name: str) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        raw["metrics"] = [entry for entry in raw["metrics"] if entry["name"] != name]

    return edit


def twice(name: str) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        raw["metrics"] += [dict(entry) for entry in raw["metrics"] if entry["name"] == name]

    return edit


def column(name: str, change: Callable[[Any], Any], span: int = 1, rank: int = 0) -> Edit:
    """Change the column of a rank; all ranks have one of their own afterwards."""

    def edit(raw: dict[str, Any]) -> None:
        columns = raw["evidence"]["spans"][span]["columns"]
        if isinstance(columns[name], int):
            columns[name] = [columns[name]] * raw["evidence"]["ranks"]
        columns[name][rank] = change(columns[name][rank])

    return edit


SLIGHTLY = 1 + 3e-6

DOCTORED: list[tuple[str, Edit, str]] = [
    *(
        (DISTILBERT, metric(name, factor=SLIGHTLY), f"metric {name} is")
        for name in (
            *("p_core", "p_core_host", "p_train", "p_train_published_count", "p_whole", "p_whole_published_count"),
            *("e2e_time", "mem_peak", "allocator_peak", "acc", "acc_as_published", "loss"),
            *("mfu", "hfu", "mfu_useful", "mfu_measured"),
        )
    ),
    *(
        (LORA, metric(name, factor=1.01), f"metric {name} is")
        for name in (
            *("tokens_per_second_per_device", "tokens_per_second_per_device_host", "mfu_published_formula"),
            "loss_as_published",
        )
    ),
    *(
        (AQUILA, metric(name, factor=0.99), f"metric {name} is")
        for name in ("p_infer_core", "p_infer_core_host", "p_infer_core_useful", "p_infer_whole", "loss")
    ),
    (DISTILBERT, metric("p_core_host", ci95=[1.0, 1e6]), "metric p_core_host: ci95 is"),
    (DISTILBERT, metric("p_core", n=61), "metric p_core: n is 61, and its evidence gives 110"),
    (DISTILBERT, metric("p_core", stdev=0.0), "metric p_core: stdev is 0"),
    (DISTILBERT, metric("p_core_host", unit="samples"), "metric p_core_host: unit is samples"),
    (DISTILBERT, metric("acc", n=10), "metric acc: n is 10, and its evidence gives 10000"),
    (DISTILBERT, twice("p_core_host"), "metric p_core_host is given twice"),
    *(
        (DISTILBERT, put("window", name, value=value), f"window: {name} is")
        for name, value in (
            *(("first_step", 0), ("rank", 3), ("steps", 41), ("samples", 1), ("seconds", 1.0), ("drift", 0.5)),
            *(("host_seconds", 9.0), ("steady", False), ("step_median", 1.0), ("step_p5_p95", [0.1, 0.2])),
        )
    ),
    (DISTILBERT, put("window", "step_seconds", 3, factor=1.001), "window: step_seconds is"),
    *(
        (DISTILBERT, put("work", name, value=7), f"work: {name} is 7, and its evidence gives")
        for name in ("steps", "samples_executed", "samples_published_count", "tokens_executed", "tokens_useful")
    ),
    *(
        (DISTILBERT, put("timing", name, value=0.125), f"timing: {name} is 0.125, and its evidence gives")
        for name in ("init", "warmup", "train", "eval", "e2e", "data_wait", "step")
    ),
    *(
        (DISTILBERT, put("flops", name, value=1), f"flops: {name} is 1, and its evidence gives")
        for name in ("executed", "useful", "recomputed")
    ),
    (DISTILBERT, put("flops", "measured_ceiling", "flops", factor=2), "flops: measured_ceiling is"),
    (DISTILBERT, put("flops", "peak", "flops", factor=2), "metric mfu is"),
    *(
        (DISTILBERT, put("ranks", 2, name, value=9), f"rank 2: {name} is 9, and its evidence gives")
        for name in ("step_median", "data_wait_total", "steps", "first_collective_median", "collective_wait_median")
    ),
    (PIPELINE, put("ranks", 2, "bubble", value=0.01), "rank 2: bubble is 0.01, and its evidence gives"),
    *(
        (PIPELINE, put("quality", "training", name, value=value), f"quality.training: {name} is")
        for name, value in (
            ("measured_bubble", 0.01),
            ("predicted_bubble", 0.01),
        )
    ),
    (DISTILBERT, put("quality", "losses", "values", 30, value=0.1), "quality.losses: steps 30 to 31 is"),
    (DISTILBERT, put("quality", "losses", "steps", value=50), "quality.losses: steps is 50"),
    (
        DISTILBERT,
        put("quality", "loss_curve", 5, 1, value=0.1),
        "quality: loss_curve is [5, 0.1], and its evidence gives [5, ",
    ),
    (DISTILBERT, put("quality", "loss_curve", value=[]), "quality: loss_curve is"),
    (DISTILBERT, put("quality", "evaluations", 0, "accuracy", value=0.99), "metric acc is"),
    (DISTILBERT, put("quality", "evaluations", 0, "accuracy", value=0.12345678), "is not that of 10000 examples"),
    (DISTILBERT, put("quality", "evaluations", 0, "accuracy", value=1.5), "is not that of 10000 examples"),
    (DISTILBERT, put("quality", "evaluations", 0, "counted", value="x"), "its evaluations cannot be read"),
    (DISTILBERT, put("config", "train", "warmup_steps", value=None), "does not say how many steps"),
    (DISTILBERT, lambda r: r["config"]["train"].pop("window_steps"), "does not say how many steps"),
    (DISTILBERT, put("evidence_digest", value=None), "evidence_digest is None"),
    (DISTILBERT, put("ranks", 2, "rank", value=1), "list of ranks has 7"),
    (DISTILBERT, lambda r: r["ranks"].pop(), "its evidence is of 8 ranks"),
]
"""A number of the record that was edited alone."""

FORGED: list[tuple[str, Edit, str]] = [
    (DISTILBERT, column("host", lambda c: [n // 2 for n in c]), "metric p_core_host is"),
    (DISTILBERT, column("device", lambda c: [n * 2 for n in c], rank=5), "metric p_core is"),
    (DISTILBERT, column("data_wait", lambda c: [0 for _ in c]), "metric p_train_published_count is"),
    (DISTILBERT, column("to_device", lambda c: [n * 9 for n in c]), "metric p_train"),
    (DISTILBERT, column("after", lambda c: 10**6), "metric p_train is"),
    (DISTILBERT, column("samples", lambda c: 31), "metric p_core is"),
    (DISTILBERT, column("samples_published", lambda c: 64), "metric p_core_host is"),
    (DISTILBERT, column("tokens", lambda c: 1), "work: tokens_executed is"),
    (DISTILBERT, column("tokens_useful", lambda c: 1), "work: tokens_useful is"),
    (DISTILBERT, column("device", lambda c: 0, rank=1), "rank 1: step_median is"),
    (DISTILBERT, put("evidence", "spans", 1, "flops", "useful", value=5), "metric mfu_useful is"),
    (DISTILBERT, put("evidence", "durations", "train", 3, value=10**9), "metric p_whole is"),
    (DISTILBERT, put("evidence", "timing", "e2e", value=10**9), "metric e2e_time is"),
    (DISTILBERT, put("evidence", "memory", "peak", 3, value=2**37), "metric mem_peak is"),
    (DISTILBERT, put("evidence", "spans", 0, "loss", 2, 4, value=9.0), "quality.losses: steps 4 to 5 is"),
    (DISTILBERT, put("evidence", "spans", 1, "first_step", value=21), "begins at step 21"),
    (DISTILBERT, put("evidence", "spans", 1, "steps", value=39), "contradicts itself"),
    (DISTILBERT, put("evidence", "spans", 1, "phase", value="infer"), "is of the phases train, infer"),
    (DISTILBERT, put("evidence", "ranks", value=9), "should have 9"),
    (DISTILBERT, put("evidence", "block", value=2), "contradicts itself"),
    (DISTILBERT, column("host", lambda c: [10**149 for _ in c]), "too large|metric"),
    (AQUILA, put("evidence", "spans", 1, "phase", value="val"), "contradicts|separate|metric"),
]
"""A part of the evidence that was edited alone."""


@pytest.mark.parametrize(("claim", "edit", "named"), DOCTORED, ids=[named for _, _, named in DOCTORED])
def test_a_number_that_was_edited_alone_makes_a_record_invalid(claim: str, edit: Edit, named: str) -> None:
    raw = made(claim)
    edit(raw)
    result = verify(raw, claim)
    assert result.verdict is Verdict.INVALID
    assert named in result.reason


@pytest.mark.parametrize(("claim", "edit", "named"), FORGED)
def test_evidence_that_was_edited_alone_makes_a_record_invalid(claim: str, edit: Edit, named: str) -> None:
    raw = made(claim)
    edit(raw)
    result = verify(raw, claim)
    assert (result.verdict, "evidence_digest is" in result.reason) == (Verdict.INVALID, True)
    # Whoever edits it may compute its digest as well.
    raw["evidence_digest"] = digest_of(raw["evidence"])
    result = verify(raw, claim)
    assert result.verdict is Verdict.INVALID
    assert any(words in result.reason for words in named.split("|"))


OF_ANOTHER_VERSION: list[tuple[Edit, str]] = [
    (lambda r: r["metrics"].append({**r["metrics"][0], "name": "step_slowest"}), "metric step_slowest"),
    (drop("p_train"), "metric p_train"),
    (put("timing", "compile", value=1.5), "timing.compile"),
    (put("timing", "e2e"), "timing.e2e"),
    (put("window", "mean", value=0.5), "window.mean"),
    (put("window", "drift"), "window.drift"),
    (put("window"), "window"),
    (put("work", "images", value=3), "work.images"),
    (put("flops", "sparse", value=3), "flops.sparse"),
    (put("evidence", "spans", 1, "columns", "network", value=3), ""),
    (lambda r: r.update(new={"section": 1}), ""),
]
"""What a record of an earlier or a later version lacks, or has besides, and what is said of it."""


@pytest.mark.parametrize(("edit", "name"), OF_ANOTHER_VERSION)
def test_what_one_side_alone_knows_is_listed(edit: Edit, name: str) -> None:
    raw = made()
    edit(raw)
    raw["evidence_digest"] = digest_of(raw["evidence"])
    result = verify(raw)
    assert (result.verdict, result.not_compared) == (Verdict.REPRODUCED, (name,) if name else ())


def test_a_verdict_needs_the_gate_metric() -> None:
    raw = made()
    for name in ("p_core", "p_core_host"):
        drop(name)(raw)
    result = verify(raw)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert {"metric p_core", "metric p_core_host"} <= set(result.not_compared)


def test_both_numbers_are_shown_and_the_many_that_follow_are_counted() -> None:
    raw = made()
    metric("p_core_host", factor=2)(raw)
    value = next(m["value"] for m in made()["metrics"] if m["name"] == "p_core_host")
    assert f"is {2 * value:.9g}, and its evidence gives {value:.9g}" in verify(raw).reason
    column("host", lambda c: [n * 2 for n in c])(raw)
    raw["evidence_digest"] = digest_of(raw["evidence"])
    assert "more numbers do not follow" in verify(raw).reason


def test_what_rounding_alone_could_change_is_no_contradiction() -> None:
    raw = made()
    for entry in raw["metrics"]:
        metric(entry["name"], factor=1 + 1e-8)(raw)
    assert verify(raw).verdict is Verdict.REPRODUCED


def test_an_interval_by_another_method_is_computed_again_and_not_believed() -> None:
    raw = made()
    metric("p_core_host", ci95=[1.0, 1e6], ci_method="of an earlier version")(raw)
    result = verify(raw)
    assert result.verdict is Verdict.REPRODUCED
    (line,) = (m for m in result.metrics if m.name == "p_core")
    assert line.measured is not None
    assert line.measured.ci95 is not None
    assert line.measured.ci95[0] > 1850


WITHOUT = [lambda r: r.pop("evidence"), lambda r: r.update(evidence=None)]


@pytest.mark.parametrize("remove", WITHOUT)
def test_a_record_without_evidence_is_inconclusive_whatever_it_is_held_against(remove: Edit) -> None:
    raw = made()
    remove(raw)
    result = verify(raw)
    assert (result.verdict, result.verdict.exit_code) == (Verdict.INCONCLUSIVE, 11)
    assert result.reason.startswith("no evidence")
    assert Verdict.REPRODUCED not in {m.verdict for m in result.metrics}
    other = {**copy.deepcopy(raw), "conditions": {**raw["conditions"], "device_model": "another"}}
    assert verify(other).reason.startswith("no evidence")
    with_evidence = json.loads(json.dumps(honest_record(CLAIMS[DISTILBERT], Pace(seed=7))))
    with_evidence.update(record_id="another-record", run_id="another-run", created_at="2026-01-02T12:00:00Z")
    case = CATALOG.cases["distilbert"]
    for pair in ((raw, with_evidence), (with_evidence, raw)):
        found = verify_baseline([read(pair[0])], read(pair[1]), case)
        assert (found.verdict, raw["record_id"] in found.reason) == (Verdict.INCONCLUSIVE, True)


def test_a_record_without_evidence_stays_invalid_for_another_reason() -> None:
    raw = made()
    del raw["evidence"]
    raw["quality"]["checks"][0]["ok"] = False
    assert verify(raw).verdict is Verdict.INVALID
    twice("p_core_host")(doubled := made())
    del doubled["evidence"]
    assert "given twice" in verify(doubled).reason


def test_a_megabyte_is_no_record() -> None:
    raw = made()
    raw["note"] = "x" * MAX_BYTES
    with pytest.raises(RecordError, match="bytes"):
        read(raw)


_SECONDS = st.one_of(st.just(0.0), st.floats(1e-7, 1e-3), st.floats(1e-3, 100.0))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    claim=st.sampled_from([LORA, AQUILA, "glm/a100-1x2-2023-08"]),
    window=st.booleans(),
    count=st.integers(1, 45),
    most=st.sampled_from([16_000, 20, 5]),
    data=st.data(),
)
def test_whatever_the_image_side_makes_of_steps_is_what_the_host_computes(
    claim: str, window: bool, count: int, most: int, data: st.DataObject
) -> None:
    drawn = data.draw(st.randoms(use_true_random=False))
    times = data.draw(st.lists(_SECONDS, min_size=3, max_size=10))

    def change(rank: int, step: Step) -> Step:
        host, device, wait, handed, after = (drawn.choice(times) for _ in range(5))
        loss = drawn.choice([step.loss, 0.0, 12.3456789, float("nan")])
        samples = drawn.choice([step.samples, 0, 1])
        return step._replace(
            host=host, device=device, data_wait=wait, to_device=handed, after=after, loss=loss, samples=samples
        )

    with mock.patch.object(measured, "MAX_RANK_STEPS", most):
        case = configs.load_case(CLAIMS[claim].case)
        least = configs.schedule(configs.preset_of(case, "reference", "faithful"))["warmup_steps"] + 1
        raw = honest_record(
            CLAIMS[claim], steps=least + count if window else None, count=count, change=change, status=OK
        )
    assert recompute.check(read(raw), CATALOG.cases[CLAIMS[claim].case]).problems == ()


@pytest.mark.parametrize("name", ["a100-1x8", "a100-1x8-above", "a100-1x8-below", "a100-1x8-inconclusive"])
def test_the_replays_prove_their_numbers(name: str) -> None:
    raw = json.loads((REPLAYS / f"{name}.json").read_bytes())
    expected = {"a100-1x8": "REPRODUCED"}.get(name, name.rpartition("-")[2].upper())
    assert verify(raw).verdict.value == expected


def _without_times_of_others(raw: dict[str, Any]) -> None:
    """As an earlier version made it."""
    for span in raw["evidence"]["spans"]:
        span.pop("collectives")
        span.pop("passes", None)
    raw["evidence_digest"] = digest_of(raw["evidence"])


def test_medians_of_a_record_whose_evidence_lacks_these_times_are_at_most_what_its_steps_allow() -> None:
    raw = made(PIPELINE)
    _without_times_of_others(raw)
    assert recompute.check(read(raw), CATALOG.cases["llama2-70b"]).problems == ()
    raw["ranks"][3]["collective_wait_median"] = 3 * raw["ranks"][3]["step_median"]
    (problem,) = recompute.check(read(raw), CATALOG.cases["llama2-70b"]).problems
    assert problem.startswith("rank 3: collective_wait_median is")
    assert "its steps allow at most" in problem
    raw = made(PIPELINE)
    _without_times_of_others(raw)
    raw["quality"]["training"]["measured_bubble"] = 0.01
    (problem,) = recompute.check(read(raw), CATALOG.cases["llama2-70b"]).problems
    assert problem.startswith("quality.training: measured_bubble is")
