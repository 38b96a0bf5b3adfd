"""JSON on stdout: no character of it can change what a terminal shows of the others."""

from __future__ import annotations

import json

import pytest

from flagbench.console.output import echo_json, echo_json_text

INVISIBLE = "\u202e\u2066\u200b\x7f\x9b\x1b\u2028\U000e0041"
"""Two changes of direction, a space of no width, DEL, two beginnings of an escape sequence, a line break, a tag."""


def test_what_is_invisible_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    document = {INVISIBLE: ["µ名", INVISIBLE]}
    echo_json(document)
    printed = capsys.readouterr().out
    assert json.loads(printed) == document
    assert "µ名" in printed
    assert printed.replace("\n", "").isprintable()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stored_document_is_escaped_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    stored = '{"host": "a\u202eb"}'
    echo_json_text(stored)
    printed = capsys.readouterr().out.removesuffix("\n")
    assert printed == ('{"host": "a\\u202eb"}' if terminal else stored)
