"""A record is read strictly, its version first, by a model that takes what the JSON Schema takes.

test_hostile_records.py has more of what is refused.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flagbench.records.model import Record
from flagbench.records.read import MAX_BYTES, MAX_DEPTH, MAX_VALUES, RecordError, read_record
from flagbench.schema import violations
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import FULL_RECORD, MANIFESTS, places

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


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b" " * (MAX_BYTES + 1), "bytes"),
        (b"[" + b"0," * MAX_VALUES + b"0]", "values"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "levels"),
        (b'{"a": 1, "a": 2}', "'a'"),
        (b'{"a": -Infinity}', "-Infinity"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_that_is_not_strict_or_beyond_a_limit(content: bytes, why: str) -> None:
    assert why in refused(content).message


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


_values = st.one_of(
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(-1e6, 1e6),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from([[], {}, [1], [1, 2.5], [1, 2, 3], {"a": 1}, {"a": "x"}, "ok", "job", "tiny", "a\n", "a" * 200]),
)


def accepted(raw: dict[str, Any]) -> bool:
    """Whether the reader takes a document."""
    try:
        read_record(json.dumps(raw).encode())
    except RecordError:
        return False
    return True


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(place=st.sampled_from(places(FULL_RECORD)[1:]), value=_values, remove=st.booleans())
@example(place=("case",), value="a\n", remove=False)
@example(place=("created_at",), value="2026-01-01T00:00:00Z\n", remove=False)
def test_the_model_and_the_schema_agree(place: tuple[Any, ...], value: Any, remove: bool) -> None:
    # Not compared: null for an absent field, which only one of them takes, and what a pattern cannot say of a date.
    raw = copy.deepcopy(FULL_RECORD)
    holder = raw
    for step in place[:-1]:
        holder = holder[step]
    if remove:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    assert accepted(raw) == (violations("record", raw) == [])


def names(schema: Any) -> set[str]:
    """Every property that a schema names, at any depth."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    own = set(schema.get("properties", {})) if isinstance(schema, dict) else set()
    return own.union(*map(names, inner))


def test_the_model_has_every_field_of_the_schema() -> None:
    generated = msgspec.json.schema(Record)
    assert names(json.loads((MANIFESTS / "schema" / "record-v1.json").read_text())) - names(generated) == {"schema"}
