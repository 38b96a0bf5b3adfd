"""The UUID of a rank's device is the one that the node's monitor reports for its number within the run."""

from __future__ import annotations

from typing import Any

import pytest

from flagbench_cases.rank.run import uuid_of

pytestmark = pytest.mark.image

MONITORED = {"devices": [{"index": 1, "uuid": "MIG-b"}, {"index": 0, "uuid": "GPU-a"}, {"index": 2}]}


@pytest.mark.parametrize(
    ("monitored", "index", "uuid"),
    [
        (MONITORED, 0, {"uuid": "GPU-a"}),
        (MONITORED, 1, {"uuid": "MIG-b"}),
        (MONITORED, 2, {}),
        (MONITORED, 3, {}),
        ({"unavailable": "no driver"}, 0, {}),
    ],
)
def test_by_number(monitored: dict[str, Any], index: int, uuid: dict[str, str]) -> None:
    assert uuid_of(monitored, index) == uuid
