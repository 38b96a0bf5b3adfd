"""A record's numbers are computed again from its evidence: a number edited alone is named, with both values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs import CATALOG
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.verdict import Verdict, verify_baseline
from flagbench.verdict.recompute import recompute
from flagbench_cases.record import measured
from flagbench_cases.shared import manifests
from flagbench_cases.shared.spool import Step
from flagbench_core import config as configs
from flagbench_core.evidence.document import digest_of
from honest import CLAIMS, honest_record

from .conftest import Raw, made, read, verified

TESTED = "records"
Edit = Callable[[Raw], object]
OK = {"state": "ok", "phase": "done", "reason": None, "exit_code": 0}
DISTILBERT, LORA, AQUILA = "distilbert/a100-1x8-fp32", "llama2-7b-lora/a100-1x1-fp16-bs4", "aquila-33b/a100-1x8-tp8"
PIPELINE = "llama2-70b/h800-4x8-amp-tp8-pp4"


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_honest_record_is_valid_and_reproduces_its_claim(claim: str) -> None:
    case = CATALOG.cases[CLAIMS[claim].case]
    has_speed = CLAIMS[claim].metric(case.gate) is not None
    silent = any(CLAIMS[claim].conditions[name] == NOT_PUBLISHED for name in case.work_conditions)
    expected = Verdict.INCONCLUSIVE if silent else Verdict.REPRODUCED
    assert verified(made(claim), claim=claim).verdict is (expected if has_speed else Verdict.NOT_COMPARABLE)
    assert verified(made(claim, steps=50), claim=claim).verdict is not Verdict.INVALID


def test_a_slice_is_compared_with_no_row() -> None:
    claim = CLAIMS["llama3-8b/h100-1x8-bf16"]
    sliced = replace(claim, run=replace(claim.run, set={**claim.run.set, "layers": 8}))
    record = honest_record(sliced, conditions={"layers": 8})
    assert verified(record, claim=claim.id).verdict is Verdict.NOT_COMPARABLE
    assert "mfu_published_formula" not in {metric["name"] for metric in record["metrics"]}


def put(*path: Any, value: Any = None, factor: float | None = None) -> Edit:
    """Set the entry at a path, or multiply it."""

    def edit(raw: Raw) -> None:
        holder: Any = raw
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = value if factor is None else holder[path[-1]] * factor

    return edit


def metric(name: str, **fields: Any) -> Edit:
    """Set fields of a metric."""
    return lambda raw: next(entry for entry in raw["metrics"] if entry["name"] == name).update(fields)


def drop(name: str) -> Edit:
    return lambda raw: raw.update(metrics=[entry for entry in raw["metrics"] if entry["name"] != name])


def column(name: str, change: Callable[[Any], Any], span: int = 1, rank: int = 0) -> Edit:
    """Change the column of a rank; all ranks have one of their own afterwards."""

    def edit(raw: Raw) -> None:
        columns = raw["evidence"]["spans"][span]["columns"]
        if isinstance(columns[name], int):
            columns[name] = [columns[name]] * raw["evidence"]["ranks"]
        columns[name][rank] = change(columns[name][rank])

    return edit


MEASURED = ("steps", "step_median", "data_wait_total", "first_collective_median", "collective_wait_median", "bubble")
"""What a rank has, if it is one of several or a stage."""


def numbers(raw: Raw) -> Iterator[tuple[str, tuple[Any, ...], int | float]]:
    """What names each number that follows from the evidence, its path and its value."""
    training = raw["quality"].get("training") or {}
    bubbles = {name: value for name, value in training.items() if name.startswith("measured_bubble")}
    holders: list[tuple[str, tuple[Any, ...], Raw]] = [
        *(
            (f"metric {metric['name']} is", ("metrics", at), {"value": metric["value"]})
            for at, metric in enumerate(raw["metrics"])
        ),
        *((f"{name}: {{}} is", (name,), raw[name]) for name in ("timing", "window", "work", "flops")),
        (
            f"rank {len(raw['ranks']) - 1}: {{}} is",
            ("ranks", -1),
            {name: raw["ranks"][-1].get(name) for name in MEASURED},
        ),
        ("quality.training: {} is", ("quality", "training"), bubbles),
    ]
    for name, path, holder in holders:
        for field, value in holder.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield name.format(field), (*path, field), value


@pytest.mark.parametrize("claim", [DISTILBERT, LORA, AQUILA, PIPELINE])
def test_every_number_that_was_edited_alone_is_named(claim: str) -> None:
    tested = [*numbers(made(claim))]
    assert len(tested) >= 39
    for name, path, value in tested:
        edited = made(claim)
        other = value + max(1, value // 10**5) if isinstance(value, int) else value * (1 + 3e-6) or 1.0
        put(*path, value=other)(edited)
        (problem, *_) = recompute(read(edited), CATALOG.cases[edited["case"]]).differences
        numbers_shown = [str(each) if isinstance(each, int) else f"{each:.9g}" for each in (other, value)]
        assert problem.startswith(f"{name} {numbers_shown[0]}, ")
        assert problem.endswith(numbers_shown[1])


DOCTORED: list[tuple[str, Edit]] = [
    ("numbers", metric("p_core_host", ci95=[1.0, 1e6])),
    ("numbers", metric("p_core", n=61)),
    ("numbers", metric("p_core", stdev=0.0)),
    ("numbers", metric("p_core_host", unit="samples")),
    ("numbers", put("window", "steady", value=False)),
    ("numbers", put("window", "step_seconds", 3, factor=1.001)),
    ("numbers", put("flops", "measured_ceiling", "flops", factor=2)),
    ("numbers", put("flops", "peak", "flops", factor=2)),
    ("numbers", put("quality", "losses", "values", -1, value=0.1)),
    ("numbers", put("quality", "evaluations", 0, "accuracy", value=0.99)),
    ("evidence", put("quality", "evaluations", 0, "accuracy", value=0.12345678)),
    ("evidence", put("quality", "evaluations", 0, "counted", value="x")),
    ("evidence", put("config", "train", "warmup_steps", value=None)),
    ("evidence", put("config", "train", "warmup_steps", value=19)),
    ("evidence", put("config", "train", "window_steps", value=31)),
    ("evidence", put("evidence_digest", value=None)),
    ("evidence", put("ranks", 2, "rank", value=1)),
]
"""The rule, and a part of the record that was edited alone."""


@pytest.mark.parametrize(("rule", "edit"), DOCTORED, ids=range(len(DOCTORED)))
def test_a_part_that_was_edited_alone_makes_a_record_invalid(rule: str, edit: Edit) -> None:
    raw = made()
    edit(raw)
    result = verified(raw)
    assert (result.verdict, result.verdict.exit_code) == (Verdict.INVALID, 12)
    assert rule in {finding.rule for finding in result.findings}


FORGED: list[tuple[str, Edit]] = [
    *((DISTILBERT, column(name, lambda own: [2 * n + 1 for n in own] if isinstance(own, list) else 2 * own + 1))
      for name in ("host", "device", "data_wait", "to_device", "after", "samples", "tokens", "tokens_useful")),
    (DISTILBERT, column("samples_published", lambda _: 64)),
    (DISTILBERT, column("device", lambda _: 0, rank=1)),
    (DISTILBERT, column("host", lambda own: [10**149 for _ in own])),
    (DISTILBERT, put("evidence", "spans", 1, "flops", "useful", value=5)),
    (DISTILBERT, put("evidence", "durations", "train", 3, value=10**9)),
    (DISTILBERT, put("evidence", "timing", "e2e", value=10**9)),
    (DISTILBERT, put("evidence", "memory", "peak", 3, value=2**37)),
    (DISTILBERT, put("evidence", "spans", 1, "first_step", value=21)),
    (DISTILBERT, put("evidence", "spans", 1, "steps", value=39)),
    (DISTILBERT, put("evidence", "spans", 1, "phase", value="infer")),
    (DISTILBERT, put("evidence", "ranks", value=9)),
    (DISTILBERT, put("evidence", "block", value=2)),
    (AQUILA, put("evidence", "spans", 1, "phase", value="val")),
]  # fmt: skip
"""A part of the evidence that was edited alone."""


@pytest.mark.parametrize(("claim", "edit"), FORGED)
def test_evidence_that_was_edited_alone_makes_a_record_invalid(claim: str, edit: Edit) -> None:
    raw = made(claim)
    edit(raw)
    result = verified(raw, claim=claim)
    assert (result.verdict, result.findings[0].rule) == (Verdict.INVALID, "evidence")
    # Whoever edits it may compute its digest as well.
    raw["evidence_digest"] = digest_of(raw["evidence"])
    found = recompute(read(raw), CATALOG.cases[raw["case"]])
    assert found.unreadable or found.differences


OF_ANOTHER_VERSION: list[tuple[Edit, str]] = [
    (lambda r: r["metrics"].append({**r["metrics"][0], "name": "step_slowest"}), "metric step_slowest"),
    (drop("p_train"), "metric p_train"),
    (put("timing", "compile", value=1.5), "timing.compile"),
    (put("timing", "e2e"), "timing.e2e"),
    (put("window", "mean", value=0.5), "window.mean"),
    (put("window"), "window"),
    (put("work", "images", value=3), "work.images"),
    (put("flops", "sparse", value=3), "flops.sparse"),
    (
        lambda r: r.update(flagbench={"version": "9"}, flops={**r["flops"], "formula": "b/v1"}),
        "FLOPs: counted by b/v1",
    ),
    (put("evidence", "spans", 1, "columns", "network", value=3), ""),
    (lambda r: r.update(new={"section": 1}), ""),
]
"""What a record of an earlier or a later version lacks, or has besides, and what is said of it."""


@pytest.mark.parametrize(("edit", "name"), OF_ANOTHER_VERSION)
def test_what_one_side_alone_knows_is_listed(edit: Edit, name: str) -> None:
    raw = made()
    edit(raw)
    raw["evidence_digest"] = digest_of(raw["evidence"])
    result = verified(raw)
    assert (result.verdict, result.not_compared) == (Verdict.REPRODUCED, (name,) if name else ())


def test_a_verdict_needs_the_gate_metric() -> None:
    raw = made()
    for name in ("p_core", "p_core_host"):
        drop(name)(raw)
    result = verified(raw)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert {"metric p_core", "metric p_core_host"} <= set(result.not_compared)


def test_what_rounding_alone_could_change_is_no_contradiction() -> None:
    raw = made()
    for entry in raw["metrics"]:
        entry["value"] *= 1 + 1e-8
    assert verified(raw).verdict is Verdict.REPRODUCED


def test_an_interval_by_another_method_is_computed_again() -> None:
    raw = made()
    metric("p_core_host", ci95=[1.0, 1e6], ci_method="of an earlier version")(raw)
    result = verified(raw)
    (line,) = (m.measured for m in result.metrics if m.name == "p_core")
    assert line is not None
    assert line.ci95 is not None
    assert (result.verdict, line.ci95[0] > 1850) == (Verdict.REPRODUCED, True)


@pytest.mark.parametrize("remove", [lambda r: r.pop("evidence"), lambda r: r.update(evidence=None)])
def test_a_record_without_evidence_is_inconclusive(remove: Edit) -> None:
    raw, sound = made(), made(run="with-evidence", seed=7)
    remove(raw)
    result = verified(raw)
    assert (result.verdict, result.verdict.exit_code) == (Verdict.INCONCLUSIVE, 11)
    assert Verdict.REPRODUCED not in {m.verdict for m in result.metrics}
    # Whatever it is held against.
    assert verified(raw, claim="distilbert/a100-1x1-fp32-bs96").verdict is result.verdict
    for here, there in ((raw, sound), (sound, raw)):
        found = verify_baseline([read(here)], read(there), CATALOG.cases["distilbert"])
        assert (found.verdict, raw["record_id"] in found.reason) == (Verdict.INCONCLUSIVE, True)


def test_a_record_without_evidence_stays_invalid_otherwise() -> None:
    raw = made()
    del raw["evidence"]
    put("quality", "checks", 0, "ok", value=False)(raw)
    assert verified(raw).verdict is Verdict.INVALID


_SECONDS = st.one_of(st.just(0.0), st.floats(1e-7, 1e-3), st.floats(1e-3, 100.0))


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    claim=st.sampled_from([LORA, AQUILA, "glm/a100-1x2-2023-08"]),
    window=st.booleans(),
    count=st.integers(1, 45),
    most=st.sampled_from([16_000, 20, 5]),
    data=st.data(),
)
def test_the_host_computes_what_the_image_side_made(
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
        case = manifests.load_case(CLAIMS[claim].case)
        least = configs.schedule(configs.preset_of(case["presets"], "reference"))["warmup_steps"] + 1
        raw = honest_record(
            CLAIMS[claim], steps=least + count if window else None, count=count, change=change, status=OK
        )
    found = recompute(read(raw), CATALOG.cases[CLAIMS[claim].case])
    assert (found.unreadable, found.differences) == ((), ())
