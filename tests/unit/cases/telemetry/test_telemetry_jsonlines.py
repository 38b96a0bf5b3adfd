"""A file of JSON lines through a full disk and a killed writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench_cases.telemetry.jsonlines import JsonLinesWriter, read_lines

pytestmark = pytest.mark.image


def test_lines_are_in_the_file_when_append_returns(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    with JsonLinesWriter(path) as writer:
        assert writer.append([{"n": 1}, {"n": 2}])
        assert list(read_lines(path)) == [{"n": 1}, {"n": 2}]
        assert writer.append([{"n": 3}])
    assert Path(path).read_text() == '{"n":1}\n{"n":2}\n{"n":3}\n'


def test_a_torn_last_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"n":1}\n{"n":')
    with JsonLinesWriter(str(path)) as writer:
        writer.append([{"n": 3}])
        writer.append([{"n": 4}])
    assert list(read_lines(str(path))) == [{"n": 1}, {"n": 3}, {"n": 4}]
    assert "\n\n" not in path.read_text()
