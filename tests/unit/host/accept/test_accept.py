"""An acceptance by its facts and records: the outcome of each check, what to do, and what its certificate is."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.accept import certificate
from flagbench.accept.certificate_page import action_text, certificate_blocks, machine_text
from flagbench.accept.certificate_page import render as certificate_html
from flagbench.accept.check import Outcome
from flagbench.accept.document import AcceptanceFacts, Author, Certificate
from flagbench.accept.judge import Conclusion, checks_of, conclude
from flagbench.accept.limits import limits_of
from flagbench.accept.priors import spread_of
from flagbench.accept.run import AcceptanceResults, runs_to_compare
from flagbench.console.page import render
from flagbench.machine.disturbance_limits import OTHER_PROCESSORS, STOLEN
from flagbench.records.bundle_archive import unpacked
from flagbench.records.bundle_documents import write_bundle
from flagbench.records.read import read_record
from flagbench.records.store import Store
from flagbench.verdict.efficiency import Efficiency
from flagbench.verdict.stats.between import SESSION_SPREAD, Prior
from flagbench_core.exit_codes import ExitCode
from honest import Pace, honest_record
from unit.host.conftest import ROOT, Flagbench
from unit.host.verdict.conftest import ROWS

Raw = dict[str, Any]
MEASURED: Raw = json.loads((ROWS / "run-roofs-2.json").read_text(encoding="utf-8"))
RESULTS = [{"name": "matmul_fp32", "digests": {"00": [0, 1]}, "changed": [], "apart": []}]
PART: Raw = {"case": "roofs", "target": "roofs:cpu", "why": "", "state": "ok", "reason": None}
PART |= {"history": [], "priors": {}}


def accepted(change: Callable[[Raw, Raw], Any] = lambda facts, raw: None) -> AcceptanceResults:
    """Of two ranks on an idle processor, changed by `change(facts, record)`."""
    raw = copy.deepcopy(MEASURED)
    raw["results"] = copy.deepcopy(RESULTS)
    raw["telemetry"]["cpu"].update(others_mean=0.0, steal_mean=0.0)
    machine = {
        "host": raw["system"]["host"],
        "processors": 2,
        "visible": 0,
        "problem": None,
        "devices": [],
        "drivers": [],
    }
    part = {**PART, "record_id": raw["record_id"]}
    facts = {
        "asked": {"minutes": 1.0, "gpus": 2, "case": None, "price_per_hour": None},
        "gpus": 2,
        "stack": "cpu",
        "device_kind": "cpu",
        "driver_floor": None,
        "via": "native",
        "machine": {**machine, "foreign": [], "partitions": [], "capped": []},
        "without_case": None,
        "ending": "done",
        "parts": [part],
        "limits": to_builtins(limits_of(CATALOG, [], processor=True)),
    }
    change(facts, raw)
    return AcceptanceResults(convert(facts, AcceptanceFacts), {raw["record_id"]: json.dumps(raw).encode()})


def concluded(change: Callable[[Raw, Raw], Any]) -> tuple[Conclusion, dict[str, Outcome]]:
    found = accepted(change)
    records = {name: read_record(content) for name, content in found.records.items()}
    checks = checks_of(found.facts, records, CATALOG)
    return conclude(checks, found.facts, records), {check.name: check.outcome for check in checks}


def cuda(facts: Raw, visible: int = 2, driver: str = "580.95") -> None:
    devices = [{"index": i, "name": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-{i}"} for i in range(visible)]
    facts.update(device_kind="cuda", driver_floor="580.65", parts=[])
    facts["limits"] = to_builtins(limits_of(CATALOG, [device["name"] for device in devices], processor=False))
    facts["machine"].update(visible=visible, devices=devices, drivers=[driver])


def unmeasured(facts: Raw, raw: Raw) -> None:
    """On a machine on which something else ran."""
    raw["telemetry"]["cpu"]["others_mean"] = 2.0
    for measurement in raw["measurements"]:
        measurement["devices"] = []


def results(**wrong: list[int]) -> Callable[[Raw, Raw], Any]:
    return lambda facts, raw: raw["results"][0].update(wrong)


def quota(facts: Raw, raw: Raw) -> None:
    raw["telemetry"]["cpu"]["quota"] = 1.2


def test_an_idle_machine_of_like_devices_passes() -> None:
    found, checks = concluded(lambda facts, raw: None)
    assert (found.outcome, found.action.do) == ("PASS", "use")
    assert set(checks.values()) == {Outcome.PASS}


@pytest.mark.parametrize(
    ("change", "name", "ranks"),
    [
        (results(changed=[1]), "same bits", [1]),
        (results(apart=[0, 1]), "same bits", [0, 1]),
        (lambda facts, raw: cuda(facts, visible=1), "devices", [1]),
    ],
)
def test_a_fault_fails_and_names_the_rank(change: Callable[[Raw, Raw], Any], name: str, ranks: list[int]) -> None:
    found, checks = concluded(change)
    assert (found.outcome, found.action.do, list(found.action.ranks)) == ("FAIL", "drain", ranks)
    assert checks[name] is Outcome.FAIL


def hidden(facts: Raw, raw: Raw) -> None:
    cuda(facts)
    facts["machine"]["visible"] = 1


def capped(facts: Raw, raw: Raw) -> None:
    cuda(facts)
    facts["machine"]["capped"].append("GPU-0 is limited to 400 W of 700")


def refused(facts: Raw, raw: Raw) -> None:
    """By the preflight of its first run, such as for a torch without CUDA."""
    raw["status"].update(state="failed", phase="preflight", exit_code=13, remedy="install a torch for this device")


def sliced(facts: Raw, raw: Raw) -> None:
    cuda(facts)
    facts["machine"]["partitions"].append("GPU-0 is a part of a device")


@pytest.mark.parametrize(
    ("change", "name", "outcome"),
    [
        (quota, "quota", "FAIL"),
        (lambda facts, raw: cuda(facts, driver="470.1"), "driver", "FAIL"),
        (hidden, "devices", "INCONCLUSIVE"),
        (capped, "undisturbed", "INCONCLUSIVE"),
        (sliced, "whole devices", "INCONCLUSIVE"),
        (lambda facts, raw: facts["parts"][0].update(record_id=None, remedy="build it"), "ran", "INCONCLUSIVE"),
        (refused, "ran", "INCONCLUSIVE"),
    ],
)
def test_what_can_be_mended_is_fixed(change: Callable[[Raw, Raw], Any], name: str, outcome: str) -> None:
    found, checks = concluded(change)
    assert (found.outcome, found.action.do, len(found.action.remedies)) == (outcome, "fix", 1)
    assert checks[name] is Outcome(outcome)
    assert found.action.remedies[0] in action_text(found.action)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts, raw: facts.update(ending="interrupted"),
        lambda facts, raw: facts.update(without_case="none fits"),
        lambda facts, raw: facts["parts"][0].update(record_id=None, state="not run"),
        lambda facts, raw: raw["results"].clear(),
        lambda facts, raw: cuda(facts),  # nothing that it could be compared with
        lambda facts, raw: facts["machine"]["foreign"].append("a program") or cuda(facts),
    ],
)
def test_what_is_not_decided_is_run_again(change: Callable[[Raw, Raw], Any]) -> None:
    found, _ = concluded(change)
    assert (found.outcome, found.action.do) == ("INCONCLUSIVE", "run again")
    assert found.action.minutes >= 1
    assert f"--minutes {found.action.minutes:g}" in action_text(found.action)


@pytest.mark.parametrize(("state", "minutes"), [("not run", 2), ("interrupted", 2), ("failed", 1)])
def test_only_a_run_that_was_cut_short_is_given_more_minutes(state: str, minutes: float) -> None:
    found, _ = concluded(lambda facts, raw: facts["parts"][0].update(record_id=None, state=state))
    assert found.action.minutes == minutes


@pytest.mark.parametrize(("code", "minutes"), [(ExitCode.TIMEOUT, 2), (ExitCode.RANK_FAILED, 1)])
def test_a_run_that_reached_its_limit_is_given_more_minutes(code: ExitCode, minutes: float) -> None:
    def end(facts: Raw, raw: Raw) -> None:
        facts["parts"][0].update(state="failed")
        raw["status"].update(state="failed", reason="its limit", exit_code=int(code))

    found, _ = concluded(end)
    assert (found.action.do, found.action.minutes) == ("run again", minutes)


def test_a_run_without_its_device_is_one_reason() -> None:
    found, checks = concluded(lambda facts, raw: refused(facts, raw) or raw["results"].clear())
    assert (list(checks), found.action.do) == (["ran"], "fix")


def test_a_device_that_computes_wrongly_alone_is_named() -> None:
    def change(facts: Raw, raw: Raw) -> None:
        ran_in("fp32/wrong")(facts, raw)
        raw["system"]["devices_per_node"] = 1

    found, _ = concluded(change)
    assert (found.action.do, found.action.ranks) == ("drain", (0,))


def test_a_run_that_failed_for_its_bits_names_the_rank() -> None:
    def change(facts: Raw, raw: Raw) -> None:
        raw["results"][0]["changed"] = [1]
        raw["quality"] = {**raw["quality"], "checks": [{"name": "same_results", "ok": False, "detail": "other bits"}]}
        raw["status"].update(state="failed", exit_code=12)

    found = accepted(change)
    records = {name: read_record(content) for name, content in found.records.items()}
    ranks = {check.name: check.ranks for check in checks_of(found.facts, records, CATALOG)}
    assert ranks == {"ran": (1,), "same bits": (1,)}


def test_the_checks_of_a_soak_are_named_apart() -> None:
    def change(facts: Raw, raw: Raw) -> None:
        facts["asked"]["soak"] = 3
        facts["planned"] = ["roofs", "roofs"]

    found = accepted(change)
    records = {name: read_record(content) for name, content in found.records.items()}
    ran = [(check.part, check.outcome) for check in checks_of(found.facts, records, CATALOG) if check.name == "ran"]
    assert ran == [("roofs", Outcome.PASS), ("soak", Outcome.INCONCLUSIVE)]


def test_an_interrupted_soak_has_its_laps() -> None:
    def change(facts: Raw, raw: Raw) -> None:
        facts["parts"][0]["state"] = raw["status"]["state"] = "interrupted"
        raw["laps"] = [{"lap": 1, "seconds": 60.0}]
        raw["results"].clear()

    found = accepted(change)
    records = {name: read_record(content) for name, content in found.records.items()}
    (ran,) = checks_of(found.facts, records, CATALOG)
    assert (ran.name, ran.outcome, ran.measured) == ("ran", Outcome.INCONCLUSIVE, "interrupted, 1 lap")


def test_the_page_shows_what_a_soak_did_to_the_devices() -> None:
    def change(facts: Raw, raw: Raw) -> None:
        rates = ([3e12, 3e12], [3e12, 3e12], [3e12, 2.4e12])
        raw["laps"] = [
            {"lap": lap, "seconds": 60.0, "rates": {"memory_bandwidth": rate}} for lap, rate in enumerate(rates, 1)
        ]

    found = accepted(change)
    files = certificate.files_of(certificate.certificate_of(found, CATALOG, 50.0), found.records, {})
    page = files[certificate.PAGE].decode().lower()
    assert "3 laps" in page
    assert "80.0%" in page


def test_the_slowest_of_like_devices_is_named() -> None:
    document = certificate.certificate_of(accepted(), CATALOG, 50.0)
    _, rank = min((device.share, device.rank) for device in document.devices)
    (check,) = (check for check in document.checks if check.name == "product alike")
    assert (check.measured.startswith(f"rank {rank} "), check.outcome) == (True, "PASS")


@pytest.mark.parametrize(
    ("change", "name", "outcome"),
    [
        (unmeasured, "devices alike", "NOT_KNOWN"),
        (lambda facts, raw: raw["results"].clear(), "same bits", "INCONCLUSIVE"),
    ],
)
def test_what_was_not_measured_has_no_number(change: Callable[[Raw, Raw], Any], name: str, outcome: str) -> None:
    document = certificate.certificate_of(accepted(change), CATALOG, 50.0)
    (check,) = (each for each in document.checks if each.name == name)
    assert (check.outcome, check.measured, document.outcome) == (outcome, "nothing", "INCONCLUSIVE")
    assert check.reason[0].isalpha()


@pytest.mark.parametrize(
    ("cpu", "outcome"),
    [
        ({}, Outcome.FAIL),
        ({"steal_mean": STOLEN - 0.001}, Outcome.FAIL),
        ({"steal_mean": STOLEN}, Outcome.INCONCLUSIVE),
        ({"others_mean": OTHER_PROCESSORS}, Outcome.INCONCLUSIVE),
    ],
)
def test_a_slow_rank_is_not_blamed_for_what_others_took(cpu: Raw, outcome: Outcome) -> None:
    def change(facts: Raw, raw: Raw) -> None:
        for measurement in raw["measurements"]:
            if len(measurement.get("devices", [])) == 2:
                measurement["devices"][1] *= 0.5
        raw["telemetry"]["cpu"].update(cpu)

    assert concluded(change)[1]["product alike"] is outcome


def ran_in(executed: str) -> Callable[[Raw, Raw], Any]:
    def change(facts: Raw, raw: Raw) -> None:
        detail = f"requested tf32; a matrix product ran in {executed}, relative error 1.0e+00"
        raw["quality"] = {**raw["quality"], "checks": [{"name": "precision", "ok": False, "detail": detail}]}
        raw["status"].update(state="failed", exit_code=12)

    return change


def monitored(**device: Any) -> Callable[[Raw, Raw], Any]:
    return lambda facts, raw: raw["telemetry"].update(devices=[{"index": 0, **device}])


@pytest.mark.parametrize(
    ("change", "name", "outcome"),
    [
        (lambda facts, raw: cuda(facts) or facts["machine"].update(visible=1), "devices", Outcome.INCONCLUSIVE),
        (lambda facts, raw: cuda(facts), "undisturbed", Outcome.PASS),
        (lambda facts, raw: cuda(facts) or facts["machine"].update(drivers=[]), "undisturbed", Outcome.NOT_KNOWN),
        (lambda facts, raw: cuda(facts) or facts["machine"].update(drivers=[]), "driver", Outcome.NOT_KNOWN),
        (ran_in("fp32"), "ran", Outcome.INCONCLUSIVE),
        (ran_in("fp32/wrong"), "ran", Outcome.FAIL),
        (monitored(power_limit_default_w=700.0), "throttled", Outcome.PASS),
        (monitored(), "throttled", Outcome.NOT_KNOWN),
    ],
)
def test_what_no_tool_says_is_not_known(change: Callable[[Raw, Raw], Any], name: str, outcome: Outcome) -> None:
    assert concluded(change)[1][name] is outcome


def test_the_device_to_drain_is_that_of_this_run() -> None:
    def change(facts: Raw, raw: Raw) -> None:
        raw["results"][0]["changed"] = [1]
        raw["ranks"][1]["uuid"] = "GPU-b"

    found = accepted(change)
    (content,) = found.records.values()
    raw = json.loads(content)
    raw["ranks"][1]["uuid"], raw["record_id"] = "GPU-a", raw["record_id"][:-8] + "00000000"
    found.records[raw["record_id"]] = json.dumps(raw).encode()
    assert certificate.certificate_of(found, CATALOG, 50.0).action.devices == ("GPU-b",)


@pytest.mark.parametrize(
    ("devices", "kind", "title"),
    [(0, "cuda", "no device for the stack cuda13, machine"), (2, "cpu", "2 ranks on a processor, machine")],
)
def test_a_certificate_is_of_what_was_asked_for(devices: int, kind: str, title: str) -> None:
    def change(facts: Raw, raw: Raw) -> None:
        cuda(facts, visible=devices)
        facts["machine"]["drivers"].clear()
        facts.update(device_kind=kind, stack="cuda13")

    assert machine_text(certificate.certificate_of(accepted(change), CATALOG, 50.0)) == title


def written(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    found = accepted()
    document = certificate.certificate_of(found, CATALOG, 50.0, MEASURED["created_at"])
    files = certificate.files_of(document, found.records, {})
    change(files)
    write_bundle(folder / "bundle.tar.gz", files)
    return folder / "bundle.tar.gz"


@pytest.mark.parametrize(("version", "contradicts"), [(None, True), ("0.1.9", False)])
def test_another_version_may_have_passed_what_nothing_is_compared_with(
    version: str | None, contradicts: bool, tmp_path: Path
) -> None:
    found = accepted(lambda facts, raw: facts.update(limits=facts["limits"][1:2]))
    document = certificate.certificate_of(found, CATALOG, 50.0, MEASURED["created_at"])
    assert document.outcome is Outcome.INCONCLUSIVE
    document = replace(document, outcome=Outcome.PASS)
    if version is not None:
        document = replace(document, flagbench=Author(version, None))
    write_bundle(tmp_path / "bundle.tar.gz", certificate.files_of(document, found.records, {}))
    with unpacked(tmp_path / "bundle.tar.gz") as files:
        assert bool(certificate.check(files, CATALOG).problems) is contradicts


@pytest.mark.parametrize("name", [certificate.CERTIFICATE, certificate.PAGE, certificate.JUNIT])
def test_one_changed_digit_is_refused(name: str, tmp_path: Path) -> None:
    def change(files: dict[str, Any]) -> None:
        files[name] = files[name].replace(b"twice on 2", b"twice on 3")
        assert b"twice on 3" in files[name]

    with unpacked(written(tmp_path, change)) as files:
        assert certificate.check(files, CATALOG).problems


def test_a_terminal_shows_why_a_check_did_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    document = certificate.certificate_of(accepted(), CATALOG, 50.0)
    reason = "below the limit, and nothing else was running on this machine during the whole run"
    last = replace(document.checks[-1], outcome=Outcome.FAIL, reason=reason)
    document = replace(document, checks=(*document.checks[:-1], last))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    text = render(certificate_blocks(document))
    assert f"{last.part}, {last.name}: {reason}" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert reason in certificate_html(document, {}).decode()


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_terminal_shows_what_decided_each_check(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    content = (ROOT / "docs" / "verdict" / "certificate.json").read_bytes()
    document = msgspec.json.decode(content, type=Certificate)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    text = render(certificate_blocks(document))
    assert max(map(len, text.splitlines())) <= int(columns)
    words = " ".join(text.split())
    for check in document.checks:
        for column in (check.part, check.name, check.measured, check.against, check.limit):
            assert column in words


def test_joules_and_price_have_their_unit() -> None:
    text = Efficiency("distilbert", "tokens", 100.0, 1717.0, 0.25, padding_included=True).text()
    assert text.startswith("1,717 J per million tokens")
    assert "price 0.25 per million tokens" in text


def test_the_page_in_text_says_the_price() -> None:
    document = certificate.certificate_of(accepted(), CATALOG, 50.0)
    document = replace(document, efficiency=(Efficiency("distilbert", "tokens", 100.0, None, 0.25),))
    assert any("0.25" in line for block in certificate_blocks(document) for line in getattr(block, "lines", ()))


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which there are things of every kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "thesis.html").write_text("mine")
    (tmp_path / "link.xml").symlink_to("thesis.html")
    os.mkfifo(tmp_path / "pipe.xml")
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        "--out=",
        "--out=folder",
        "--out=thesis.html",
        "--out=thesis.tar.gz",  # its page would be thesis.html
        "--out=new.tar.gz --junit=new.tar.gz",
        "--out=new.tar.gz --junit=folder/../new.html",
        "--junit=",
        "--junit=folder",
        "--junit=link.xml",
        "--junit=pipe.xml",
        "--junit=thesis.html/checks.xml",
    ],
)
def test_what_cannot_be_written_costs_no_run(flagbench: Flagbench, taken: Path, options: str) -> None:
    ended = flagbench(f"accept --case distilbert:cpu --gpus 1 --dry-run {options}")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert (taken / "thesis.html").read_text() == "mine"


def test_a_host_that_no_file_can_be_named_after(flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "rack/7")
    assert flagbench("accept --case distilbert:cpu --gpus 1 --dry-run").code == ExitCode.USAGE
    assert flagbench("accept --case distilbert:cpu --gpus 1 --dry-run --out new.tar.gz").code == ExitCode.OK


def test_junit_has_each_check(tmp_path: Path) -> None:
    found = accepted(quota)
    document = certificate.certificate_of(found, CATALOG, 50.0)
    root = ElementTree.fromstring(certificate.junit_of(document))
    assert len(root.findall(".//testcase")) == len(document.checks)
    assert len(root.findall(".//failure")) == 1


def test_a_number_is_held_against_earlier_runs() -> None:
    """It was not steady: its slowest fifth is 6 % slower than the whole."""

    def earlier(facts: Raw, raw: Raw) -> None:
        prior = spread_of(Prior(0.01, 6.0, "6 deviations", SESSION_SPREAD))
        facts["parts"][0].update(history=[raw["record_id"][:-8] + "00000000"], priors={"matmul_fp32": prior})

    found = accepted(earlier)
    (content,) = found.records.values()
    other = {**json.loads(content), "record_id": found.facts.parts[0].history[0], "run_id": "another"}
    found.records[other["record_id"]] = json.dumps(other).encode()
    document = certificate.certificate_of(found, CATALOG, 50.0)
    (check,) = (each for each in document.checks if each.ratio)
    assert check.ratio is not None
    assert (check.name, check.outcome, check.ratio.value) == ("matmul_fp32", "PASS", 1.0)
    assert check.ratio.ci95 == pytest.approx((0.9389, 1.2315), abs=1e-4)
    assert b"<svg" in certificate.files_of(document, found.records, {})[certificate.PAGE]


def test_slow_and_unsound_runs_are_not_held_against(store: Store) -> None:
    speeds = {1: 1.0, 2: 0.97, 3: 1.01, 4: 0.85, 5: 0.85, 6: 0.85, 7: 0.85, 8: 0.85, 9: 0.85}
    for number, speed in speeds.items():
        name = f"2026010{number}T120000Z-run"
        made = {"record_id": name, "run_id": name, "created_at": f"2026-01-0{number}T12:00:00Z"}
        raw = honest_record(CATALOG.claims[ROW], Pace(slower=1 / speed, seed=number), **made)
        if number == 2:
            next(each for each in raw["metrics"] if each["name"] == "p_core")["value"] += 10
        store.put(json.dumps(raw).encode())
    newest = read_record(json.dumps(raw).encode())
    assert [each.record_id[:8] for each in runs_to_compare(store, newest)] == ["20260103", "20260101"]


def test_only_runs_of_the_same_host_are_held_against(store: Store) -> None:
    """Without devices that have UUIDs, nodes with one kind of processor differ by their names alone."""
    for number, host in enumerate(["cpu-1", "cpu-2", "0123456789ab", "cpu-1"], start=1):
        name = f"2026010{number}T120000Z-run"
        made = {"record_id": name, "run_id": name, "created_at": f"2026-01-0{number}T12:00:00Z"}
        raw = honest_record(CATALOG.claims[ROW], Pace(seed=number), **made)
        raw["system"]["host"] = host
        store.put(json.dumps(raw).encode())
    newest = read_record(json.dumps(raw).encode())
    assert [earlier.record_id[:8] for earlier in runs_to_compare(store, newest)] == ["20260101"]


ROW, LLAMA = "distilbert/a100-1x8-fp32", "llama3-8b/h100-1x8-bf16"


@pytest.mark.parametrize(
    ("row", "layers", "slower", "outcome"),
    [
        (ROW, None, 1.0, "PASS"),
        (ROW, None, 1.05, "PASS"),
        (ROW, None, 1.1, "INCONCLUSIVE"),
        (ROW, None, 1.2, "FAIL"),
        (LLAMA, "transformer_engine", 1.2, "FAIL"),
        (LLAMA, "local", 1.0, "PASS"),
        (LLAMA, "local", 1.2, "NOT_KNOWN"),
    ],
)
def test_a_published_number_decides(row: str, layers: str | None, slower: float, outcome: str) -> None:
    own = {"conditions": {"transformer": layers}} if layers else {}
    raw = honest_record(CATALOG.claims[row], Pace(slower=slower), **own)

    def published(facts: Raw, _: Raw) -> None:
        cuda(facts, visible=2)
        facts["parts"] = [{**PART, "case": row.partition("/")[0], "record_id": raw["record_id"]}]

    found = accepted(published)
    records = {raw["record_id"]: read_record(json.dumps(raw).encode())}
    checks = checks_of(found.facts, records, CATALOG)
    assert [each.outcome.value for each in checks if each.ratio] == [outcome]
    concluded_as = conclude(checks, found.facts, records)
    assert (concluded_as.outcome, concluded_as.action.do == "drain") == (
        "FAIL" if outcome == "FAIL" else "INCONCLUSIVE",  # a case alone does not say how fast memory is
        outcome == "FAIL",
    )
