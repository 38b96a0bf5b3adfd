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
from flagbench.verdict.causes import Counts, find_idle_device, open_run
from flagbench.verdict.explain import Explanation, explain
from flagbench_cases.shared.spool import Step
from forging import consistent
from honest import EVEN, Pace, honest_record

from .conftest import CASE, CLAIM, MEASURED, REPLAYS

TESTED = "records"
Plant = dict[str, Any]
"""Arguments of `made`."""
Change = Callable[[int, Step], Step]


def telemetry(changed: dict[str, Any] | None = None, only: int | None = None, **cpu: Any) -> dict[str, Any]:
    """Telemetry of eight devices at full speed, but for `changed`, of all or of one."""
    usual = {"name": "NVIDIA A100-SXM4-40GB", "throttle_seconds": {}, "foreign_processes": 0}
    usual |= {"sm_clock_mean_mhz": 1400.0, "sm_clock_min_mhz": 1380.0, "sm_clock_max_mhz": 1410.0}
    usual |= {"power_limit_w": 400.0, "power_limit_default_w": 400.0, "temperature_max_c": 60.0}
    devices = [{**usual, **(changed or {})} if only in (None, number) else usual for number in range(8)]
    return {"devices": devices, "cpu": {"util_mean": 0.1, "others_mean": 0.02, "steal_mean": 0.0, **cpu}}


def clocked(share: float, reason: str, only: int | None = None, **fields: Any) -> dict[str, Any]:
    """Telemetry of devices whose clocks are lower by a share, for a reason."""
    clock = 1410 * (1 - share)
    low = {"sm_clock_mean_mhz": clock, "sm_clock_min_mhz": clock - 20, "throttle_seconds": {reason: 40.0}}
    return telemetry({**low, **fields}, only)


def idle(share: float) -> dict[str, Any]:
    """Telemetry of devices that have no work for a share of the time."""
    return {**telemetry({"util_mean": 1 - share - 0.001}), "samples": 1000}


def slower(share: float) -> Change:
    """Every step takes so much longer that `share` of it is new."""
    factor = 1 / (1 - share)
    return lambda rank, step: step._replace(host=step.host * factor, device=step.device * factor)


def late(share: float, slow: int) -> Change:
    """One rank computes longer, and all others wait for it."""

    def change(rank: int, step: Step) -> Step:
        seconds = step.host * share / (1 - share)
        return step._replace(
            host=step.host + seconds,
            device=step.device + seconds,
            first_collective=0.3 * step.host,
            collective_wait=1e-4 if rank == slow else 1e-4 + seconds,
        )

    return change


def loading(share: float) -> Change:
    def change(rank: int, step: Step) -> Step:
        own = step.data_wait + step.to_device + step.host + step.after
        return step._replace(data_wait=step.data_wait + own * share / (1 - share))

    return change


def computing(share: float, **planted: Any) -> Plant:
    return {"change": slower(share), **planted}


PLANTS: tuple[tuple[str, Callable[[float], Plant]], ...] = (
    ("data_wait", lambda s: {"change": loading(s)}),
    ("evaluation", lambda s: {"pace": Pace(evaluating=s)}),
    ("straggler", lambda s: {"change": late(s, 5)}),
    ("straggler", lambda s: {"change": late(s, 3), "telemetry": clocked(s, "hw_thermal_slowdown", only=3)}),
    (
        "cpu_quota",
        lambda s: computing(s, telemetry=telemetry(quota=8 * (1 - s) * 0.9, throttled=1.0), pace=Pace(waiting=s)),
    ),
    ("other_tenants", lambda s: computing(s, telemetry=telemetry(others_mean=3.0), pace=Pace(waiting=s))),
    ("processors", lambda s: computing(s, pace=Pace(waiting=s))),
    ("device_idle", lambda s: computing(s, telemetry=idle(s))),
    ("throttling", lambda s: computing(s, telemetry=clocked(s, "hw_thermal_slowdown", temperature_max_c=91.0))),
    ("power_cap", lambda s: computing(s, telemetry=clocked(s, "sw_power_cap", power_limit_w=250.0))),
    ("clocks", lambda s: computing(s, telemetry=clocked(s, "applications_clocks_setting"))),
    # Model FLOPs are a quarter of the peak, so 0.3125 of the ceiling: what the products take of the time.
    ("low_ceiling", lambda s: computing(s, pace=Pace(ceiling=0.8 / (1 + s / (1 - s) / 0.3125)))),
    ("kernel_fallback", lambda s: computing(s, training={"adamw": "torch", "layer_norm": "torch"})),
    ("device_tenants", lambda s: computing(s, telemetry=telemetry({"foreign_processes": 1}))),
)


def made(seed: int, pace: Pace = EVEN, training: dict[str, Any] | None = None, **planted: Any) -> Record:
    """A made-up run of CLAIM, with what was planted in it."""
    found = honest_record(CLAIM, pace._replace(seed=seed), **{"telemetry": telemetry(), **planted})
    found["quality"]["training"] = training or {"adamw": "apex", "layer_norm": "apex"}
    found.update(record_id=f"{found['record_id']}-{seed}", run_id=f"run-{seed}")
    found["created_at"] = f"2026-01-01T{seed // 60:02}:{seed % 60:02}:00Z"
    for rank in found["ranks"]:
        rank["pid"] += 1000 * seed
    return read_record(json.dumps(found).encode())


