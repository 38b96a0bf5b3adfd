"""YAML of jobs: what is ambiguous is refused with its line; what is written is read back by every parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.kubernetes.dump import dump_documents, job_header
from flagbench.launchers.kubernetes.read import parse_documents, read_documents

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
AMBIGUOUS = ["y", "N", "yes", "off", "null", "~", "1e3", "0o17", "0x1f", "0b1", "1_000", "1:30", ".inf", ".NaN"]
AMBIGUOUS += ["2024-01-01", "=", "<<", "-", "?", "!", "&", "*", "|", ">", "%", "@", "`", ""]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


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
    assert parse_documents('{"kind": "List", "items": [{"a": 1}, {"b": 2}]}', "x") == [{"a": 1}, {"b": 2}]


@given(st.lists(st.dictionaries(TEXT, VALUES, min_size=1, max_size=3), min_size=1, max_size=3), st.lists(TEXT))
def test_any_documents_under_any_header_come_back(documents: list[dict[str, object]], header: list[str]) -> None:
    text = dump_documents(documents, header)
    assert text.isascii()
    assert list(yaml.safe_load_all(text)) == documents


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_what_some_parser_takes_for_another_type_is_quoted(text: str) -> None:
    assert dump_documents([{"a": text}]) == f'---\na: "{text}"\n'


@given(TEXT)
def test_a_bare_string_begins_with_a_letter_or_slash_and_is_no_word(text: str) -> None:
    scalar = dump_documents([{"a": text}]).removeprefix("---\na: ").rstrip("\n")
    assert scalar.startswith('"') or re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", scalar)


def test_a_header_cannot_end_its_comment() -> None:
    header = job_header(["flagbench", "a\nkind: Pod", "b\u2028c\x85d"], "x:1", "n")
    lines = dump_documents([{"a": 1}], header).splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["---", "a: 1"]
