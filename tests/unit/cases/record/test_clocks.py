"""A record says by how much the time of day was set while its run went on."""

from typing import Optional

import pytest

from flagbench_cases.record import assemble, clocks
from flagbench_cases.record.clocks import Reading, set_by
from flagbench_cases.record.evidence import NOTHING
from unit.cases.record.runs import FAILED, request

pytestmark = pytest.mark.image

NOON = Reading(1_700_000_000.0, 5_000.0)


@pytest.mark.parametrize(
    ("now", "moved"),
    [
        (Reading(NOON.time_of_day + 60.0, NOON.elapsed + 60.0), None),
        (Reading(NOON.time_of_day + 60.5, NOON.elapsed + 60.0), None),
        (Reading(NOON.time_of_day + 60.0 - 28800.0, NOON.elapsed + 60.0), -28800.0),
        (Reading(NOON.time_of_day + 60.0 + 90.04, NOON.elapsed + 60.0), 90.0),
    ],
)
def test_what_a_clock_was_set_by(now: Reading, moved: Optional[float]) -> None:
    assert set_by(NOON, now) == moved


def test_a_record_says_what_the_clock_was_set_by() -> None:
    now = clocks.read()
    later = request(None)._replace(begun=now._replace(time_of_day=now.time_of_day + 28800.0))
    made = assemble.assemble(later, NOTHING, FAILED)
    assert made["system"]["clock_set_seconds"] == pytest.approx(-28800.0, abs=1.0)
    assert "clock_set_seconds" not in assemble.assemble(later._replace(begun=now), NOTHING, FAILED)["system"]
