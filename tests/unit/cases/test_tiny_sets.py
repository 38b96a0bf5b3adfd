"""The committed tiny sets are those of the generators in tools/tiny."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.tiny import common
from tools.tiny_sets import GENERATORS

pytestmark = pytest.mark.image


@pytest.mark.parametrize("case", GENERATORS)
def test_committed_files_are_those_of_the_generator(case: str) -> None:
    assert GENERATORS[case].check() == []


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "same").write_text("a")
    (tmp_path / "changed").write_text("b")
    assert common.differing({"same": "a", "changed": "c", "missing": ""}, tmp_path) == ["changed", "missing"]