HEALTHY = made(100)


def against_healthy(record: Record) -> Explanation:
    """Why a run is slower than HEALTHY."""
    result = verify_baseline([record], HEALTHY, CASE)
    assert result.verdict in (Verdict.SLOWER, Verdict.INCONCLUSIVE), result.reason
    return explain([record], result, CASE, [HEALTHY])


def against_claim(record: Record) -> tuple[Verdict, Explanation]:
    result = verify_claim([record], CLAIM, CASE)
    return result.verdict, explain([record], result, CASE)


@pytest.mark.parametrize(("name", "plant"), PLANTS, ids=[name for name, _ in PLANTS])
@pytest.mark.parametrize("share", [0.15, 0.4])
def test_a_planted_cause_explains_the_gap(name: str, plant: Callable[[float], Plant], share: float) -> None:
    first = against_healthy(made(0, **plant(share))).causes[0]
    assert first.name == name
    # The rate that is explained may count more than what was made slower.
    assert 0.7 * share - 0.02 < (first.time or 0.0) < 1.1 * share + 0.02


def test_nothing_is_blamed_in_a_healthy_run() -> None:
    found = against_healthy(made(0))
    assert (found.causes, found.gap) == ((), pytest.approx(0.0, abs=0.01))
    assert found.reason


def test_two_causes_share_a_gap() -> None:
    def change(rank: int, step: Step) -> Step:
        return slower(0.2)(rank, loading(0.1)(rank, step))

    found = against_healthy(made(0, change=change, telemetry=clocked(0.2, "hw_thermal_slowdown")))
    assert [cause.name for cause in found.causes] == ["throttling", "data_wait"]
    assert 0.9 < sum(cause.gap or 0.0 for cause in found.causes) <= 1.0
    assert found.unexplained == pytest.approx(0.0, abs=0.1)


def test_causes_that_overlap_share_one_gap() -> None:
    slow = made(0, change=slower(0.3), telemetry=clocked(0.3, "sw_power_cap"), pace=Pace(waiting=0.3))
    found = against_healthy(slow)
    assert {cause.name for cause in found.causes} >= {"processors"}
    assert sum(cause.gap or 0.0 for cause in found.causes if not cause.at_most) <= 1.0 + 1e-9


def test_a_product_that_varied_blames_no_device() -> None:
    raw = made(0, change=slower(0.3)).raw
    raw["evidence"]["ceilings"] = [4e12, 1e14] * 4
    varied = read_record(json.dumps(consistent(raw)).encode())
    assert against_healthy(varied).causes == ()


def test_fewer_processors_are_named() -> None:
    def on(usable: int, record: Record) -> Record:
        cpu = structs.replace(record.system.cpu, usable=usable)
        return structs.replace(record, system=structs.replace(record.system, cpu=cpu))

    slow, healthy = on(1, made(0, change=slower(0.3))), on(2, HEALTHY)
    found = explain([slow], verify_baseline([slow], healthy, CASE), CASE, [healthy])
    assert [(cause.name, cause.at_most) for cause in found.causes] == [("pinned", True)]


def test_what_the_row_itself_waited_is_not_blamed() -> None:
    """The row's own rates say how long the publisher's loop waited."""
    record = made(0, change=slower(0.3), telemetry=telemetry({"foreign_processes": 2}))
    verdict, found = against_claim(record)
    assert verdict is Verdict.BELOW
    assert (found.causes[0].name, found.causes[0].at_most) == ("device_tenants", True)
    assert all((cause.time or 0.0) < 0.02 for cause in found.causes[1:])


def test_a_slower_precision_is_found() -> None:
    """The row is of TF32; in fp32 the products take up to eight times as long."""
    in_fp32 = replace(CLAIM, run=replace(CLAIM.run, precision="fp32"))
    raw = honest_record(in_fp32, Pace(slower=3.0, ceiling=0.95), telemetry=telemetry())
    verdict, found = against_claim(read_record(json.dumps(raw).encode()))
    assert (verdict, found.causes[0].name) == (Verdict.NOT_COMPARABLE, "precision")


@pytest.mark.parametrize(
    "path", [REPLAYS / "cpu-tiny.json", MEASURED / "h100-distilbert.json"], ids=["work", "devices"]
)
def test_without_a_rate_shares_are_of_its_own_time(path: Path) -> None:
    _, found = against_claim(read_record(path.read_bytes()))
    assert (found.metric, found.gap, found.unexplained) == (None, None, None)
    assert all(cause.gap is None for cause in found.causes)
    assert found.reason in explanation_page(found)


