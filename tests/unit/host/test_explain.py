"""`verify --explain`: a planted cause is found, comes first, and accounts for the gap that it made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from typer.testing import CliRunner

from catalogs import CATALOG
from flagbench.cli.main import app
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.report import explanation_page
from flagbench.verdict import Verdict, verify_baseline, verify_claim
from flagbench.verdict.explain import Explanation, explain
from flagbench_cases.shared.spool import Step
from honest import EVEN, Pace, honest_record

REPLAYS = Path(__file__).parent / "verdict" / "replays"
CLAIM = "distilbert/a100-1x8-fp32"
Plant = tuple[dict[str, Any], float, str]
"""The arguments of `honest_record`, the share of its time that the cause takes, and its name."""


def device(**fields: Any) -> dict[str, Any]:
    """Telemetry of eight devices at full speed, but for `fields`."""
    lowest = (fields.get("sm_clock_mean_mhz") or 1400.0) - 20
    usual = {"sm_clock_mean_mhz": 1400.0, "sm_clock_min_mhz": lowest, "sm_clock_max_mhz": 1410.0}
    usual |= {"power_limit_w": 400.0, "power_limit_default_w": 400.0, "temperature_max_c": 60.0}
    return {"name": "NVIDIA A100-SXM4-40GB", "throttle_seconds": {}, "foreign_processes": 0, **usual, **fields}


def telemetry(changed: dict[str, Any] | None = None, only: int | None = None, **cpu: Any) -> dict[str, Any]:
    devices = [device(**(changed or {})) if only in (None, number) else device() for number in range(8)]
    return {"devices": devices, "cpu": {"util_mean": 0.1, "others_mean": 0.02, "steal_mean": 0.0, **cpu}}


def slower(share: float) -> Callable[[int, Step], Step]:
    """Every step takes so much longer that `share` of it is new."""
    factor = 1 / (1 - share)
    return lambda rank, step: step._replace(host=step.host * factor, device=step.device * factor)


def late(step: Step, seconds: float) -> Step:
    """A step that is longer by as much, on the device."""
    return step._replace(host=step.host + seconds, device=step.device + seconds)


def data_wait(share: float) -> Plant:
    def change(rank: int, step: Step) -> Step:
        own = step.data_wait + step.to_device + step.host + step.after
        return step._replace(data_wait=step.data_wait + own * share / (1 - share))

    return {"change": change}, share, "data_wait"


def evaluation(share: float) -> Plant:
    return {"pace": Pace(evaluating=share)}, share, "evaluation"


def straggler(share: float) -> Plant:
    def change(rank: int, step: Step) -> Step:
        seconds = step.host * share / (1 - share)
        return late(step, seconds)._replace(
            first_collective=0.3 * step.host, collective_wait=1e-4 if rank == 5 else 1e-4 + seconds
        )

    return {"change": change}, share, "straggler"


def quota(share: float) -> Plant:
    limited = telemetry(quota=8 * (1 - share) * 0.9, throttled=1.0)
    return {"change": slower(share), "telemetry": limited, "pace": Pace(waiting=share)}, share, "cpu_quota"


def tenants(share: float) -> Plant:
    return (
        {"change": slower(share), "telemetry": telemetry(others_mean=3.0), "pace": Pace(waiting=share)},
        share,
        "other_tenants",
    )


def crowded(share: float) -> Plant:
    return {"change": slower(share), "pace": Pace(waiting=share)}, share, "processors"


def throttled(share: float) -> Plant:
    hot = {"sm_clock_mean_mhz": 1410 * (1 - share), "throttle_seconds": {"hw_thermal_slowdown": 40.0}}
    return {"change": slower(share), "telemetry": telemetry({**hot, "temperature_max_c": 91.0})}, share, "throttling"


def capped(share: float) -> Plant:
    low = {
        "sm_clock_mean_mhz": 1410 * (1 - share),
        "throttle_seconds": {"sw_power_cap": 60.0},
        "power_limit_w": 250.0,
    }
    return {"change": slower(share), "telemetry": telemetry(low)}, share, "power_cap"


def low_clocks(share: float) -> Plant:
    low = {"sm_clock_mean_mhz": 1410 * (1 - share), "throttle_seconds": {"applications_clocks_setting": 60.0}}
    return {"change": slower(share), "telemetry": telemetry(low)}, share, "clocks"


def one_slow_device(share: float) -> Plant:
    low = {"sm_clock_mean_mhz": 1410 * (1 - share), "throttle_seconds": {"hw_thermal_slowdown": 40.0}}

    def change(rank: int, step: Step) -> Step:
        seconds = step.host * share / (1 - share)
        return late(step, seconds)._replace(
            first_collective=0.3 * step.host, collective_wait=1e-4 if rank == 3 else 1e-4 + seconds
        )

    return {"change": change, "telemetry": telemetry(low, only=3)}, share, "straggler"


def low_ceiling(share: float) -> Plant:
    # Model FLOPs are a quarter of the peak, so 0.3125 of the ceiling: what the products take of the time.
    times = 1 + share / (1 - share) / 0.3125
    return {"change": slower(share), "pace": Pace(ceiling=0.8 / times)}, share, "low_ceiling"


def kernels(share: float) -> Plant:
    return {"change": slower(share), "training": {"adamw": "torch", "layer_norm": "torch"}}, share, "kernel_fallback"


def foreign(share: float) -> Plant:
    return {"change": slower(share), "telemetry": telemetry({"foreign_processes": 1})}, share, "device_tenants"


PLANTS = (
    *(data_wait, evaluation, straggler, quota, tenants, crowded, throttled, capped, low_clocks, one_slow_device),
    *(low_ceiling, kernels, foreign),
)


def made(claim: str, seed: int, pace: Pace = EVEN, training: dict[str, Any] | None = None, **planted: Any) -> Record:
    """A made-up run of a claim, with what was planted in it."""
    found = honest_record(CATALOG.claims[claim], pace._replace(seed=seed), **{"telemetry": telemetry(), **planted})
    found["quality"]["training"] = training or {"adamw": "apex", "layer_norm": "apex"}
    found.update(record_id=f"{found['record_id']}-{seed}", run_id=f"run-{seed}")
    found["created_at"] = f"2026-01-01T{seed // 60:02}:{seed % 60:02}:00Z"
    for rank in found["ranks"]:
        rank["pid"] += 1000 * seed
    return read_record(json.dumps(found).encode())


def against(record: Record, healthy: Record) -> Explanation:
    """Why a run is slower than another."""
    case = CATALOG.cases[record.case]
    result = verify_baseline([record], healthy, case)
    assert result.verdict in (Verdict.SLOWER, Verdict.INCONCLUSIVE), result.reason
    return explain([record], result, case, [healthy])


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_cause_comes_first_and_explains_the_gap(plant: Callable[[float], Plant]) -> None:
    for seed, share in enumerate((0.15, 0.4)):
        planted, share, name = plant(share)
        first = against(made(CLAIM, seed, **planted), made(CLAIM, 100 + seed)).causes[0]
        assert first.name == name
        # The rate that is explained may count more than what was made slower.
        assert 0.7 * share - 0.02 < (first.time or 0.0) < 1.1 * share + 0.02


def test_a_healthy_run_is_not_slow_and_nothing_is_blamed() -> None:
    found = against(made(CLAIM, 0), made(CLAIM, 100))
    assert (found.causes, found.gap) == ((), pytest.approx(0.0, abs=0.01))
    assert "is not below the baseline's by more than 1%" in explanation_page(found)


def test_two_causes_share_a_gap() -> None:
    def change(rank: int, step: Step) -> Step:
        return slower(0.2)(rank, data_wait(0.1)[0]["change"](rank, step))

    hot = telemetry({"sm_clock_mean_mhz": 1128.0, "throttle_seconds": {"hw_thermal_slowdown": 40.0}})
    found = against(made(CLAIM, 0, change=change, telemetry=hot), made(CLAIM, 100))
    assert [cause.name for cause in found.causes] == ["throttling", "data_wait"]
    assert 0.9 < sum(cause.gap or 0.0 for cause in found.causes) < 1.3  # the made-up run evaluates in less time
    assert found.unexplained == pytest.approx(0.0, abs=0.1)


def test_what_the_row_itself_waited_is_not_blamed() -> None:
    """The row's own rates say how long the publisher's loop waited."""
    record = made(CLAIM, 0, change=slower(0.3), telemetry=telemetry({"foreign_processes": 2}))
    result = verify_claim([record], CATALOG.claims[CLAIM], CATALOG.cases["distilbert"])
    found = explain([record], result, CATALOG.cases["distilbert"])
    assert result.verdict is Verdict.BELOW
    assert (found.causes[0].name, found.causes[0].at_most) == ("device_tenants", True)
    assert all((cause.time or 0.0) < 0.02 for cause in found.causes[1:])


def test_tf32_that_is_off_is_found_against_the_row() -> None:
    """The row is of TF32; in fp32 the products take up to eight times as long."""
    claim, case = CATALOG.claims[CLAIM], CATALOG.cases["distilbert"]
    in_fp32 = replace(claim, run=replace(claim.run, precision="fp32"))
    slow, ceiling = Pace(slower=3.0, ceiling=0.95), telemetry()
    record = read_record(json.dumps(honest_record(in_fp32, slow, telemetry=ceiling)).encode())
    result = verify_claim([record], claim, case)
    found = explain([record], result, case)
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert found.causes[0].name == "precision"
    assert "matrix products ran in fp32, and tf32 is expected" in found.causes[0].seen


def test_without_a_rate_shares_are_of_its_own_time() -> None:
    tiny = read_record((REPLAYS / "cpu-tiny.json").read_bytes())
    result = verify_claim([tiny], CATALOG.claims[CLAIM], CATALOG.cases["distilbert"])
    found = explain([tiny], result, CATALOG.cases["distilbert"])
    assert (found.metric, found.gap, found.unexplained) == (None, None, None)
    assert "shares are of the run's own time" in explanation_page(found)
    assert all(cause.gap is None for cause in found.causes)


def test_the_command_line(tmp_path: Path) -> None:
    slow = made(CLAIM, 0, **data_wait(0.3)[0])
    files = []
    for name, record in (("slow", slow), ("healthy", made(CLAIM, 100))):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(record.raw))
    arguments = ["verify", str(files[0]), "--baseline", str(files[1]), "--explain"]
    shown = CliRunner().invoke(app, arguments)
    assert "waiting for data" in shown.stdout
    assert "put the prepared data on a local disk" in shown.stdout
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["explanation"]
    assert told["causes"][0]["name"] == "data_wait"
    assert "explanation" not in json.loads(CliRunner().invoke(app, [*arguments[:-1], "--json"]).stdout)


def test_a_record_without_evidence_explains_nothing() -> None:
    case, claim = CATALOG.cases["distilbert"], CATALOG.claims[CLAIM]
    record = structs.replace(made(CLAIM, 0), evidence=None)
    found = explain([record], verify_claim([record], claim, case), case)
    assert (found.causes, found.reason) == ((), "a record has no evidence of steps")


def test_an_invalid_record_has_no_gap_but_its_own_time() -> None:
    case, claim = CATALOG.cases["distilbert"], CATALOG.claims[CLAIM]
    record = made(CLAIM, 0, **data_wait(0.3)[0])
    record = structs.replace(record, metrics=(*record.metrics, record.metrics[0]))
    result = verify_claim([record], claim, case)
    found = explain([record], result, case)
    assert (result.verdict, found.gap, found.causes[0].name) == (Verdict.INVALID, None, "data_wait")
    assert "the record is INVALID" in explanation_page(found)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"throttle_seconds": {"hw_thermal_slowdown": 9.0}}, "throttling"),
        ({"power_limit_w": 200.0}, "power_cap"),
    ],
)
def test_what_no_clock_tells_is_at_most_the_gap(fields: dict[str, Any], name: str) -> None:
    unknown = {"sm_clock_mean_mhz": None, "sm_clock_min_mhz": None}
    found = against(made(CLAIM, 0, change=slower(0.3), telemetry=telemetry({**unknown, **fields})), made(CLAIM, 100))
    assert [(cause.name, cause.at_most) for cause in found.causes] == [(name, True)]


def _empty(raw: dict[str, Any]) -> None:
    raw["evidence"] = {"version": 1, "block": 1, "ranks": 10**30, "spans": []}


def _no_loop(raw: dict[str, Any]) -> None:
    for span in raw["evidence"]["spans"]:
        span["columns"].update(host=0, data_wait=0, to_device=0, after=0)


def _no_training(raw: dict[str, Any]) -> None:
    raw["evidence"]["timing"].update(train=1, eval=10**15)


@pytest.mark.parametrize("edit", [_empty, _no_loop, _no_training])
def test_empty_evidence_explains_nothing(edit: Any) -> None:
    raw = honest_record(CATALOG.claims[CLAIM])
    edit(raw)
    record = read_record(json.dumps(raw).encode())
    case, claim = CATALOG.cases["distilbert"], CATALOG.claims[CLAIM]
    result = verify_claim([record], claim, case)
    assert result.verdict is Verdict.INVALID
    explain([record], result, case)
