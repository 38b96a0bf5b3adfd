"""The record: valid and printable whatever was left behind, and honest about what does not hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.node.request import Request
from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import NOTHING, OK, Evidence, Outcome, read_spool
from flagbench_cases.shared import config
from flagbench_cases.shared.spool import RankSpool, Step

pytestmark = pytest.mark.image

NAN = float("nan")
ROOT = Path(__file__).parents[4]
FAILED = Outcome("failed", "launch", "it broke", "mend it", 4)


def validate(made: dict[str, Any]) -> dict[str, Any]:
    """The record as a reader gets it; held against the schema where jsonschema is installed."""

    def refuse(constant: str) -> None:
        raise AssertionError("%s is no JSON" % constant)

    read = json.loads(assemble.to_line(made), parse_constant=refuse)
    schema = json.loads((ROOT / "manifests/schema/record-v1.json").read_text(encoding="utf-8"))
    try:
        import jsonschema
    except ImportError:
        assert set(schema["required"]) <= set(read)
        for name in ("record_id", "run_id", "case", "stack"):
            assert re.search(schema["properties"][name]["pattern"], read[name]), name
        assert read["status"]["phase"] in schema["properties"]["status"]["properties"]["phase"]["enum"]
    else:
        jsonschema.Draft202012Validator(schema).validate(read)
    return read


def resolved(source: str | None = None, **length: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"steps": None, "max_samples": None, "full": False}
    return config.resolve(
        config.load_case("distilbert"),
        config.load_stack("cpu"),
        nodes=1,
        gpus=2,
        preset="tiny",
        division="faithful",
        precision=None,
        seed=0,
        source=source,
        weights=False,
        settings=[],
        **dict(asked, **length),
    )


def request(configuration: dict[str, Any] | None, **changes: Any) -> Request:
    made = Request(
        argv=["distilbert"],
        case="distilbert",
        stack=config.load_stack("cpu"),
        run_id="run-1",
        preset="tiny",
        division="faithful",
        nodes=1,
        gpus=2,
        config=configuration,
        config_digest=config.digest(configuration) if configuration else None,
        formula="distilbert-matmul/v1" if configuration else None,
        unit="samples",
    )
    return made._replace(**changes)


def step(loss: float = 0.5, device: float = 0.25) -> Step:
    return Step(0.1, 0.01, 0.2, device, NAN, NAN, 0.0, loss, 32.0, 32.0, 4096.0, 512.0, 1e9, 1e8, 0.0)


def evidence(
    losses: list[float],
    sums: tuple[float, ...] = (10.0, 10.0),
    executed: str = "fp32",
    error: float = 1e-7,
    **timing: Any,
) -> Evidence:
    """Two ranks that ran to the end."""
    facts: list[dict[str, Any]] = []

    def fact(kind: str, rank: int, **values: Any) -> None:
        facts.append(dict(values, kind=kind, rank=rank, time=1.0))

    device = {"index": 0, "name": "Some CPU", "memory_bytes": 1}
    for rank in range(2):
        fact("rank", rank, node=0, local_rank=rank, pid=10 + rank, host="h", device=dict(device, index=rank))
        fact("precision", rank, requested="fp32", executed=executed, relative_error=error)
        fact("memory", rank, peak=2**30, allocator_peak=None, parameters=sums[rank])
        fact("ceiling", rank, flops=1e11 * (rank + 1), precision="fp32", method="best of some")
    fact("software", 0, python="3.8.0", torch="1.12.1", cuda=None, packages={})
    fact("workload", 0, conditions={"batch_size": 32}, data={"source": "x"}, parameters=5)
    fact("timing", 0, **dict({"init": 1.0, "train": 20.0, "eval": 0.0, "e2e": 22.0, "converged": None}, **timing))
    fact("evaluation", 0, epoch=0, steps=1, accuracy=0.9, published_accuracy=0.91, counted=10, extra=[], seconds=1.0)
    steps = [step(loss) for loss in losses]
    return Evidence({0: steps, 1: list(steps)}, facts, {}, {"samples": 3}, None)


def checks(found: Evidence, configuration: dict[str, Any], outcome: Outcome = OK) -> dict[str, bool]:
    made = validate(assemble.assemble(request(configuration), found, outcome))
    return {check["name"]: check["ok"] for check in made["quality"]["checks"]}


WARMUP = resolved()["train"]["warmup_steps"]
WINDOW = WARMUP + 30


def test_a_good_run_passes_every_check() -> None:
    assert checks(evidence([0.5] * WINDOW), resolved(steps=30)) == {
        "precision": True,
        "loss_finite": True,
        "parameters_finite": True,
        "ranks_in_step": True,
        "rates_in_order": True,
        "steps": True,
    }


@pytest.mark.parametrize("executed", ["tf32", "bf16", "wrong"])
def test_another_precision_than_asked_for_is_found(executed: str) -> None:
    assert checks(evidence([0.5] * WINDOW, executed=executed), resolved(steps=30))["precision"] is False


def test_one_rank_of_another_precision_is_enough() -> None:
    found = evidence([0.5] * WINDOW)
    next(f for f in found.facts if f["kind"] == "precision" and f["rank"] == 1)["executed"] = "tf32"
    assert checks(found, resolved(steps=30))["precision"] is False


def test_a_precision_that_nobody_proved_is_not_believed() -> None:
    found = evidence([0.5] * WINDOW)
    without = found._replace(facts=[f for f in found.facts if f["kind"] != "precision"])
    assert checks(without, resolved(steps=30))["precision"] is False


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_loss_that_is_no_number_is_found_and_left_out(bad: float) -> None:
    found = evidence([0.5] * 12 + [bad] + [0.5] * (WINDOW - 13))
    made = validate(assemble.assemble(request(resolved(steps=30)), found, OK))
    (check,) = (c for c in made["quality"]["checks"] if c["name"] == "loss_finite")
    assert (check["ok"], check["detail"]) == (False, "not finite at step 12")
    assert 12 not in [point[0] for point in made["quality"]["loss_curve"]]
    assert "loss" not in {metric["name"] for metric in made["metrics"]}


@pytest.mark.parametrize(
    ("sums", "ok"),
    [
        ((10.0, 10.0), True),
        ((1e6, 1e6 + 0.5), True),
        ((10.0, 10.1), False),
        ((10.0, NAN), False),
        ((NAN, 10.0), False),
        ((NAN, NAN), False),
        ((float("inf"), float("inf")), False),
    ],
)
def test_ranks_out_of_step_are_found(sums: tuple[float, float], ok: bool) -> None:
    assert checks(evidence([0.5] * WINDOW, sums=sums), resolved(steps=30))["ranks_in_step"] is ok


def test_rates_out_of_order_are_found() -> None:
    """Each step's own time is 0.31 s; its device's 0.25 s must lie within that, and all of them within training."""
    good = evidence([0.5] * WINDOW)
    broken = good._replace(steps={0: good.steps[0], 1: [s._replace(device=0.33) for s in good.steps[1]]})
    short = evidence([0.5] * WINDOW, train=0.31 * WINDOW - 0.5)
    names = [checks(found, resolved(steps=30))["rates_in_order"] for found in (good, broken, short)]
    assert names == [True, False, False]


def test_the_window_is_of_the_rank_whose_sum_is_largest() -> None:
    good = evidence([0.5] * WINDOW)
    late = good._replace(steps={0: good.steps[0], 1: [s._replace(device=0.26) for s in good.steps[1]]})
    window = validate(assemble.assemble(request(resolved(steps=30)), late, OK))["window"]
    assert window["rank"] == 1
    assert window["seconds"] == pytest.approx(30 * 0.26)
    assert window["host_seconds"] == pytest.approx(30 * 0.31)
    assert window["step_seconds"] == [0.26] * 30


@pytest.mark.parametrize("steps", [WINDOW - 1, WINDOW + 1])
def test_a_window_of_another_length_is_found(steps: int) -> None:
    assert checks(evidence([0.5] * steps), resolved(steps=30))["steps"] is False


def test_a_broken_run_is_not_asked_for_its_whole_window() -> None:
    assert "steps" not in checks(evidence([0.5] * 20), resolved(steps=30), FAILED)


ALL = (
    "precision",
    "loss_finite",
    "parameters_finite",
    "ranks_in_step",
    "rates_in_order",
    "steps",
    "evaluated",
    "learned",
    "above_chance",
)


def ended(found: Evidence, configuration: dict[str, Any], outcome: Outcome = OK) -> dict[str, Any]:
    """The record of a run whose manifest names every check."""
    return validate(assemble.assemble(request(configuration, checks=ALL), found, outcome))


def test_a_run_whose_checks_hold_is_ok_and_one_of_the_publisher_is_held_against_more() -> None:
    assert ended(evidence([0.5] * WINDOW), resolved(steps=30))["status"]["state"] == "ok"
    made = ended(whole_run(), resolved(source="files"))
    assert made["status"] == dict(OK.as_dict())
    assert {check["name"] for check in made["quality"]["checks"]} == set(ALL)


def test_a_run_whose_own_check_fails_is_no_success_and_keeps_its_metrics() -> None:
    made = ended(evidence([0.5] * WINDOW, sums=(10.0, 10.1)), resolved(steps=30))
    status = made["status"]
    assert (status["state"], status["phase"], status["exit_code"]) == ("failed", "report", 12)
    assert "ranks_in_step" in status["reason"]
    assert status["remedy"]
    assert {"p_core", "p_train", "loss"} <= {metric["name"] for metric in made["metrics"]}


@pytest.mark.parametrize(
    ("lost", "check"),
    [
        ("precision", "precision"),
        ("memory", "parameters_finite"),
        ("memory", "ranks_in_step"),
        ("plan", "steps"),
        ("evaluation", "evaluated"),
        ("workload", "above_chance"),
    ],
)
def test_a_check_that_the_manifest_names_and_nobody_could_make_has_failed(lost: str, check: str) -> None:
    found = whole_run()
    made = ended(found._replace(facts=[f for f in found.facts if f["kind"] != lost]), resolved(source="files"))
    assert (made["status"]["state"], made["status"]["exit_code"]) == ("failed", 12)
    assert {c["name"]: c["ok"] for c in made["quality"]["checks"]}[check] is False


def test_a_check_that_nobody_knows_has_failed() -> None:
    made = validate(
        assemble.assemble(
            request(resolved(steps=30), checks=("loss_finite", "no_such")), evidence([0.5] * WINDOW), OK
        )
    )
    assert (made["status"]["exit_code"], made["quality"]["checks"][-1]["name"]) == (12, "no_such")


def test_a_run_without_a_step_is_no_success() -> None:
    made = ended(evidence([]), resolved(steps=30))
    assert (made["status"]["state"], made["status"]["exit_code"]) == ("failed", 12)
    one_rank = evidence([0.5] * WINDOW)
    made = ended(one_rank._replace(steps={0: one_rank.steps[0]}), resolved(steps=30))
    assert (made["status"]["state"], made["status"]["exit_code"]) == ("failed", 12)


def test_the_end_of_a_run_that_broke_off_is_not_changed_by_its_checks() -> None:
    made = ended(evidence([NAN] * 20), resolved(steps=30), FAILED)
    assert made["status"]["exit_code"] == FAILED.exit_code


@pytest.mark.parametrize(("converged", "steps", "ok"), [(True, 60, True), (False, 60, False), (False, 100, True)])
def test_a_published_run_has_all_steps_or_reached_its_target(converged: bool, steps: int, ok: bool) -> None:
    made = ended(whole_run([0.5] * 50 + [0.1] * (steps - 50), converged), resolved(source="files"))
    assert {c["name"]: c["ok"] for c in made["quality"]["checks"]}["steps"] is ok


def test_one_rank_with_fewer_steps_is_found() -> None:
    found = evidence([0.5] * WINDOW)
    found.steps[1].pop()
    assert checks(found, resolved(steps=30))["steps"] is False


def test_steps_that_the_loss_scaler_left_out_need_no_finite_loss() -> None:
    found = evidence([0.5] * 12 + [NAN] + [0.5] * (WINDOW - 13))
    found.facts.append({"kind": "skipped", "rank": 0, "time": 1.0, "step": 12})
    assert checks(found, resolved(steps=30))["loss_finite"] is True


@pytest.mark.parametrize("sums", [(NAN, NAN), (10.0, float("inf"))])
def test_parameters_that_are_no_numbers_are_found(sums: tuple[float, float]) -> None:
    assert checks(evidence([0.5] * WINDOW, sums=sums), resolved(steps=30))["parameters_finite"] is False


def whole_run(losses: list[float] | None = None, converged: bool = False) -> Evidence:
    """Two ranks that ran to the published end, planned as 100 steps."""
    losses = [0.5] * 50 + [0.1] * 50 if losses is None else losses
    found = evidence(losses, converged=converged, train=40.0, e2e=42.0)
    next(fact for fact in found.facts if fact["kind"] == "evaluation")["steps"] = len(losses)
    next(fact for fact in found.facts if fact["kind"] == "workload")["chance"] = 0.25
    found.facts.append({"kind": "plan", "rank": 0, "time": 1.0, "steps": 100})
    return found


@pytest.mark.parametrize(("last", "ok"), [(0.1, True), (0.5, False), (0.9, False)])
def test_a_run_that_did_not_learn_is_found(last: float, ok: bool) -> None:
    losses = [0.5] * 50 + [last] * 50
    assert checks(evidence(losses, converged=False), resolved(source="files"))["learned"] is ok
    assert "learned" not in checks(evidence(losses), resolved(source="synthetic", full=True))


def above_chance(found: Evidence, source: str | None = None, outcome: Outcome = OK, **length: Any) -> bool | None:
    """What the check says of a whole run; None where it is not made."""
    return checks(found, resolved(source=source, **length), outcome).get("above_chance")


def examined(accuracy: float | None, chance: float | None = 0.25, counted: int = 48) -> Evidence:
    """A run whose last evaluation had this accuracy; three standard errors of 48 guesses at 1/4 are 0.1875."""
    found = evidence([0.5] * 50 + [0.1] * 50, converged=False)
    last = next(fact for fact in found.facts if fact["kind"] == "evaluation")
    last.update(accuracy=accuracy, counted=counted)
    # Before training a model may answer all of it right: that says nothing of the training.
    found.facts.append(dict(last, epoch=-1, accuracy=1.0))
    if chance is not None:
        next(fact for fact in found.facts if fact["kind"] == "workload")["chance"] = chance
    return found


@pytest.mark.parametrize(
    ("accuracy", "chance", "counted", "ok"),
    [
        (0.9, 0.25, 48, True),
        (0.438, 0.25, 48, True),
        (0.437, 0.25, 48, False),
        (0.437, 0.25, 96, True),
        (0.25, 0.25, 48, False),
        (0.0, 0.25, 10000, False),
        (1.0, 1.0, 48, False),
    ],
)
def test_an_accuracy_is_held_against_guessing(accuracy: float, chance: float, counted: int, ok: bool) -> None:
    assert above_chance(examined(accuracy, chance, counted)) is ok


def test_the_last_accuracy_is_the_one_that_counts() -> None:
    found = examined(0.9)
    first = next(fact for fact in found.facts if fact["kind"] == "evaluation")
    found.facts.append(dict(first, epoch=1, accuracy=0.3))
    assert above_chance(found) is False
    found.facts.append(dict(first, epoch=2, accuracy=None))  # asked for none
    assert above_chance(found) is False


def test_what_guessing_gives_is_asked_only_where_it_means_something() -> None:
    assert above_chance(examined(0.9, None)) is None, "the workload knows no chance"
    assert above_chance(examined(None)) is None, "no evaluation asked for an accuracy"
    assert above_chance(examined(0.9), source="synthetic", full=True) is None
    assert above_chance(examined(0.9), outcome=FAILED) is None
    before = examined(0.9)
    before.facts[:] = [f for f in before.facts if f["kind"] != "evaluation" or f["epoch"] < 0]
    assert above_chance(before) is None, "only before training"


def test_a_resumed_run_is_held_against_guessing_but_not_against_its_beginning() -> None:
    found = examined(0.9)
    assert {"learned", "above_chance"} <= set(checks(found, resolved(source="files")))
    found.facts.append({"kind": "resumed", "rank": 0, "time": 1.0, "steps": 10})
    made = checks(found, resolved(source="files"))
    assert "learned" not in made
    assert made["above_chance"] is True


def test_what_a_run_measured_is_in_its_record() -> None:
    made = validate(assemble.assemble(request(resolved(steps=30)), evidence([0.5] * WINDOW), OK))
    found = {metric["name"]: metric["value"] for metric in made["metrics"]}
    assert found["p_core"] == pytest.approx(64 / 0.25)
    assert found["p_core_host"] == pytest.approx(64 / 0.2)
    assert found["p_train"] == pytest.approx(64 / 0.31)
    assert found["mem_peak"] == 1.0
    assert found["mfu_measured"] == pytest.approx(4e9 / 1e11)  # against the slowest rank's ceiling
    assert "p_whole" not in found
    assert "e2e_time" not in found
    assert "mfu" not in found  # a processor has no datasheet peak here
    assert made["flops"]["peak"] is None
    assert "cpu" in made["flops"]["peak_reason"]
    assert made["window"]["steps"] == 30
    assert made["conditions"]["precision"] == "fp32"
    assert made["conditions"]["batch_size"] == 32
    assert made["timing"]["warmup"] == pytest.approx(WARMUP * 0.31)
    assert [rank["step_median"] for rank in made["ranks"]] == [0.25, 0.25]


def test_the_whole_published_run_has_its_own_metrics_only_when_it_ended_well() -> None:
    found = evidence([0.5] * 100, converged=True)
    whole = {m["name"]: m["value"] for m in assemble.assemble(request(resolved()), found, OK)["metrics"]}
    assert whole["p_whole"] == 100 * 64 / 20.0
    assert whole["e2e_time"] == 22.0
    broken = {m["name"] for m in assemble.assemble(request(resolved()), found, FAILED)["metrics"]}
    assert not {"p_whole", "e2e_time"} & broken
    assert "p_core" in broken


def test_the_record_of_nothing() -> None:
    made = validate(assemble.assemble(request(None), NOTHING, Outcome("failed", "usage", "no", "do", 2)))
    assert made["config"] is None
    assert made["metrics"] == []
    assert made["telemetry_reason"]
    assert made["software"]["torch"] is None
    assert made["status"] == {"state": "failed", "phase": "usage", "reason": "no", "remedy": "do", "exit_code": 2}


def test_the_record_of_a_run_that_never_began() -> None:
    made = validate(assemble.assemble(request(resolved()), NOTHING, FAILED))
    assert made["conditions"]["precision"] is None
    assert made["quality"] is None
    assert made["config_digest"].startswith("sha256:")


def test_a_device_that_measures_nothing_but_nan_leaves_a_valid_record() -> None:
    found = evidence([NAN] * WINDOW, sums=(NAN, NAN), executed="wrong", error=NAN)
    made = validate(assemble.assemble(request(resolved(steps=30)), found, OK))
    assert made["software"]["precision"]["relative_error"] is None
    assert [c["name"] for c in made["quality"]["checks"] if not c["ok"]] == [
        "precision",
        "loss_finite",
        "parameters_finite",
        "ranks_in_step",
    ]
    assert (made["status"]["state"], made["status"]["exit_code"]) == ("failed", 12)


@pytest.mark.parametrize(
    "case",
    [
        "",
        "../../etc/passwd",
        "case=x/../y",
        "DistilBERT",
        "ü",
        "-x",
        "..",
        "a\nb",
        "a" * 500,
        "\udcff",
        "<script>",
        "a b",
        "名前",
        "'; drop",
    ],
)
def test_a_hostile_case_name_stays_valid_and_inside_its_folder(case: str) -> None:
    made = validate(assemble.assemble(request(None, case=case, argv=[case]), NOTHING, FAILED))
    for name in (made["case"], made["record_id"]):
        assert re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.-]*", name)
        assert ".." not in name or "/" not in name
    assert made["case"] not in (".", "..")


def test_the_largest_job_that_can_be_asked_for_has_a_valid_name() -> None:
    huge = request(None, case="a" * 500, nodes=10**12 - 1, gpus=10**12 - 1)
    validate(assemble.assemble(huge, NOTHING, FAILED))


def test_record_ids_differ() -> None:
    made = {assemble.assemble(request(None), NOTHING, FAILED)["record_id"] for _ in range(20)}
    assert len(made) == 20


def test_a_line_is_one_line_of_strict_utf8() -> None:
    line = assemble.to_line({"a": "x\ny\u2028", "b": "ü\udcff", "c": [float("inf"), (1.5, NAN)], "d": True})
    assert "\n" not in line
    assert json.loads(line.encode("utf-8").decode("utf-8")) == {
        "a": "x\ny\u2028",
        "b": "ü?",
        "c": [None, [1.5, None]],
        "d": True,
    }


def test_the_spool_of_a_job_is_read_rank_by_rank(tmp_path: Path) -> None:
    for rank in (0, 2):
        spool = RankSpool(str(tmp_path), rank)
        spool.reserve(1)
        spool.step(step())
        spool.fact("rank", node=0)
    found = read_spool(str(tmp_path), 3)
    assert sorted(found.steps) == [0, 2]  # rank 1 left nothing
    assert [fact["rank"] for fact in found.of("rank")] == [0, 2]
    assert found.first("rank") == {"node": 0}
    assert found.first("nothing") == {}


@pytest.mark.parametrize(
    ("stack", "name", "model"),
    [
        ("a100-cuda11.6", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("a100-cuda11.8", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("a100-cuda11.6", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("hopper-cuda13", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("hopper-cuda13", "NVIDIA H200", "NVIDIA H200"),
        ("hopper-cuda13", "NVIDIA H200 NVL", None),
        ("hopper-cuda13", "NVIDIA GH200 480GB", None),
        ("hopper-cuda13", "NVIDIA GH200 144G HBM3e", None),
        ("hopper-cuda13", "NVIDIA H200 MIG 1g.18gb", None),
        ("c500-maca2.18", "MetaX C500", "MetaX C500 (OAM)"),
        ("c500-maca3", "MXC500", "MetaX C500 (OAM)"),
    ],
)
def test_a_device_is_known_by_its_whole_name(stack: str, name: str, model: str | None) -> None:
    """A slice of it, and another board of its family, keeps its own name and has no peak."""
    found = evidence([0.5] * WINDOW, executed="bf16")
    for fact in found.of("rank"):
        fact["device"]["name"] = name
    made = assemble.assemble(request(resolved(), stack=config.load_stack(stack)), found, OK)
    assert made["conditions"]["device_model"] == (model or name)
    assert (made["flops"]["peak"] is not None) == (model is not None)
