"""What is written is read back as the same values, also by parsers with other ideas of a bare word."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flagbench.launchers.kubernetes.dump import dump_documents, job_header
from flagbench.launchers.kubernetes.read import parse_documents

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
AMBIGUOUS = ["y", "N", "yes", "off", "null", "~", "1e3", "0o17", "0x1f", "0b1", "1_000", "1:30", ".inf", ".NaN"]
AMBIGUOUS += ["2024-01-01", "=", "<<", "-", "?", "!", "&", "*", "|", ">", "%", "@", "`", ""]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


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


def test_a_list_in_json_is_its_items() -> None:
    assert parse_documents('{"kind": "List", "items": [{"a": 1}, {"b": 2}]}', "x") == [{"a": 1}, {"b": 2}]
