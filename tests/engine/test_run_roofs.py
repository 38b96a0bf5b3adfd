"""Runs of the case that measures devices: on one rank, and on two nodes of two, where one rank is slow."""

from operator import itemgetter
from statistics import median

import pytest

from faults import fault
from flagbench_core.evidence.roofs import bus_factor, short_roofs
from running import CaseRun, free_port, run_case

pytestmark = pytest.mark.image

# By the clock of its device, rank 1 takes twice as long.
SLOWER = """
from flagbench_cases.rank import stopwatch
seconds = stopwatch.HostClock.seconds
stopwatch.HostClock.seconds = lambda self, start, end: 2 * seconds(self, start, end)
"""
# Small operations, since one that takes too large a share of the time, as on a busy machine, is not measured.
SMALL = ("m=64", "n=64", "k=64", "copy_bytes=65536", "measure_seconds=1")
QUICK = ("--preset", "tiny", *(word for setting in SMALL for word in ("--set", setting)))


def rates(record):
    return {each["name"]: each["rate"] for each in record["measurements"]}


@pytest.mark.old_torch
def test_one_rank_measures_all_that_needs_no_other(tmp_path):
    record = run_case(tmp_path, *QUICK, case="roofs").ok("roofs")
    absent = record["quality"]["absent"]
    assert {"matmul_fp64", "matmul_fp32", "memory_bandwidth"} <= set(rates(record))
    assert {"matmul_tf32", "h2d_pinned", "all_reduce_65536"} <= set(absent)
    assert len(record["measurements"]) + len(absent) == 20
    assert record["conditions"]["shape"] == "64 x 64 x 64"
    assert not record["slow_devices"]
    assert record["work"]["steps"] == sum(each["repeats"] for each in record["measurements"])


def test_two_nodes_measure_together_and_name_a_slow_rank(tmp_path):
    job = [*QUICK, "--nodes", "2", "--gpus", "2", "--master", "127.0.0.1:%d" % free_port(), "--run-id", "roofs"]
    slow = fault(tmp_path, 1, "before data", SLOWER)
    nodes = [CaseRun(tmp_path, [*job, "--node-rank", str(node)], False, case="roofs", env=slow) for node in (0, 1)]
    first, second = [node.wait() for node in nodes]
    record = first.ok("roofs")
    assert second.code == 0
    answers = (first.stderr.count("checks passed"), second.stderr.count("checks passed"))
    assert answers == (1, 0), "node 0 alone says what the job came to"
    assert len(record["ranks"]) == 4
    if record["slow_devices"]:  # a busy machine may hide it
        assert min(record["slow_devices"], key=itemgetter("share"))["rank"] == 1
    assert median(shares_of_rank_1(record)) < 1
    spans = {span["phase"]: span for span in record["evidence"]["spans"]}
    for measurement in record["measurements"]:
        assert measurement["repeats"] == spans[measurement["name"]]["steps"] <= 20
    metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
    if "all_reduce" in rates(record):  # one that takes too long on a busy machine is absent
        bandwidth = rates(record)["all_reduce"] * bus_factor("all_reduce", 4) / 1e9
        assert metrics["all_reduce_busbw"] == pytest.approx(bandwidth)


def shares_of_rank_1(record):
    """Of each measurement that has the rates of four devices, that of rank 1 over the median of the others'."""
    shares = []
    for measurement in record["measurements"]:
        if "devices" in measurement:
            first, slow, *others = measurement["devices"]
            assert len(others) == 2
            shares.append(slow / median([first, *others]))
    return shares


@pytest.mark.parametrize("case", ["distilbert", "aquila-33b"])
def test_steps_are_as_without_roofs_and_below_them(tmp_path, case):
    words = ("--preset", "tiny", "--steps", "12")
    record, without = (run_case(tmp_path, *words, *more, case=case).ok(case) for more in (["--roofs"], []))
    assert record["config_digest"] == without["config_digest"]
    assert record["quality"].get("losses") == without["quality"].get("losses")
    names = set(short_roofs(record["config"]["precision"]))
    assert set(rates(record)) | set(record["quality"]["absent"]) == names
    assert "measurements" not in without
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    ceiling = record["flops"]["measured_ceiling"]["flops"]
    products = [each for each in record["measurements"] if each["operation"] == "matmul"]
    assert found["mfu_roof"] * max(each["rate"] for each in products) == pytest.approx(
        found["mfu_measured"] * ceiling
    )
    # On a busy machine products vary more than an interval says, and the fastest one is after the steps.
    assert found["mfu_measured"] * ceiling <= max(ceiling, *(each["rate"] + each["stdev"] for each in products))