def test_the_command_line(tmp_path: Path) -> None:
    files = []
    for name, record in (("slow", made(0, change=loading(0.3))), ("healthy", HEALTHY)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(record.raw))
    arguments = ["verify", str(files[0]), "--baseline", str(files[1]), "--explain"]
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["explanation"]
    assert told["causes"][0]["name"] == "data_wait"
    shown = CliRunner().invoke(app, arguments).stdout
    assert all(told["causes"][0][field] in shown for field in ("title", "seen", "action"))
    assert "explanation" not in json.loads(CliRunner().invoke(app, [*arguments[:-1], "--json"]).stdout)


def test_an_invalid_record_has_no_gap_but_its_own_time() -> None:
    record = made(0, change=loading(0.3))
    verdict, found = against_claim(structs.replace(record, config_digest="sha256:" + "0" * 64))
    assert (verdict, found.gap, found.causes[0].name) == (Verdict.INVALID, None, "data_wait")


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"throttle_seconds": {"hw_thermal_slowdown": 9.0}}, "throttling"), ({"power_limit_w": 200.0}, "power_cap")],
)
def test_what_no_clock_tells_is_at_most_the_gap(fields: dict[str, Any], name: str) -> None:
    unknown = telemetry({"sm_clock_mean_mhz": None, "sm_clock_min_mhz": None, **fields})
    found = against_healthy(made(0, change=slower(0.3), telemetry=unknown))
    assert [(cause.name, cause.at_most) for cause in found.causes] == [(name, True)]


def _no_ranks(raw: dict[str, Any]) -> None:
    raw["evidence"] = {"version": 1, "block": 1, "ranks": 10**30, "spans": []}


def _no_loop(raw: dict[str, Any]) -> None:
    for span in raw["evidence"]["spans"]:
        span["columns"].update(host=0, data_wait=0, to_device=0, after=0)


def _no_evidence(raw: dict[str, Any]) -> None:
    del raw["evidence"]


@pytest.mark.parametrize("edit", [_no_ranks, _no_loop, _no_evidence])
def test_empty_evidence_explains_nothing(edit: Callable[[dict[str, Any]], None]) -> None:
    raw = honest_record(CLAIM)
    edit(raw)
    _, found = against_claim(read_record(json.dumps(raw).encode()))
    assert (found.causes, found.gap) == ((), None)
    assert found.reason


@pytest.mark.parametrize(("name", "kernel"), [("norm", "torch, three passes"), ("weight_gradients", "separate")])
def test_a_slow_kernel_that_a_condition_names(name: str, kernel: str) -> None:
    slow = made(0, change=slower(0.3))
    slow = structs.replace(slow, conditions={**slow.conditions, name: kernel})
    assert "kernel_fallback" in [cause.name for cause in against_claim(slow)[1].causes]


def mostly_idle(speed: float) -> Explanation:
    """Why a run at so many times the speed of its row, with devices that are idle in 30 % of the time, is slow."""
    raw = honest_record(CLAIM, Pace(slower=1 / speed), telemetry=idle(0.3))
    return against_claim(read_record(json.dumps(raw).encode()))[1]


def test_an_idle_device_is_named_where_the_run_is_slower() -> None:
    found = mostly_idle(0.8)
    assert (found.causes[0].name, found.gap) == ("device_idle", pytest.approx(0.2, abs=0.02))
    assert found.causes[0].gap == pytest.approx(0.87, abs=0.05)


@pytest.mark.parametrize("speed", [1.0, 1.3])
def test_an_idle_device_is_named_where_the_run_is_as_fast_or_faster(speed: float) -> None:
    """There is no gap, so the share is of the run's own time."""
    found = mostly_idle(speed)
    assert found.ratio == pytest.approx(speed, abs=0.02)
    assert (found.causes[0].name, found.causes[0].gap, found.unexplained) == ("device_idle", None, None)
    assert found.causes[0].time == pytest.approx(0.25, abs=0.03)  # beside what the host takes between the steps
    page = explanation_page(found)
    assert all(text in page for text in (found.reason, found.causes[0].seen))


def test_a_measured_run_that_beats_its_row_has_an_idle_device() -> None:
    """The H100 beside an A100's row: the publisher's memory monitor kept it idle."""
    record = read_record(MEASURED / "h100-llama2-7b-lora.json")
    case, claim = CATALOG.cases[record.case], CATALOG.claims["llama2-7b-lora/a100-1x1-fp32"]
    found = explain([record], verify_claim([record], claim, case), case)
    assert (found.ratio, found.gap) == (pytest.approx(1.408, abs=0.001), 0.0)
    assert (found.causes[0].name, found.causes[0].time) == ("device_idle", pytest.approx(0.43, abs=0.01))


@pytest.mark.parametrize(
    ("name", "idle"), [("h100-distilbert", None), ("h100-llama2-7b-lora", 0.43), ("h200-aquila-33b", None)]
)
def test_a_device_waits_for_the_host_in_runs_that_were_measured(name: str, idle: float | None) -> None:
    """The publisher's memory monitor holds the interpreter while the step of `llama2-7b-lora` starts its kernels."""
    record = read_record(MEASURED / f"{name}.json")
    run = open_run(record, CATALOG.cases[record.case], Counts.LOOP)
    assert run is not None
    cost = find_idle_device(run)
    assert (cost and cost.seconds and cost.seconds / run.loop) == (idle and pytest.approx(idle, abs=0.01))
