"""The health of devices in a record: optional, and read as what judge_health takes."""

from __future__ import annotations

import json

from flagbench.records.read import read_record
from flagbench.schema import shipped_manifests
from flagbench_core.health.judge import judge_health
from flagbench_core.health.reading import DeviceHealth

RECORD = shipped_manifests().parent / "docs" / "measured" / "h100-distilbert.json"


def test_a_record_with_health_and_one_without() -> None:
    document = json.loads(RECORD.read_text())
    uuid = document["system"]["devices"][0]["uuid"]
    before = DeviceHealth(0, uuid, nvlinks_up=(0, 1), nvlinks_down=(), refusals={"ecc_corrected": "ECC is off"})
    after = DeviceHealth(0, uuid, nvlinks_up=(0,), nvlinks_down=(1,))
    document["telemetry"]["devices"][0]["health"] = {"before": before.to_dict(), "after": after.to_dict()}
    telemetry = read_record(json.dumps(document).encode()).telemetry
    assert telemetry is not None
    health = telemetry.devices[0].health
    assert health is not None
    assert (health.before, health.after) == (before, after)
    assert "nvlink-down" in {finding.kind for finding in judge_health([before], [after])}

    telemetry = read_record(RECORD).telemetry
    assert telemetry is not None
    assert telemetry.devices[0].health is None
