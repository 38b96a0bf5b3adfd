"""Which data and weights a run reads, by its options and by what is in the folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flagbench_core.data_folders import DataFolders, find_folders

pytestmark = pytest.mark.image

CASE = {"name": "toy"}


def found(data: Path | str | None = None, weights: Path | str | None = None, **changes: Any) -> DataFolders:
    asked: dict[str, Any] = {"case": CASE, "preset": "reference", "default": None, **changes}
    return find_folders(data=data and str(data), weights=weights and str(weights), **asked)


def prepare(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "prepared.json").write_text("{}")
    return str(folder)


def test_data_given_beats_data_found(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("x")
    default = str(tmp_path)
    assert found(default=default) == ("files", default, None)
    assert found("synthetic", default=default) == ("synthetic", None, None)
    assert found("/somewhere/else", default=default) == ("files", "/somewhere/else", None)


def test_without_data_the_preset_decides(tmp_path: Path) -> None:
    file = tmp_path / "file"
    empty = tmp_path / "empty"
    empty.mkdir()
    file.write_text("x")
    for default in (None, empty, tmp_path / "missing", file):
        assert found(default=default and str(default)) == (None, None, None)


def test_tiny_and_a_measurement_take_only_data_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("x")
    for own in ({"preset": "tiny"}, {"case": {"name": "roofs", "kind": "measure"}}):
        assert found(default=str(tmp_path), **own).source is None
        assert found(tmp_path, **own).source == "files"


def test_the_output_folder_of_prepare_has_both(tmp_path: Path) -> None:
    data, weights = prepare(tmp_path / "data"), prepare(tmp_path / "weights")
    assert found(tmp_path) == ("files", data, weights)
    assert found(default=str(tmp_path)) == ("files", data, weights)
    assert found(data) == ("files", data, None)
    assert found("synthetic", tmp_path) == ("synthetic", None, weights)
    assert found(tmp_path, "/elsewhere") == ("files", data, "/elsewhere")


def test_the_archive_of_flagperf_has_weights_beside_its_data(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert found(tmp_path) == ("files", str(tmp_path), str(tmp_path / "model"))
