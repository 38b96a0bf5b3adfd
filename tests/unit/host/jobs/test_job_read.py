"""A file that is ambiguous, or that a cluster would read otherwise, is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.jobs.read import parse_documents, read_documents


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "job.yaml:2: 'a' is given twice"),
        ("a: {b: 1,\n b: 2}", "job.yaml:2: 'b' is given twice"),
        ("1: x", "job.yaml:1: the key 1 is not a string"),
        ("[x]: y", "job.yaml:1: the key ['x'] is not a string"),
        ("a: &x [1]\nb: *x", "job.yaml:2: an alias"),
        ("- a", "a document is no mapping"),
        ("just words", "a document is no mapping"),
        ("a: b: c", "job.yaml:1: mapping values are not allowed here"),
        ("a: \x00", "special characters are not allowed"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ('{"a": 1, "a": 2}', "a key is given twice"),
        ("{a: 1, a: 2}", "job.yaml:1: 'a' is given twice"),
        ('{"a": ', "job.yaml:1: expected the node content"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        parse_documents(text, "job.yaml")
    assert message in caught.value.message
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
    with pytest.raises(FlagbenchError, match="cannot be read"):
        read_documents(tmp_path / "none.yaml")
