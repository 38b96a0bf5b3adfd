"""Tables fit a terminal's width and are whole elsewhere; an id is never wrapped or cut."""

from __future__ import annotations

import io
import os
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from catalogs import CATALOG
from flagbench.console.page import Lines, Table, render
from flagbench.records.read import read_record
from flagbench.records.store import Store
from flagbench.report import comparison_table
from flagbench.verdict import compare_records
from unit.host.conftest import REPLAY, Flagbench

CASE = CATALOG.cases["distilbert"]

REPLAYS = REPLAY.parent
ID = "20260101T120000Z-distilbert-a100-cuda11.6-1x8-0123abcd"


class Terminal(io.StringIO):
    """A stream that says it is a terminal, of UTF-8."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(*[st.text("ab \u4e2d\u0301[", max_size=60)] * 3), max_size=4), st.integers(1, 200))
def test_a_row_fits_wherever_its_id_does(rows: list[tuple[str, str, str]], width: int) -> None:
    table = Table(
        ("record", "what", "why", "how much"),
        tuple((ID, *row) for row in rows),
        wrap=("why",),
        drop=("how much", "what", "why"),
    )
    with mock.patch.dict(os.environ, COLUMNS=str(width)):
        lines = render([table], Terminal()).splitlines()
    shown = [line for line in lines[1:] if not line.startswith("(left out: ")]
    assert sum(line.startswith(ID) for line in shown) == len(rows)
    assert all(cell_len(line) <= max(width, len(ID)) for line in lines[:1] + shown)
    whole = render([table], io.StringIO())
    assert render([table], Terminal(), wide=True) == whole
    assert all(cell.strip() in whole for row in rows for cell in row if "\u0301" not in cell)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text("ab-\u4e2d ", max_size=60), min_size=1, max_size=4), st.integers(40, 200))
def test_what_decides_is_in_the_row_or_under_it(texts: list[str], width: int) -> None:
    rows = [(f"row-{number}", text, "8") for number, text in enumerate(texts)]
    table = Table(("row", "differs", "gpus"), rows, below=("differs",))
    with mock.patch.dict(os.environ, COLUMNS=str(width)):
        lines = render([table], Terminal()).splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("row-")]
    assert len(starts) == len(rows)
    for (_, text, _), begin, end in zip(rows, starts, [*starts[1:], len(lines)], strict=True):
        assert set(text.split()) - {"-"} <= set(" ".join(lines[begin:end]).split())  # every word, and none in two


def test_a_column_that_wraps_keeps_every_word_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = Table(("check", "detail"), [("docker", "images are built with /usr/bin/docker here")], wrap=("detail",))
    assert render([table], Terminal()).splitlines() == [
        "check   detail",
        "docker  images are built with",
        "        /usr/bin/docker here",
    ]


def test_a_cell_of_megabytes_is_not_padded_to_in_every_row() -> None:
    table = Table(("a", "b"), tuple(("x" * size, "y") for size in (1_000_000, *[1] * 1000)))
    assert len(render([table], io.StringIO())) < 2_000_000


def test_lines_wrap_between_words_and_columns_without_text_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    sentence = "a sentence, and then what to type next: `flagbench reproduce glm/a100-1x8-fp32`"
    table = Table(("row", "ratio", "why", "note"), [("r" * 15, "-", "w" * 15, "n")], drop=("note",))
    assert render([Lines((sentence,)), table], Terminal()).splitlines() == [
        "a sentence, and then what to type next:",
        "`flagbench reproduce glm/a100-1x8-fp32`",
        "",
        "row              why              note",
        "rrrrrrrrrrrrrrr  wwwwwwwwwwwwwww  n",
    ]
    assert sentence in render([Lines((sentence,))], Terminal(), wide=True)


@pytest.mark.parametrize("width", [10, 100, 1000])
@pytest.mark.parametrize("command", ["list", f"verify {ID}", f"compare last {ID}"])
def test_a_page_has_its_ids_whole_and_no_boxes_at_any_width(
    store: Store, monkeypatch: pytest.MonkeyPatch, flagbench: Flagbench, command: str, width: int
) -> None:
    other = (REPLAYS / "a100-1x8-80gb.json").read_bytes()
    store.put(
        other.replace(b'"fixture-a100-1x8-80gb"', b'"%b"' % ID.encode()).replace(b"2026-01-01T", b"2025-01-01T")
    )
    store.put(REPLAY.read_bytes())
    piped = flagbench(command).out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    text = flagbench(command).out
    rows = [line for line in text.splitlines() if "--wide shows everything" not in line]
    begun = iter([row.split()[:1] for row in rows])  # lines of text may have wrapped
    assert all(line.split()[:1] in begun for line in piped.splitlines())
    if "list" in command or "ls" in command:
        assert all(len(row) <= max(width, len(row.split()[0])) for row in rows if row)
    assert not set(text) & set("\u2500\u2501\u2502\u2503\u2578\x1b")
    assert "verify" in command or flagbench(f"{command} --wide").out == piped
    assert text == piped or width < 1000


@pytest.mark.parametrize(
    ("term", "no_color", "coloured"),
    [("xterm", None, True), ("dumb", None, False), ("xterm", "1", False), ("xterm", "", True)],
)
def test_colour_is_for_terminals_that_have_it(
    monkeypatch: pytest.MonkeyPatch, term: str, no_color: str | None, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    blocks = [Lines(("well",), "bold green")]
    assert ("\x1b[" in render(blocks, Terminal())) is coloured
    assert "\x1b[" not in render(blocks, io.StringIO())


_leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_values = st.recursive(
    _leaf | st.text("ab1 ", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.none() | st.dictionaries(st.text("ab", min_size=1), _values, max_size=3), _values, _values)
def test_a_comparison_never_prints_python(config: Any, one: Any, other: Any) -> None:
    base = read_record(REPLAY)
    for left, right in ((config, {"x": one}), ({"x": one}, {"x": other}), ({"x": {"y": one}}, {"x": other})):
        comparison = compare_records(replace(base, config=left), replace(base, config=right), CASE)
        table = comparison_table(comparison, None, stream=io.StringIO())
        start = table.find("setting that differs")
        settings_shown = table[start : table.index("\n\nmetric")] if start >= 0 else ""
        assert not {"{", "}", "[", "]", "'"} & set(settings_shown)
        assert not {"None", "True", "False", "object"} & set(settings_shown.replace(",", " ").split())
        # Every row tells two different values apart.
        for line in settings_shown.splitlines()[1:]:
            assert len(line.split()) >= 3
        assert bool(comparison.config) == bool(settings_shown)
