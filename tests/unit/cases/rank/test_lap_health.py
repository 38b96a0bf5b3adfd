"""The health of two devices after each lap, read from a stand-in for NVML: what is added, what hangs, which rank."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.rank.lap_health import LapReading, join_readings
from nvml_stubs import UUIDS

pytestmark = pytest.mark.image

SCRIPT = """
import json, sys
from flagbench_cases.rank.lap_health import LapHealth
uuids, seconds, log = json.loads(sys.argv[1])
health = LapHealth("nvml", uuids, seconds, log)
laps = []
for line in ("", "4,8,1,-;NVRM: Xid (PCI:0000:b0:00): 79, pid=1, GPU has fallen off the bus.\\n"):
    with open(log, "a") as file:
        file.write(line)
    reading = health.read()
    laps.append(None if reading is None else reading._asdict())
print(json.dumps(laps))
"""


def readings(env: dict[str, str], folder: Path, seconds: float = 30.0, **planted: str) -> list[Any]:
    """After two laps, in the second of which the second device falls off the bus by the kernel log."""
    log = folder / "kmsg"
    log.write_text("4,7,1,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=1, of before the soak\n")
    variables = {f"NVML_STUB_{name}": value for name, value in planted.items()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([UUIDS, seconds, str(log)])],
        env={**env, **variables, "NVML_STUB_PROCESSES": str(folder / "processes")},
        stdout=subprocess.PIPE,
        check=True,
    )
    laps: list[Any] = json.loads(done.stdout.decode())
    return laps


def test_what_was_added_since_the_soak_began(nvml_stub: Callable, tmp_path: Path) -> None:
    first, second = readings(nvml_stub(), tmp_path, ECC_CORRECTED_0="4,4,6", ECC_UNCORRECTED_1="3,3,5")
    assert (first["findings"], first["counters"]) == ([], [{}, {}])
    found = [(finding["kind"], finding["index"], finding["outcome"]) for finding in second["findings"]]
    assert found == [("xid-79", 1, "FAIL"), ("ecc-uncorrected", 1, "FIX")]
    assert second["counters"] == [{"ecc_corrected": 2}, {"ecc_uncorrected": 2}]


def test_a_reading_that_hangs_is_not_repeated(nvml_stub: Callable, tmp_path: Path) -> None:
    first, second = readings(nvml_stub(), tmp_path, 2.0, ECC_UNCORRECTED_1="3,HANG")
    assert [(finding["kind"], finding["index"]) for finding in first["findings"]] == [("no-answer", 1)]
    assert second is None


def test_findings_and_counters_have_the_ranks_of_all_nodes() -> None:
    finding = {"index": 1, "kind": "xid-79", "outcome": "FAIL", "reason": "it has fallen off the bus"}
    node_0 = LapReading([], [{"pcie_replays": 2}, {}])
    node_1 = LapReading([finding], [{}, {"pcie_replays": 1}])
    together = join_readings([node_0, None, node_1, None])
    assert [(found["rank"], found["kind"]) for found in together["health"]] == [(3, "xid-79")]
    assert together["counters"] == {"pcie_replays": [2, 0, 0, 1]}


def test_without_a_reading_health_is_not_known() -> None:
    assert join_readings([None, None]) == {"health": None, "counters": {}}
