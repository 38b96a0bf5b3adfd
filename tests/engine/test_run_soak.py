"""Soaks: laps of the case that measures devices, one in which a rank computes other bits, and one that is stopped."""

import json
import shutil
import signal

import pytest

from faults import fault
from flagbench_core.evidence.drift import lap_drifts
from flagbench_core.health.judge import judge_health
from flagbench_core.health.reading import device_health
from running import ENTRYPOINTS, CaseRun, run_case, wait_until

pytestmark = pytest.mark.image

# Small operations, since one that takes too large a share of the time, as on a busy machine, is not measured.
SMALL = ("m=64", "n=64", "k=64", "copy_bytes=65536", "measure_seconds=1")
QUICK = ("--preset", "tiny", "--gpus", "2", *(word for setting in SMALL for word in ("--set", setting)))
# Results are computed before the laps and after each of them.
OTHER_BITS_IN_LAP_2 = """
from flagbench_cases.cases.roofs import workload
def results(self, right=workload.RoofsWorkload.results, calls=[]):
    calls.append(1)
    found = right(self)
    return dict(found, sum="0123456789abcdef") if len(calls) == 3 else found
workload.RoofsWorkload.results = results
"""


def test_a_soak_keeps_each_lap(tmp_path):
    heat = ("--set", "heat_seconds=1", "--set", "mamf_shape_bf16=64x32x64")
    record = run_case(tmp_path, *QUICK, *heat, "--set", "laps=3", case="roofs").ok("roofs")
    assert [lap["lap"] for lap in record["laps"]] == [1, 2, 3]
    for lap in record["laps"]:
        assert lap["other_bits"] == []
        assert lap["seconds"] > 0.5
        assert lap["rates"]
        for name, rates in lap["rates"].items():  # not all of them in each lap, on a busy machine
            assert len(rates) == (1 if name.startswith("all_reduce") else 2)
            assert not name.endswith("_best")
    drifts = lap_drifts([lap["rates"] for lap in record["laps"]])
    assert set(drifts) == set(record["laps"][1]["rates"]) & set(record["laps"][2]["rates"])
    for measurement in record["measurements"]:
        if "heated_seconds" in measurement:
            assert measurement["name"] in ("mamf_bf16", "mamf_published_bf16")
            assert measurement["heated_seconds"] >= 1
    assert len(record["measurements"]) + len(record["quality"]["absent"]) == 21


def test_other_bits_end_a_soak_and_name_lap_and_rank(tmp_path):
    wrong = fault(tmp_path, 1, "before data", OTHER_BITS_IN_LAP_2)
    ended = run_case(tmp_path, *QUICK, "--set", "laps=5", case="roofs", env=wrong)
    record = ended.failed(12, "report", "same_results", "lap 2", "rank 1")
    assert [lap["other_bits"] for lap in record["laps"]] == [[], [{"name": "sum", "rank": 1}]]
    assert [result["name"] for result in record["results"] if result["changed"]] == ["sum"]
    assert record["metrics"]


def test_an_error_of_memory_ends_a_soak_and_names_lap_and_rank(nvml_stub, tmp_path):
    """The ranks compute on processors, beside a stand-in for NVML."""
    image_side = tmp_path / "entrypoints"
    shutil.copytree(ENTRYPOINTS, image_side, ignore=shutil.ignore_patterns("__pycache__"))
    stack = next(image_side.rglob("stacks/cpu.json"))
    stack.write_text(json.dumps({**json.loads(stack.read_text()), "monitor": "nvml"}))
    env = {
        **nvml_stub(),
        "PYTHONPATH": str(image_side),
        "NVML_STUB_PROCESSES": str(tmp_path / "processes"),
        # To the sampler, before the run, before the laps, after lap 1, and from then on.
        "NVML_STUB_ECC_UNCORRECTED_1": "3,3,3,3,5",
    }
    ended = run_case(tmp_path, *QUICK, "--set", "laps=5", case="roofs", env=env)
    record = ended.failed(12, "report", "device_health", "lap 2", "rank 1")
    assert [len(lap["health"]) for lap in record["laps"]] == [0, 1]
    assert record["laps"][1]["health"][0]["kind"] == "ecc-uncorrected"
    assert record["laps"][1]["counters"] == {"ecc_uncorrected": [0, 2]}
    health = [device["health"] for device in record["telemetry"]["devices"]]
    before, after = ([device_health(reading[when]) for reading in health] for when in ("before", "after"))
    assert [(finding.kind, finding.index) for finding in judge_health(before, after)] == [("ecc-uncorrected", 1)]


def test_a_soak_that_is_stopped_keeps_its_laps(tmp_path):
    run = CaseRun(tmp_path, [*QUICK, "--set", "laps=20"], isolated=False, case="roofs")

    def laps():
        return [fact for reader in run.readers()[:1] for fact in reader.facts() if fact["kind"] == "lap"]

    wait_until(lambda: laps() or run.process.poll() is not None, 120)
    run.process.send_signal(signal.SIGINT)
    record = run.wait().failed(7, "measure", "SIGINT")
    assert [lap["lap"] for lap in record["laps"]][:1] == [1]
    assert len(record["laps"]) < 20
    assert record["measurements"]
