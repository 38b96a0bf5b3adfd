"""The compiled manifests of an image, by name."""

from __future__ import annotations

import pytest

from flagbench_cases.shared import manifests
from flagbench_cases.shared.errors import UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


def test_an_unknown_case_or_stack_lists_the_known() -> None:
    for name in ("nosuch", "../distilbert"):
        with refuses(UsageError, name) as caught:
            manifests.load_case(name)
        assert "distilbert" in caught.value.remedy
    with refuses(UsageError, "nosuch") as caught:
        manifests.load_stack("nosuch")
    assert "cpu" in caught.value.remedy
