"""A record is read strictly, its version first.

test_hostile_records.py has more of what is refused.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.records.read import RecordError, read_record
from flagbench_core.exit_codes import ExitCode

MakeRecord = Callable[..., bytes]


def refused(source: Path | bytes) -> RecordError:
    with pytest.raises(RecordError) as caught:
        read_record(source)
    assert caught.value.code is ExitCode.DATA
    return caught.value


def test_a_record_becomes_typed_data(make_record: MakeRecord, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(make_record())
    record = read_record(path)
    p_core = record.metric("p_core")
    assert (p_core.value, p_core.ci95, p_core.n) == (321.5, (318.0, 325.0), 50)
    assert record.status.state == "ok"
    assert record.checks[0].name == "loss_finite"
    assert record.conditions["driver"] is None


def test_unknown_fields_are_ignored_and_kept(make_record: MakeRecord) -> None:
    status = {"state": "ok", "phase": "done", "reason": None, "exit_code": 0, "mood": "good"}
    record = read_record(make_record(weather="fine", status=status, raw=5))
    assert (record.raw["weather"], record.raw["raw"]) == ("fine", 5)


def test_a_failed_run_without_a_measurement_is_a_record(make_record: MakeRecord) -> None:
    status = {"state": "failed", "phase": "data", "reason": "no data", "remedy": "add some", "exit_code": 3}
    nothing = dict.fromkeys(("flops", "work", "quality", "telemetry", "window"))
    record = read_record(make_record(metrics=[], ranks=[], status=status, **nothing))
    assert (record.checks, record.metrics, record.status.remedy) == ((), (), "add some")


def test_another_version_is_named_before_anything_else() -> None:
    assert "record/v2" in refused(b'{"schema": "record/v2", "all": "new"}').message
    assert "record/v1" in refused(b'{"schema": "case/v1"}').message


def test_a_bundle_is_no_record_and_says_what_checks_it() -> None:
    assert "bundle verify" in str(refused(gzip.compress(b"{}")).remedy)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"division": "quick"}, "division"),
        ({"record_id": "../../etc/passwd"}, "record_id"),
        ({"created_at": "2026-02-31T00:00:00Z"}, "created_at"),
        ({"flops": {"formula": "f", "useful": 1}}, "executed"),
        ({"conditions": {"devices": [1]}}, "conditions"),
        ({"metrics": [{"name": "p_core", "value": None, "unit": "s", "scope": "job"}]}, "metrics[0].value"),
        ({"status": {"state": "ok", "phase": "done", "reason": None, "exit_code": -1}}, "status.exit_code"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(
    tmp_path: Path, make_record: MakeRecord, changes: Any, field: str
) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(make_record(**changes))
    message = refused(path).message
    assert field in message
    assert str(path) in message


def test_a_refusal_is_one_line_whatever_the_record_holds(make_record: MakeRecord) -> None:
    twice = b'{"a\\nREPRODUCED: all good": 1, "a\\nREPRODUCED: all good": 2}'
    for content in (twice, make_record(stack="\x1b[2J"), make_record(status={"\x1b[2J": 1})):
        assert refused(content).message.isprintable()
