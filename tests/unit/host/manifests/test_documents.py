"""Data of manifests comes from the user's cache, by the bytes of the file; the YAML is parsed for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.manifests import yaml_reader
from flagbench.manifests.documents import read_document

TEXT = "name: distilbert\ntrain: {batch_size: 32, learning_rate: 5.0e-5}\n"


@pytest.fixture
def parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are parsed, with an empty cache."""
    texts: list[str] = []
    parse = yaml_reader.parse_yaml

    def note(text: str) -> yaml_reader.ParsedYaml:
        texts.append(text)
        return parse(text)

    monkeypatch.setattr(yaml_reader, "parse_yaml", note)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return texts


def test_the_same_bytes_are_parsed_once(tmp_path: Path, parsed: list[str]) -> None:
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).write_text(TEXT)
        document = read_document(tmp_path / name, name)
        assert document.data == {"name": "distilbert", "train": {"batch_size": 32, "learning_rate": 5.0e-5}}
    (tmp_path / "two.yaml").write_text(TEXT + "seed: 1\n")
    assert read_document(tmp_path / "two.yaml", "two.yaml").data["seed"] == 1
    assert parsed == [TEXT, TEXT + "seed: 1\n"]


def test_a_line_of_a_document_from_the_cache(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(TEXT)
    read_document(path, "one.yaml")
    document = read_document(path, "one.yaml")
    document.add_problem(("train", "batch_size"), "is too large")
    assert document.problems[0].line == 2
    assert len(parsed) == 2


def test_a_file_with_a_problem_is_not_kept(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("name: a\nname: b\n")
    for _ in range(2):
        assert [problem.line for problem in read_document(path, "one.yaml").problems] == [2]
    assert len(parsed) == 2


@pytest.mark.parametrize("damage", ["truncated", "not a folder"])
def test_a_cache_that_cannot_be_used(tmp_path: Path, parsed: list[str], damage: str) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(TEXT)
    if damage == "not a folder":
        (tmp_path / "cache").write_text("")
    else:
        read_document(path, "one.yaml")
        for file in (tmp_path / "cache").rglob("*.json"):
            file.write_text('{"name": "dist')
    assert read_document(path, "one.yaml").data["name"] == "distilbert"
