"""The tiny sets that cases ship are those of the scripts that make them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import tiny_sets

pytestmark = pytest.mark.image

SCRIPTS = ("aquila", "distilbert", "glm", "llama2_70b", "lora")


@pytest.mark.parametrize("name", SCRIPTS)
def test_shipped_files_are_those_of_the_script(name: str) -> None:
    assert importlib.import_module("make_tiny_" + name).check() == []


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "same").write_text("a")
    (tmp_path / "changed").write_text("b")
    assert tiny_sets.differing({"same": "a", "changed": "c", "missing": ""}, tmp_path) == ["changed", "missing"]
