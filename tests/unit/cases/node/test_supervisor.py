"""What a node's parent gives its ranks: variables, and a limited wait for the monitor."""

import os

import pytest

from flagbench_cases.node import supervisor
from flagbench_cases.node.placement import Placement
from flagbench_cases.shared import manifests
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.spool import RankSpool, SpoolReader
from flagbench_cases.telemetry.jsonlines import JsonLinesWriter
from flagbench_core import config

pytestmark = pytest.mark.image

CORES = len(os.sched_getaffinity(0))


def run_of(case, stack, gpus):
    """A run that has not started."""
    manifest = manifests.load_stack(stack)
    resolved = config.resolve(manifests.load_case(case), manifest, config.Options(gpus=gpus, preset="tiny"))
    place, limits = Placement(1, 0, "127.0.0.1", 0, "flags"), supervisor.Limits(600.0, None)
    return supervisor.Run(resolved, manifest, place, limits, Interruption())


@pytest.mark.parametrize(
    ("case", "stack", "gpus", "given", "connections", "threads"),
    [
        ("llama2-70b", "cuda13", 2, {}, "1", "1"),
        ("llama2-70b", "c500-maca2.18", 2, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "8", "1"),
        ("aquila-33b", "a100-cuda11.6", 8, {}, "1", "4"),
        ("aquila-33b", "a100-cuda11.6", 8, {"OMP_NUM_THREADS": "3"}, "1", "3"),
        ("aquila-33b", "cpu", 2, {}, None, str(max(1, CORES // 2))),
        ("distilbert", "cuda13", 8, {}, None, str(max(1, CORES // 8))),
        ("distilbert", "cuda13", 1, {}, None, None),
    ],
)
def test_what_ranks_get(monkeypatch, case, stack, gpus, given, connections, threads):
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    run = run_of(case, stack, gpus)
    try:
        found = run.environment()
    finally:
        run.remove_spool()
    assert (found.get("CUDA_DEVICE_MAX_CONNECTIONS"), found.get("OMP_NUM_THREADS")) == (connections, threads)


def test_ranks_start_without_a_monitor_that_is_silent(monkeypatch):
    monkeypatch.setattr(supervisor, "MONITOR_SECONDS", -1.0)
    run = run_of("distilbert", "cpu", 1)
    try:
        run._start_sampler()
        seen = run._has_seen_devices()
        run._stop_sampler()
        found = run.evidence()
    finally:
        run.remove_spool()
    assert (seen, found.telemetry, found.monitor) == (True, None, {})
    assert "the monitor cpu" in found.telemetry_reason


def test_the_energy_of_a_window_is_that_of_its_own_rank_and_phase():
    """Rank 1 is a second later than rank 0; a pass of validation before the window of inference is not of it."""
    run = run_of("aquila-33b", "cpu", 2)
    try:
        for rank in (0, 1):
            spool = RankSpool(run.folder, rank)
            spool.fact("window", name="val", steps=9, seconds=3.0)
            spool.fact("window", name="infer", steps=4, seconds=2.0 - rank)
        end = SpoolReader(run.folder, 0).facts()[-1]["time"]
        samples = [
            {
                "kind": "sample",
                "t": end + seconds,
                "devices": [{"index": index, "energy_mj": 1e5 * (index + 1) * seconds} for index in (0, 1)],
            }
            for seconds in range(-9, 9)
        ]
        with JsonLinesWriter(run._telemetry) as sink:
            sink.append([{"kind": "start", "interval_s": 1.0}, *samples])
        found = [device["window_energy"] for device in run.evidence().telemetry["devices"]]
    finally:
        run.remove_spool()
    assert [(energy["steps"], energy["seconds"]) for energy in found] == [(4, 2.0), (4, 1.0)]
    assert [energy["joules"] for energy in found] == pytest.approx([200.0, 200.0])
