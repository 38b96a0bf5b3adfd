"""Data of manifests comes from the user's cache, by the file's bytes and type; all else is parsed and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.manifests import yaml_reader
from flagbench.manifests.documents import Document, read_document
from flagbench.manifests.limits import LimitsManifest
from flagbench.manifests.rows import CatalogueCases

GLM = "  glm: {model: glm, task: pretraining}\n"
TEXT = f"schema: catalogue-cases/v1\ncases:\n{GLM}"


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


def read(path: Path) -> Document:
    """Read a file with the workloads of cases."""
    return read_document(path, path.name, CatalogueCases)


def test_the_same_bytes_are_parsed_once(tmp_path: Path, parsed: list[str]) -> None:
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).write_text(TEXT)
        assert read(tmp_path / name).data["cases"] == {"glm": {"model": "glm", "task": "pretraining"}}
    longer = TEXT + GLM.replace("glm", "aquila")
    (tmp_path / "two.yaml").write_text(longer)
    assert read(tmp_path / "two.yaml").data["cases"].keys() == {"glm", "aquila"}
    assert parsed == [TEXT, longer]


def test_a_line_of_a_document_from_the_cache(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(TEXT)
    read(path)
    document = read(path)
    document.add_problem(("cases", "glm"), "is too large")
    assert document.problems[0].line == 3
    assert len(parsed) == 2


def test_a_file_with_a_problem_is_not_kept(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "one.yaml"
    for duplicate_or_unknown_key in (GLM, "sases: {}\n"):
        path.write_text(TEXT + duplicate_or_unknown_key)
        for _ in range(2):
            assert [problem.line for problem in read(path).problems] == [4]
    assert len(parsed) == 4


def test_a_file_that_is_read_as_another_type(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(TEXT)
    assert read(path).problems == []
    assert ("limits",) in [problem.path for problem in read_document(path, "one.yaml", LimitsManifest).problems]


@pytest.mark.parametrize("damage", ["truncated", "not a folder"])
def test_a_cache_that_cannot_be_used(tmp_path: Path, parsed: list[str], damage: str) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(TEXT)
    if damage == "not a folder":
        (tmp_path / "cache").write_text("")
    else:
        read(path)
        for file in (tmp_path / "cache").rglob("*.json"):
            file.write_text('{"cases": {"gl')
    assert read(path).data["cases"]["glm"]["model"] == "glm"
