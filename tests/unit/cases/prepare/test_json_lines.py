"""Texts in JSON lines: which lines are read, skipped and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench_cases.prepare import json_lines
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


def read(path: Path, content: bytes, required: bool = False) -> list[str]:
    path.write_bytes(content)
    return [text for _, _, text in json_lines.texts(str(path), required)]


def test_texts_and_the_bytes_read(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n  \n{"text": "\\ud83d\\ude00"}')
    assert list(json_lines.texts(str(path), required=True)) == [(14, 42, "a"), (42, 42, "\U0001f600")]


def test_lines_without_a_text_are_skipped_or_refused(tmp_path: Path) -> None:
    for line in (b'{"other": 1}', b"[]", b"3", b'"text"', b"null", b'{"text": null}'):
        content = b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n'
        assert read(tmp_path / "texts", content) == ["a", "b"]
        with refuses(DataError, tmp_path / "texts", ":2 "):
            read(tmp_path / "texts", content, required=True)


BAD = [
    b'{"text": "a"',
    b"[" * 100000,
    b'{"text": 3}',
    b'{"text": "\\ud800"}',
    b'{"text": "a\tb"}',
    b'{"text": "\xfc"}',
]


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: bytes) -> None:
    with refuses(DataError, tmp_path / "texts", ":2 "):
        read(tmp_path / "texts", b'{"text": "a"}\n' + line + b"\n")
