"""A file that is ambiguous, or that a cluster would read otherwise, is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.kubernetes.read import parse_documents, read_documents


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: 1\na: 2\n", "job.yaml:2: 'a'"),
        ("a: {b: 1,\n b: 2}", "job.yaml:2: 'b'"),
        ("1: x", "job.yaml:1: the key 1"),
        ("[x]: y", "job.yaml:1: the key ['x']"),
        ("a: &x [1]\nb: *x", "job.yaml:2: "),
        ("- a", "mapping"),
        ("just words", "mapping"),
        ("a: b: c", "job.yaml:1: "),
        ("a: \x00", "job.yaml: "),
        ("a: !!python/object:os.system x", "job.yaml:1: "),
        ('{"a": 1, "a": 2}', "job.yaml: "),
        ("{a: 1, a: 2}", "job.yaml:1: 'a'"),
        ('{"a": ', "job.yaml:1: "),
        ("[" * 5000, "job.yaml: "),
    ],
)
def test_refused(text: str, named: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        parse_documents(text, "job.yaml")
    assert named in caught.value.message
    assert caught.value.code == ExitCode.USAGE


def test_dates_and_equals_signs_stay_strings_and_empty_documents_are_nothing() -> None:
    assert parse_documents("a: 2024-01-01\nb: =\n---\n---\nc: 1\n---\n", "x") == [
        {"a": "2024-01-01", "b": "="},
        {"c": 1},
    ]


@pytest.mark.parametrize(
    "text", ['{"a": {"b": [1]}, "kind": "Job"}', "{a: {b: [1]}, kind: Job}", "{a: {b: [1]},\n kind: Job}\n---\n"]
)
def test_a_mapping_in_braces_is_json_or_yaml(text: str) -> None:
    assert parse_documents(text, "x") == [{"a": {"b": [1]}, "kind": "Job"}]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FlagbenchError) as caught:
        read_documents(tmp_path / "none.yaml")
    assert caught.value.code == ExitCode.USAGE
    assert "none.yaml" in caught.value.message


def test_every_document_of_every_list_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: Service\n---\nkind: List\nitems: [{kind: Job}, {kind: ConfigMap}]\n---\nkind: Job\n")
    assert [document["kind"] for document in read_documents(path)] == ["Service", "Job", "ConfigMap", "Job"]
