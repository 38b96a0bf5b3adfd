"""What a node's parent gives its ranks: variables, and a limited wait for the monitor."""

import os

import pytest

from flagbench_cases.node import supervisor
from flagbench_cases.node.placement import Placement
from flagbench_cases.shared import manifests
from flagbench_cases.shared.interruption import Interruption
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
        run._stop_sampler()
        found = run.evidence()
    finally:
        run.remove_spool()
    assert (found.telemetry, found.monitor) == (None, {})
    assert "the monitor cpu" in found.telemetry_reason
