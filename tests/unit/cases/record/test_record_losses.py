"""The loss of every step is in the record, as far as it fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unit.cases.record.runs import NAN, WINDOW, evidence, record_of

pytestmark = pytest.mark.image


def losses_of(made: dict[str, Any]) -> dict[str, Any]:
    return made["quality"]["losses"]


def test_every_step_has_its_loss_and_a_skipped_one_none() -> None:
    values = [0.5 + number / 64 for number in range(WINDOW)]
    found = evidence([NAN if number == 7 else value for number, value in enumerate(values)])
    values[7] = None
    assert losses_of(record_of(found)) == {"first_step": 0, "steps": WINDOW, "values": values}


def test_losses_in_fp32_are_exact() -> None:
    drawn = np.random.RandomState(0).uniform(0, 12, WINDOW).astype(np.float32)
    found = losses_of(record_of(evidence([float(value) for value in drawn])))["values"]
    assert np.array_equal(np.array(found).astype(np.float32), drawn)
    assert max(len(repr(value)) for value in found) <= 11


def test_a_resumed_run_begins_where_the_checkpoint_was_written() -> None:
    found = evidence()
    found.facts.append({"kind": "resumed", "rank": 0, "time": 1.0, "step": 40, "checkpoint": "step-40"})
    assert losses_of(record_of(found))["first_step"] == 40
