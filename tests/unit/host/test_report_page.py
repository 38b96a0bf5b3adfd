"""Tables are cut to a terminal's width and are whole elsewhere; an id is never wrapped or cut."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from flagbench.catalog.load import load_catalog
from flagbench.page import Lines, Table, render
from flagbench.record.read import read_record
from flagbench.report import comparison_table, verdict_table
from flagbench.stores import Store
from flagbench.verify import compare_records, verify_claim

REPLAYS = Path(__file__).parent / "verify" / "replays"
MANIFESTS = Path(__file__).parents[3] / "manifests"
ID = "20260101T120000Z-distilbert-a100-cuda11.6-1x8-0123abcd"


class Terminal(io.StringIO):
    """A stream that says it is a terminal, of UTF-8."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(*[st.text("ab \u4e2d\u0301[", max_size=60)] * 3), max_size=4),
    st.integers(1, 200),
)
def test_a_row_fits_wherever_its_id_does(rows: list[tuple[str, str, str]], width: int) -> None:
    table = Table(
        ("record", "what", "why", "how much"),
        tuple((ID, *row) for row in rows),
        cut=("why",),
        drop=("how much", "what", "why"),
    )
    with mock.patch.dict(os.environ, COLUMNS=str(width)):
        lines = render([table], Terminal()).splitlines()
    assert [line[: len(ID)] for line in lines[1 : len(rows) + 1]] == [ID] * len(rows)
    assert all(cell_len(line) <= max(width, len(ID)) for line in lines[: len(rows) + 1])
    whole = render([table], io.StringIO())
    assert render([table], Terminal(), wide=True) == whole
    assert all(cell.strip() in whole for row in rows for cell in row if "\u0301" not in cell)


def test_a_cell_of_megabytes_is_not_padded_to_in_every_row() -> None:
    table = Table(("a", "b"), tuple(("x" * size, "y") for size in (1_000_000, *[1] * 1000)))
    assert len(render([table], io.StringIO())) < 2_000_000


@pytest.fixture(scope="module")
def shown() -> dict[str, Callable[..., str]]:
    """What verify, run and compare show of a record with a long id."""
    base = read_record(REPLAYS / "a100-1x8.json")
    other = read_record(
        (REPLAYS / "a100-1x8-80gb.json").read_bytes().replace(b'"fixture-a100-1x8-80gb"', b'"%b"' % ID.encode())
    )
    catalog = load_catalog(MANIFESTS)
    result = verify_claim([other], catalog.claims["distilbert/a100-1x8-fp32"], catalog.cases["distilbert"])
    compared = compare_records(base, other)
    return {
        "verify": lambda **options: verdict_table([other], result, **options),
        "compare": lambda **options: comparison_table(compared, **options),
    }


@pytest.mark.parametrize("width", [20, 60, 80, 1000])
@pytest.mark.parametrize("name", ["verify", "compare"])
def test_no_table_has_boxes_or_breaks_an_id(
    shown: dict[str, Callable[..., str]], monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    text, piped = shown[name](stream=Terminal()), shown[name](stream=io.StringIO())
    assert any(ID in line for line in text.splitlines())
    assert not set(text) & set("\u2500\u2501\u2502\u2503\u2578")
    assert shown[name](stream=Terminal(), wide=True) == piped
    assert text == piped or width < 1000


def test_listed_ids_are_whole_at_any_width(
    store: Store, make_record: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, flagbench: Callable[..., Any]
) -> None:
    store.put(make_record(record_id=ID))
    piped = flagbench("results ls").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    for width in (10, 80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        row = flagbench("results ls").out.splitlines()[1]
        assert row.split()[0] == ID
        assert len(row) <= max(width, len(ID))
        assert flagbench("results ls --wide").out == piped


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
    base = read_record(REPLAYS / "a100-1x8.json")
    for left, right in ((config, {"x": one}), ({"x": one}, {"x": other}), ({"x": {"y": one}}, {"x": other})):
        comparison = compare_records(replace(base, config=left), replace(base, config=right))
        table = comparison_table(comparison, stream=io.StringIO())
        start = table.find("setting that differs")
        settings_shown = table[start : table.index("\n\nmetric")] if start >= 0 else ""
        assert not {"{", "}", "[", "]", "'"} & set(settings_shown)
        assert not {"None", "True", "False", "object"} & set(settings_shown.replace(",", " ").split())
        # Every row tells two different values apart.
        for line in settings_shown.splitlines()[1:]:
            assert len(line.split()) >= 3
        assert bool(comparison.config) == bool(settings_shown)
