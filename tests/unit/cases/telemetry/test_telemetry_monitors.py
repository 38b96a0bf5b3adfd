"""Monitors: which there are, and which physical device a number of the run means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flagbench_cases.telemetry.monitors import NAMES, visible_devices

pytestmark = pytest.mark.image

STACKS = Path(__file__).parents[4] / "entrypoints" / "flagbench_cases" / "shared" / "stacks"


def test_every_stack_has_a_monitor() -> None:
    assert {json.loads(path.read_text())["monitor"] for path in STACKS.iterdir()} == set(NAMES)


UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-cccc-3,GPU-aaaa-1", [2, 0]),
        ("GPU-c", [2]),  # a unique prefix
        ("GPU-aa", []),  # of two devices
        ("", []),
        ("0,9,1", [0]),  # what follows an invalid entry is not seen
        ("1,1", []),
        ("MIG-1234", ["MIG-1234"]),
    ],
)
def test_devices_in_the_order_of_the_run(value: str | None, devices: list[int | str]) -> None:
    assert visible_devices(value, UUIDS) == devices
