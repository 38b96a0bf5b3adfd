"""The health of devices in the record of a run, whose ranks compute on processors beside a stand-in for NVML."""

import json
import subprocess
import sys

import pytest

from flagbench_core.health.judge import judge_health
from flagbench_core.health.reading import device_health
from nvml_stubs import UUIDS

pytestmark = pytest.mark.image

SCRIPT = """
import json
from flagbench_cases.node import supervisor
from flagbench_cases.node.placement import Placement
from flagbench_cases.shared import manifests
from flagbench_cases.shared.interruption import Interruption
from flagbench_core import config

stack = {**manifests.load_stack("cpu"), "monitor": "nvml"}
resolved = config.resolve(manifests.load_case("distilbert"), stack, config.Options(gpus=2, preset="tiny", steps=2))
limits = supervisor.Limits(120.0, None)
run = supervisor.Run(resolved, stack, Placement(1, 0, "127.0.0.1", 0, "flags"), limits, Interruption())
outcome = run.execute(config.digest(resolved), {})
print(json.dumps([outcome.state, outcome.reason, run.evidence().telemetry["devices"]]))
run.remove_spool()
"""


def test_an_error_of_memory_during_a_run_is_in_its_record(nvml_stub, tmp_path):
    env = {
        **nvml_stub(),
        "NVML_STUB_PROCESSES": str(tmp_path / "processes"),
        "NVML_STUB_ECC_UNCORRECTED_1": "3,3,5",  # to the sampler, and to the readings before and after
    }
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, stdout=subprocess.PIPE, check=True)
    state, reason, devices = json.loads(done.stdout.decode().splitlines()[-1])
    assert (state, reason) == ("ok", None)
    before, after = ([device_health(device["health"][when]) for device in devices] for when in ("before", "after"))
    assert [device.uuid for device in after] == UUIDS
    found = judge_health(before, after)
    assert [(finding.kind, finding.index) for finding in found] == [("ecc-uncorrected", 1)]
