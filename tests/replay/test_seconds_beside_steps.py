"""How long measured runs took besides their steps: from the start of the run until its record was complete.

Most of it is the imports of the ranks, the set-up of the model, and the measurement of the device's matrix products.
`pytest -rP tests/replay/test_seconds_beside_steps.py` prints the seconds of each record.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

MEASURED = Path(__file__).parents[2] / "docs" / "measured"
RECORDS = [path for path in sorted(MEASURED.glob("*.json")) if "roofs" not in path.name]
LIMIT_SECONDS = 15.0
"""Records whose run began later than LIMITED_SINCE stay below this, on a device, with random weights and nothing to
read. Of the eight older ones, five are above 20 s."""
LIMITED_SINCE = datetime(2026, 11, 28, 19, tzinfo=timezone.utc)
"""Before it, torch's launcher imported torch before each rank did."""


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_seconds_beside_the_steps(path: Path) -> None:
    record = json.loads(path.read_bytes())
    timing = record["timing"]
    began = datetime.strptime(record["record_id"].partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    ended = datetime.strptime(record["created_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    steps = timing["train"] if "train" in timing else timing["infer"]
    beside = (ended - began).total_seconds() - steps
    print(f"{path.stem}: {beside:.1f} s beside {steps:.1f} s of steps; init {timing['init']:.1f} s")
    assert beside > 0
    if began >= LIMITED_SINCE:
        assert beside < LIMIT_SECONDS
