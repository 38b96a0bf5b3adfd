"""What single checks of an acceptance decide, by drawn machines and by numbers alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec import convert
from msgspec.structs import replace as changed

from catalogs import CATALOG
from flagbench.accept.certificate import junit_of
from flagbench.accept.check import AcceptanceCheck, Outcome, not_known
from flagbench.accept.checks.devices import peer_checks
from flagbench.accept.checks.numbers import ComparedNumber, kind_of_metric, limit_for, number_check
from flagbench.accept.checks.soak import soak_checks
from flagbench.accept.checks.speed import JudgedRun, is_tuned, mamf_rows, speed_checks
from flagbench.accept.document import AcceptanceFacts, Certificate
from flagbench.accept.judge import checks_of, conclude
from flagbench.accept.limits import limits_of
from flagbench.manifests.limits import SoundDevices
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.records.model import Lap, Metric, Record
from flagbench.records.read import read_record
from flagbench.verdict.interval import STANDARD
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Ratio
from served import served_record
from unit.host.conftest import ROOT

H100 = "NVIDIA H100 80GB HBM3"
LIMITS = limits_of(CATALOG, [H100], processor=False)
RECORD = read_record((ROOT / "docs" / "measured" / "h100-roofs.json").read_bytes())
CERTIFICATE = msgspec.json.decode((ROOT / "docs" / "verdict" / "certificate.json").read_bytes(), type=Certificate)
SUBJECT = recompute(RECORD, CATALOG.cases["roofs"])


def test_the_file_of_a_device_overrides_limits_by_id() -> None:
    memory, row = limit_for(LIMITS, "memory", "sound"), limit_for(LIMITS, "product", "row")
    assert memory is not None
    assert row is not None
    assert (memory.value, memory.fail_below, row.fail_below) == (3030e9, 0.9, 0.9)
    other = limit_for(limits_of(CATALOG, ["NVIDIA H200"], processor=False), "product", "row")
    assert other is not None
    assert other.fail_below is None


def test_devices_of_two_models_have_the_limits_of_any() -> None:
    mixed = limits_of(CATALOG, [H100, "NVIDIA H200"], processor=False)
    assert {limit.value for limit in mixed} == {None}


def test_manifests_without_limits_have_those_of_flagbench(tmp_path: Path) -> None:
    shutil.copytree(CATALOG.root, tmp_path / "manifests", ignore=shutil.ignore_patterns("limits.yaml"))
    assert load_catalog_without_claims(tmp_path / "manifests").limits == CATALOG.limits


@pytest.mark.parametrize(
    ("sessions", "limit"), [(1, "product-history"), (4, "product-history"), (5, "product-history-5")]
)
def test_a_limit_may_need_sessions(sessions: int, limit: str) -> None:
    chosen = limit_for(LIMITS, "product", "history", sessions)
    assert chosen is not None
    assert chosen.id == limit


def decided(
    interval: tuple[float, float] | None, limit: str, *, disturbed: str = "", other_software: bool = False
) -> AcceptanceCheck:
    (of_id,) = (one for one in LIMITS if one.id == limit)
    middle = 1.0 if interval is None else sum(interval) / 2
    metric = Metric("memory_bandwidth", 3000.0, "GB/s", "device")
    number = ComparedNumber(metric, "a reference", 3030.0, Ratio(middle, interval), of_id, other_software)
    return number_check(number, replace(SUBJECT, evidence=None), disturbed)


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        (decided((0.91, 0.99), "memory-sound"), Outcome.PASS),
        (decided((0.85, 0.95), "memory-sound"), Outcome.INCONCLUSIVE),
        (decided((0.80, 0.89), "memory-sound"), Outcome.FAIL),
        (decided((0.80, 0.89), "memory-sound", disturbed="another process"), Outcome.INCONCLUSIVE),
        (decided((0.80, 0.89), "memory-sound", other_software=True), Outcome.NOT_KNOWN),
        (decided((0.60, 0.70), "host-link-history"), Outcome.INCONCLUSIVE),
        (decided((0.91, 0.94), "product-history-5"), Outcome.INCONCLUSIVE),
        (decided(None, "memory-sound"), Outcome.INCONCLUSIVE),
    ],
)
def test_an_interval_decides(check: AcceptanceCheck, outcome: Outcome) -> None:
    assert (check.outcome, bool(check.reason)) == (outcome, outcome is not Outcome.PASS)


def with_devices(shares: list[float], uuids: str = "ABCD") -> Record:
    """A run of devices that reach these shares of the first one in products."""
    measurements = []
    for measurement in RECORD.measurements:
        rates = tuple(
            measurement.rate * (share if measurement.name.startswith("matmul") else 1.0) for share in shares
        )
        measurements.append(changed(measurement, devices=rates))
    ranks = tuple(changed(RECORD.ranks[0], rank=rank, uuid=uuids[rank]) for rank in range(len(shares)))
    system = changed(RECORD.system, devices_per_node=len(shares))
    return changed(RECORD, measurements=tuple(measurements), ranks=ranks, system=system)


@pytest.mark.parametrize(
    ("share", "outcome", "ranks"),
    [(0.96, Outcome.PASS, ()), (0.93, Outcome.INCONCLUSIVE, (2,)), (0.8, Outcome.FAIL, (2,))],
)
def test_the_slowest_device_is_named_by_kind(share: float, outcome: Outcome, ranks: tuple[int, ...]) -> None:
    checks = {check.name: check for check in peer_checks(with_devices([1.0, 1.0, share, 1.0]), [], LIMITS, "")}
    assert (checks["product alike"].outcome, checks["product alike"].ranks) == (outcome, ranks)
    assert (checks["memory alike"].outcome, checks["host-link alike"].outcome) == (Outcome.PASS, Outcome.PASS)


@pytest.mark.parametrize(("stack", "outcome"), [("cuda13", Outcome.INCONCLUSIVE), ("cpu", Outcome.FAIL)])
def test_a_rank_with_fewer_processors_is_slow_by_its_place_on_a_processor(stack: str, outcome: Outcome) -> None:
    record = with_devices([1.0, 1.0, 0.8, 1.0])
    ranks = [changed(rank, processors=1 if rank.rank == 2 else 2) for rank in record.ranks]
    pinned = changed(record, stack=stack, ranks=tuple(ranks))
    checks = {check.name: check for check in peer_checks(pinned, [], LIMITS, "another process")}
    assert checks["product alike"].outcome is outcome


def test_devices_of_several_models_are_not_compared() -> None:
    record = with_devices([1.0, 0.5])
    (device,) = record.system.devices
    system = changed(record.system, devices=(device, changed(device, index=1, name="NVIDIA H200")))
    checks = [*peer_checks(changed(record, system=system), [], LIMITS, "")]
    assert [check.outcome for check in checks] == [Outcome.NOT_KNOWN]


def test_a_device_that_was_slow_before_is_said_to_be() -> None:
    now, earlier = with_devices([1.0, 1.0, 0.93, 1.0]), with_devices([0.93, 1.0, 1.0, 1.0], "CBAD")
    reasons = []
    for history in ([], [earlier], [with_devices([0.93, 1.0, 1.0, 1.0])]):
        reasons.append(next(check.reason for check in peer_checks(now, history, LIMITS, "")))
    assert (len(reasons[0]), len(reasons[1]) > len(reasons[0]), reasons[2]) == (len(reasons[2]), True, reasons[0])


@pytest.mark.parametrize(
    ("last", "disturbed", "outcome"),
    [
        (0.97, "", Outcome.PASS),
        (0.92, "", Outcome.INCONCLUSIVE),
        (0.8, "", Outcome.FAIL),
        (0.8, "another process", Outcome.INCONCLUSIVE),
    ],
)
def test_laps_that_become_slower(last: float, disturbed: str, outcome: Outcome) -> None:
    laps = []
    for number, share in enumerate((1.1, 1.0, 1.0, last), start=1):
        laps.append(Lap(number, 60.0, {"matmul_bf16": (7e14, 7e14 * share), "memory_bandwidth": (3e12, 3e12)}))
    checks = {check.name: check for check in soak_checks(changed(RECORD, laps=tuple(laps)), LIMITS, disturbed)}
    products = checks["product over laps"]
    assert (products.outcome, products.ranks) == (outcome, () if outcome is Outcome.PASS else (1,))
    assert checks["memory over laps"].outcome is Outcome.PASS


def test_two_laps_show_no_drift() -> None:
    laps = (Lap(1, 60.0, {}), Lap(2, 60.0, {}))
    assert [check.outcome for check in soak_checks(changed(RECORD, laps=laps), LIMITS, "")] == [Outcome.NOT_KNOWN]


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        ("mamf_published_bf16", "product"),
        ("d2h_pinned", "host-link"),
        ("all_reduce_busbw", "collective"),
        ("p_core", "case"),
    ],
)
def test_a_metric_is_of_a_kind(metric: str, kind: str) -> None:
    assert kind_of_metric(metric) == kind


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (None, Outcome.NOT_KNOWN),
        (SoundDevices(1, 0.8, 0.8), Outcome.NOT_KNOWN),
        (SoundDevices(2, 0.8, 0.85), Outcome.PASS),
        (SoundDevices(2, 0.9, 0.95), Outcome.INCONCLUSIVE),
    ],
)
def test_a_device_that_serves_is_held_to_its_own_copy(seen: SoundDevices | None, outcome: Outcome) -> None:
    """It reads 3.31 TB/s in a batch of 0.6 s, 0.79 of a copy: 0.98 and 0.88 of the lowest."""
    record = read_record(json.dumps(served_record(latency=0.6, copy=4.2e12)).encode())
    subject = recompute(record, CATALOG.cases[record.case])
    limit = replace(CATALOG.limits["serving-roof"], seen=seen)
    run = JudgedRun(subject, CATALOG, [limit], [], STANDARD, "")
    (check,) = (check for check in speed_checks(run) if check.name == "decode_bandwidth")
    assert check.outcome is outcome
    if check.ratio is not None:
        assert check.limit_id == "serving-roof"


def test_a_link_says_nothing_of_how_fast_a_device_should_be() -> None:
    memory = changed(decided((0.95, 1.0), "memory-sound"), reference="history")
    product, link = changed(memory, kind="product"), changed(memory, kind="host-link", reference="link")
    assert "as before" in conclude([memory, product, link], facts(None), {}).reason


def test_what_could_not_be_compared_is_named() -> None:
    memory, reason = decided((0.95, 1.0), "memory-sound"), "no 30 s of products before it"
    unheated = not_known("mamf_published_bf16", "roofs", "a row", reason)
    concluded = conclude([memory, unheated], facts(None), {})
    assert (concluded.outcome, reason in concluded.reason) == ("INCONCLUSIVE", True)


def test_the_rows_of_a_model_are_those_of_each_of_its_names() -> None:
    (row,) = mamf_rows(CATALOG, CATALOG.devices["mi300x"])
    assert CATALOG.devices["mi300x"].has_name("AMD Instinct MI300X OAM")
    assert row.id == "roofs/mi300x-1x1-mamf-bf16"


@pytest.mark.parametrize(("row", "tuned"), [("mi300x", True), ("mi355x", False), ("h100", False)])
def test_a_row_of_a_tuner_is_of_other_software(row: str, tuned: bool) -> None:
    assert is_tuned(CATALOG.claims[f"roofs/{row}-1x1-mamf-bf16"]) is tuned


def facts(health: dict[str, Any] | None) -> AcceptanceFacts:
    """Of two devices that were looked at and read, and of no run."""
    machine = {"host": "here", "visible": 2, "problem": None, "drivers": ["580.95"], "foreign": []}
    machine |= {"partitions": [], "capped": []}
    machine["devices"] = [{"index": rank, "name": H100, "uuid": f"GPU-{rank}"} for rank in range(2)]
    raw = {
        **{"gpus": 2, "stack": "cuda13", "device_kind": "cuda", "driver_floor": None, "without_case": None},
        "asked": {"minutes": 1.0, "gpus": 2, "case": None, "price_per_hour": None},
        **{"machine": machine, "ending": "done", "parts": [], "health": health},
    }
    return convert(raw, AcceptanceFacts)


def read(**second: Any) -> dict[str, Any]:
    """A reading of two devices, the second of which says this."""
    devices = [
        {"index": rank, "uuid": f"GPU-{rank}", "ecc_uncorrected": 0, "recovery_action": 0} for rank in range(2)
    ]
    devices[1].update(second)
    return {"devices": devices, "source": "nvml"}


@pytest.mark.parametrize(
    ("after", "name", "outcome", "action"),
    [
        ({"row_remap_failed": True}, "row-remap-failed", Outcome.FAIL, "drain"),
        ({"ecc_uncorrected": 2}, "ecc-uncorrected", Outcome.INCONCLUSIVE, "fix"),
        ({"recovery_action": 3}, "recovery-action-3", Outcome.INCONCLUSIVE, "run again"),
        ({"ecc_uncorrected": None}, "ecc-not-known", Outcome.NOT_KNOWN, "run again"),
    ],
)
def test_the_health_of_one_device_of_two(after: dict[str, Any], name: str, outcome: Outcome, action: str) -> None:
    stated = facts({"before": read(), "after": read(**after)})
    checks = checks_of(stated, {}, CATALOG)
    (check,) = (check for check in checks if check.name.startswith(name) and 1 in check.ranks)
    concluded = conclude(checks, stated, {})
    assert (check.outcome, concluded.action.do) == (outcome, action)
    if action == "drain":
        assert (concluded.action.ranks, concluded.action.devices) == ((1,), ("GPU-1",))


def test_what_cannot_be_read_is_not_known() -> None:
    checks = checks_of(facts({"before": {"problem": "no permission"}}), {}, CATALOG)
    assert [check.outcome for check in checks if check.part == "health"] == [Outcome.NOT_KNOWN]


def test_each_comparison_of_a_number_is_a_test_in_junit() -> None:
    checks = tuple(decided((0.96, 0.99), limit) for limit in ("memory-sound", "memory-history"))
    document = changed(CERTIFICATE, checks=checks)
    names = [test.get("name") for test in ElementTree.fromstring(junit_of(document)).iter("testcase")]
    assert names == ["roofs: memory_bandwidth against sound", "roofs: memory_bandwidth against history"]


def test_devices_of_which_nothing_was_read_are_not_called_healthy() -> None:
    silent = {"devices": [{"index": rank, "uuid": f"GPU-{rank}", "unanswered": "no tool"} for rank in range(2)]}
    checks = checks_of(facts({"before": silent, "after": silent}), {}, CATALOG)
    assert [check.outcome for check in checks if check.part == "health"] == [Outcome.NOT_KNOWN]


def test_what_is_not_known_is_skipped_in_junit() -> None:
    first, *others = CERTIFICATE.checks
    document = changed(CERTIFICATE, checks=(changed(first, outcome=Outcome.NOT_KNOWN), *others))
    (suite,) = ElementTree.fromstring(junit_of(document))
    assert (suite.get("skipped"), len(suite.findall(".//skipped"))) == ("1", 1)
