"""Rules on a comparison: enough speed is not concluded where the run may have been slower, or the published work
less; what disturbed a run stands beside its verdict."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from flagbench.machine.disturbance_limits import MEMORY_BEFORE
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.model import Range
from flagbench.manifests.rows import Claim
from flagbench.records.model import Ceiling, Cpu, DeviceTelemetry, Flops, Record, Telemetry, Window, Work
from flagbench.report import verdict_table
from flagbench.report.junit import junit_of_verdict
from flagbench.verdict import Verdict, VerifyResult, verify_baseline, verify_claim
from flagbench.verdict.rules import RULES
from flagbench.verdict.series import with_future_dates
from flagbench.verdict.subject import Subject

from .conftest import BASE, CASE, CATALOG, CLAIM, edit, held, line, replay, runs

PUBLISHED = 1942.6 / 1861.9
"""How far the published p_core exceeds the published p_train."""

SEQUENCES = "gradient_accumulation_steps"
"""The condition that the row below leaves out, and that the tokens of a sample are taken to be proportional to."""


def silent(name: str = SEQUENCES) -> Claim:
    """The claim of a row that leaves a condition out."""
    return replace(CLAIM, conditions={**CLAIM.conditions, name: NOT_PUBLISHED})


def around(value: float, share: float) -> dict[str, Any]:
    """A metric of that value, and an interval of so much on each side."""
    return {"value": value, "ci95": (value * (1 - share), value * (1 + share))}


def ranged(sequences: float, speed: float) -> VerifyResult:
    """A run with so many sequences per sample, at a multiple of the published speed, compared with a row that may
    have had 1 to 10."""
    case = replace(CASE, ranges={SEQUENCES: Range(1, 10, "made up")})
    work = Work("samples", 150, 9600, 9600, tokens_executed=round(9600 * sequences * 512))
    rates = {"p_core_host": 1942.6, "p_core": 1942.0, "p_train": 1900.0, "p_whole": 1700.0}
    metrics = {name: around(value * speed, 0.01) for name, value in rates.items()}
    return verify_claim([edit(metrics=metrics, work=work)], silent(), case)


def with_ceiling(flops: float) -> Record:
    """BASE with a window of 4e15 FLOP in 40 s on each of its devices, and the ceiling that was measured in it."""
    ceiling = Ceiling(flops, "tf32", "products")
    window = Window(first_step=20, steps=800, samples=204800, seconds=40.0)
    return edit(
        window=window, flops=Flops("distilbert-matmul/v1", 3e16, 4e14, recomputed=2e15, measured_ceiling=ceiling)
    )


@pytest.mark.parametrize(
    ("sequences", "speed", "verdict"),
    [
        (9.8, 1.0, Verdict.INCONCLUSIVE),
        (9.8, 1.5, Verdict.ABOVE),
        (9.8, 1.16, Verdict.INCONCLUSIVE),
        # Less work per sample is faster.
        (4.0, 1.5, Verdict.INCONCLUSIVE),
        # Not enough even if the published run had less work: a slow run is given no benefit of the doubt.
        (9.8, 0.5, Verdict.BELOW),
    ],
)
def test_unpublished_work_leaves_what_holds_over_its_range(sequences: float, speed: float, verdict: Verdict) -> None:
    result = ranged(sequences, speed)
    assert (result.verdict, result.qualifiers) == (verdict, (f"{SEQUENCES} not published",))
    if verdict is Verdict.INCONCLUSIVE:
        ends = f"between {speed * sequences / 10:.3f} and {speed * sequences:.3f}"
        assert ("1 to 10" in result.reason, ends in result.reason) == (True, True)


def test_work_of_a_sample_that_a_record_does_not_say() -> None:
    case = replace(CASE, ranges={SEQUENCES: Range(1, 10, "made up")})
    result = verify_claim([edit(work=None)], silent(), case)
    assert (result.verdict, SEQUENCES in result.reason) == (Verdict.INCONCLUSIVE, True)


def test_a_range_is_of_a_condition_that_no_row_publishes() -> None:
    rows = [claim for claim in CATALOG.claims.values() if claim.case == "glm"]
    assert set(CATALOG.cases["glm"].ranges) == {"choices"}
    assert {claim.conditions["choices"] for claim in rows} == {NOT_PUBLISHED}


def test_another_unpublished_condition_of_the_work_has_no_range() -> None:
    result = held(BASE, claim=silent())
    assert (result.verdict, SEQUENCES in result.reason) == (Verdict.INCONCLUSIVE, True)
    # Nothing else that depends on it is said to be reproduced either.
    assert not {m.verdict for m in result.metrics} & {Verdict.REPRODUCED, Verdict.ABOVE}


@pytest.mark.parametrize(
    ("rates", "verdict", "words"),
    [
        ({"p_core_host": 1940.0, "p_train": 1940 / PUBLISHED / 1.019, "p_core": 1935.0}, Verdict.REPRODUCED, ()),
        (
            {"p_core_host": 1940.0, "p_train": 1940 / PUBLISHED / 1.03, "p_core": 1935.0},
            Verdict.INCONCLUSIVE,
            ("p_core_host", f"{PUBLISHED * 1.03:.3f} times p_train", "1.043 published x 1.02"),
        ),
        (
            {"p_core_host": 1940.0, "p_train": 1760.0, "p_core": 1770.0, "p_whole": 1700.0},
            Verdict.INCONCLUSIVE,
            ("1.096 times p_core;", "1.102 times p_train"),
        ),
        # A slow run is below, whatever its clock hides.
        ({"p_core_host": 1510.0, "p_train": 1000.0, "p_core": 1100.0, "p_whole": 900.0}, Verdict.BELOW, ()),
    ],
)
def test_the_hosts_clock_hides_no_more_than_the_published_one(
    rates: dict[str, float], verdict: Verdict, words: tuple[str, ...]
) -> None:
    result = held(edit(metrics={name: around(value, 0.005) for name, value in rates.items()}))
    assert result.verdict is verdict
    assert [word for word in words if word not in result.reason] == []


def test_a_row_that_publishes_no_p_train_allows_no_more() -> None:
    claim = replace(CLAIM, metrics=tuple(m for m in CLAIM.metrics if m.name != "p_train"))
    assert "1.020 times" in held(edit(metrics={"p_core_host": around(1985.0, 0.003)}), claim=claim).reason


def test_workers_are_a_condition_of_the_hosts_clock_alone() -> None:
    result = held(edit(conditions={"workers": 0}))
    assert (result.verdict, line(result, "p_core").reason) == (
        Verdict.NOT_COMPARABLE,
        "workers is 0 here, 8 published",
    )
    # Without it, the row is compared with p_core, which the device timed.
    timed = edit(conditions={"workers": 0}, metrics={"p_core": around(1942.0, 0.006)}, without=("p_core_host",))
    assert held(timed).verdict is Verdict.REPRODUCED


def test_a_run_above_its_own_ceiling_is_inconclusive() -> None:
    for flops in (1e14, 0.981e14):
        assert held(with_ceiling(flops)).verdict is Verdict.REPRODUCED
    result = held(with_ceiling(0.97e14))
    assert (result.verdict, "1.031 times" in result.reason) == (Verdict.INCONCLUSIVE, True)
    # Against another run as well.
    again = edit(with_ceiling(0.97e14), record_id="fixture-again")
    assert verify_baseline([again], BASE, CASE).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("nodes", "network", "kind", "doubted"),
    [
        (2, "Socket", "infiniband", True),
        (2, "IB", "infiniband", False),
        (2, "Socket", "ethernet", False),
        (1, "Socket", "infiniband", False),
    ],
)
def test_sockets_beside_rdma_devices_are_a_doubt(nodes: int, network: str, kind: str, doubted: bool) -> None:
    nics = ({"name": "mlx5_0", "kind": kind},)
    system = replace_struct(BASE.system, nodes=nodes, nics=nics, networks=(network,))
    record = edit(system=system)
    doubts = RULES["sockets"].find([Subject(record, CASE)], None, None)
    result = held(record)
    assert (len([*doubts]), len(result.qualifiers)) == (doubted, doubted)


def paced(record: Record, speed: float, side: str) -> list[Record]:
    """Five runs at about that speed."""
    shares = {"p_core_host": 1.0, "p_core": 1.0, "p_train": 0.95, "p_whole": 0.9}
    metrics = [
        {name: around(speed * share * (1 + number / 1e4), 0.001) for name, share in shares.items()}
        for number in range(5)
    ]
    return [edit(record, record_id=f"fixture-{side}-{number}", metrics=own) for number, own in enumerate(metrics)]


@pytest.mark.parametrize(
    ("there", "sound", "doubted"),
    [
        (2200.0, Verdict.SLOWER, Verdict.INCONCLUSIVE),
        (1940.0, Verdict.SAME, Verdict.INCONCLUSIVE),
        # A baseline that was even slower leaves the run faster.
        (1700.0, Verdict.FASTER, Verdict.FASTER),
    ],
)
def test_a_baseline_above_its_own_ceiling_proves_no_run_slow(there: float, sound: Verdict, doubted: Verdict) -> None:
    here = paced(BASE, 1940.0, "here")
    assert verify_baseline(here, paced(with_ceiling(1e14), there, "there"), CASE).verdict is sound
    result = verify_baseline(here, paced(with_ceiling(0.97e14), there, "there"), CASE)
    assert result.verdict is doubted
    assert ("the baseline: record" in result.reason) is (doubted is not sound)
    assert ("above-ceiling" in {finding.rule for finding in result.findings}) is (doubted is not sound)


DEVICES = 8
SPEED = with_ceiling(1e14)
"""1e14 FLOP/s of the 1.56e14 that its device has in TF32."""
SOUND: dict[str, Any] = {"power_mean_w": 300.0, "sm_clock_busy_mhz": 1300.0, "util_mean": 0.9}


def monitored(changes: dict[str, Any], devices: int = DEVICES, **fields: Any) -> dict[str, Any]:
    """Telemetry of devices at full speed, the last of them with other readings."""
    own = [SOUND] * (devices - 1) + [{**SOUND, **changes}]
    return {"telemetry": Telemetry(devices=tuple(DeviceTelemetry(**each) for each in own), **fields)}


def timed(**seconds: float) -> dict[str, Any]:
    return {"timing": replace_struct(BASE.timing, **seconds)}


DOUBTED: list[tuple[str | None, dict[str, Any]]] = [
    (None, monitored({}, samples=360, interval_s=1.0)),
    (None, {**monitored({}, samples=8, errors=8, interval_s=5.0), **timed(train=9.0, init=352.0)}),
    (None, monitored({}, 0, samples=360, unavailable="the driver has no NVML")),
    ("telemetry-incomplete", monitored({}, 7)),
    ("telemetry-incomplete", monitored({}, samples=0)),
    ("telemetry-incomplete", monitored({}, samples=29)),
    ("telemetry-incomplete", monitored({}, samples=30, errors=240)),
    ("telemetry-incomplete", {"telemetry": None, "telemetry_reason": None}),
    (None, {"telemetry": None, "telemetry_reason": "the run was killed"}),
    ("telemetry-speed", monitored({"sm_clock_busy_mhz": 210.0})),
    ("telemetry-speed", monitored({"power_mean_w": 60.0})),
    ("telemetry-speed", monitored({"power_mean_w": 0.0})),
    ("telemetry-speed", monitored({"util_mean": 0.3})),
    ("telemetry-speed", monitored({"power_limit_w": 250.0})),
    (None, monitored({"power_limit_w": 290.0})),
    ("time-in-no-phase", timed(init=300.0)),
    (None, timed(init=330.0)),
    ("memory-below-model", {"raw": {"quality": {"parameters": 5 * 10**9}}}),
    (None, {"raw": {"quality": {"parameters": 4 * 10**9}}}),
    ("target-missed", {"quality": replace_struct(BASE.quality, converged=False)}),
    ("ceiling-not-measured", {"flops": replace_struct(SPEED.flops, measured_ceiling=Ceiling(1e14, "fp16", "x"))}),
    ("ceiling-not-measured", {"flops": replace_struct(SPEED.flops, measured_ceiling=None)}),
]
"""The rule that doubts, and what is made different in a run that reproduces its claim."""


@pytest.mark.parametrize(("rule", "fields"), DOUBTED)
def test_a_doubt_takes_a_verdict_away(rule: str | None, fields: dict[str, Any]) -> None:
    record = edit(SPEED, **{**timed(train=60.0, init=301.0), **fields})
    result = held(record)
    assert result.verdict is (Verdict.INCONCLUSIVE if rule else Verdict.REPRODUCED)
    assert {finding.rule for finding in result.findings} == ({rule} if rule else set())
    slow = edit(record, metrics={name: around(1000.0, 0.005) for name in ("p_core_host", "p_core", "p_train")})
    assert held(slow).verdict is Verdict.BELOW


def test_runs_of_two_versions_are_doubted() -> None:
    mixed = runs(1940.0, 1941.0, 1942.0, 1943.0, 1944.0)
    mixed[2] = edit(mixed[2], flagbench=replace_struct(BASE.flagbench, version="9.0"))
    result = held(*mixed)
    assert (result.verdict, [each.rule for each in result.findings]) == (Verdict.INCONCLUSIVE, ["versions-mixed"])


def test_limits_that_nobody_published_are_told() -> None:
    case = CATALOG.cases["llama2-70b"]
    devices = tuple(replace_struct(each, name="NVIDIA H800") for each in BASE.system.devices)
    record = edit(**monitored({}), stack="cuda13", system=replace_struct(BASE.system, devices=devices))
    assert any("NVIDIA H800" in each for each in Subject(record, case).not_compared)
    assert Subject(replace_struct(record, stack="hopper-cuda13"), case).stack is case.stacks["cuda13"]
    assert not any("limits" in each for each in Subject(edit(**monitored({})), CASE).not_compared)


def test_what_neither_side_knows_does_not_differ() -> None:
    result = held(edit(conditions={"driver": None}), claim=replace(CLAIM, environment={}))
    assert "driver" not in {condition.name for condition in result.differing if condition.expected is None}


def test_fewer_processors_on_one_side_are_told() -> None:
    def on(usable: int, record_id: str) -> Record:
        return edit(record_id=record_id, system=replace_struct(BASE.system, cpu=Cpu("Xeon", 64, usable)))

    before = on(64, "fixture-before")
    assert verify_baseline([on(64, "fixture-now")], before, CASE).qualifiers == ()
    result = verify_baseline([on(16, "fixture-now")], before, CASE)
    assert result.qualifiers == ("usable processors: 16, the baseline's 64",)


AT_LIMIT: dict[str, Any] = {"throttle_seconds": {"sw_power_cap": 90.0}, "power_limit_default_w": 400.0}


def window(**fields: Any) -> Window:
    return Window(first_step=0, steps=400, samples=102400, seconds=53.2, **fields)


@pytest.mark.parametrize(
    ("steadiness", "device", "qualifiers"),
    [
        ({"steady": True, "drift": 0.02}, {"foreign_processes": 0, "throttle_seconds": {}}, ()),
        ({"steady": None, "drift": None}, {"throttle_seconds": {"applications_clocks_setting": 90.0}}, ()),
        ({}, {"mem_used_before_bytes": MEMORY_BEFORE}, ()),
        ({}, {"mem_used_before_bytes": MEMORY_BEFORE + 1}, ("another tenant on the device",)),
        ({"steady": False}, {}, ("window not steady",)),
        ({}, {"throttle_seconds": {"reason_0x200": 7.2}}, ("throttled 7 s (reason_0x200)",)),
        ({}, {**AT_LIMIT, "power_limit_w": 400.0}, ()),
        ({}, {**AT_LIMIT, "power_limit_w": 300.0}, ("throttled 90 s (sw_power_cap)",)),
    ],
)
def test_what_disturbs_and_what_does_not(
    steadiness: dict[str, Any], device: dict[str, Any], qualifiers: tuple[str, ...]
) -> None:
    record = edit(window=window(**steadiness), telemetry=Telemetry((DeviceTelemetry(**device),)))
    assert held(record).qualifiers == qualifiers


@pytest.mark.parametrize(
    ("steps", "seconds", "stack", "advised"),
    [
        (200, 11.58, "a100-cuda11.6", ["--steps 570"]),  # a tenth more than 30 s, of steps of 57.9 ms
        (2, 21.87, "a100-cuda11.6", ["--steps 4"]),
        (200, 30.0, "a100-cuda11.6", []),
        (200, 11.58, "cpu", []),
        (0, 11.58, "a100-cuda11.6", []),
    ],
)
def test_a_window_that_is_too_short_to_see_heat(steps: int, seconds: float, stack: str, advised: list[str]) -> None:
    short = Window(first_step=20, steps=steps, samples=512, seconds=0.99 * seconds, host_seconds=seconds)
    record = edit(window=short, stack=stack)
    result = held(record)
    assert (result.verdict, int(result.verdict.exit_code)) == (Verdict.REPRODUCED, 0)
    assert [finding.rule for finding in result.findings] == ["heat-not-seen"] * len(advised)
    told = (verdict_table([record], result).splitlines()[0], junit_of_verdict(result).decode(), result.qualifiers)
    assert all(words in str(each) for words in advised for each in told)


def test_a_short_window_of_both_sides_is_told_once() -> None:
    def lasting(seconds: float, record_id: str) -> Record:
        return edit(record_id=record_id, window=Window(first_step=20, steps=200, samples=512, seconds=seconds))

    short, long = lasting(10.0, "fixture-short"), lasting(40.0, "fixture-long")
    both = verify_baseline([short], lasting(10.0, "fixture-before"), CASE).qualifiers
    there = verify_baseline([long], short, CASE).qualifiers
    assert [message.startswith("baseline:") for message in (*both, *there)] == [False, True]


def test_a_clock_that_was_set_during_the_run_is_told() -> None:
    result = held(edit(system=replace_struct(BASE.system, clock_set_seconds=-28800.0)))
    assert result.verdict is Verdict.REPRODUCED
    assert result.qualifiers == ("the clock was set by -28800 s during the run",)
    assert [finding.rule for finding in result.findings] == ["clock-set"]


def test_a_record_of_the_future_is_told() -> None:
    made = datetime.strptime(BASE.created_at, "%Y-%m-%dT%H:%M:%SZ")
    for behind, told in ((timedelta(minutes=59), 0), (timedelta(minutes=61), 1)):
        result = with_future_dates(held(BASE), [BASE], made - behind)
        assert (result.verdict, len(result.qualifiers)) == (Verdict.REPRODUCED, told)


def test_of_several_runs_the_worst_is_told() -> None:
    drifts = (0.03, -0.25, 0.0, 0.0, 0.0)
    disturbed = [
        edit(run, window=window(steady=abs(drift) <= 0.02, drift=drift))
        for run, drift in zip(runs(1940.0, 1941.0, 1942.0, 1943.0, 1944.0), drifts, strict=True)
    ]
    assert held(*disturbed).qualifiers == ("window not steady (drift -25.0 %)",)


def test_a_record_that_cannot_be_compared_has_no_qualifier() -> None:
    assert held(edit(replay("a100-1x8-tenant"), conditions={"device_model": "another"})).qualifiers == ()


def test_what_disturbed_the_baseline_is_told_as_its_own() -> None:
    disturbed = edit(record_id="fixture-before", window=window(steady=False, drift=0.1))
    result = verify_baseline([BASE], disturbed, CASE)
    assert result.qualifiers == ("baseline: window not steady (drift +10.0 %)",)


def test_more_time_outside_of_the_steps_is_told() -> None:
    def timed(share: float, record_id: str) -> Any:
        return edit(record_id=record_id, window=window(host_seconds=53.2 / (1 - share)))

    before = timed(0.01, "fixture-before")
    assert verify_baseline([timed(0.02, "fixture-now")], before, CASE).qualifiers == ()
    result = verify_baseline([timed(0.5, "fixture-now")], before, CASE)
    assert result.qualifiers == ("50% of the time outside of the device's steps, the baseline 1%",)
    assert verify_baseline([BASE], before, CASE).qualifiers == ()
