"""The typed record takes what the JSON Schema takes and refuses what it refuses."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flagbench.record.model import Record
from flagbench.record.read import RecordError, read_record
from flagbench.schema import validator, violations

from .conftest import FULL_RECORD, places

_values = st.one_of(
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(-1e6, 1e6).filter(lambda number: not number.is_integer()),
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


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.sampled_from(places(FULL_RECORD)[1:]), value=_values, remove=st.booleans())
@example(place=("case",), value="a\n", remove=False)
@example(place=("created_at",), value="2026-01-01T00:00:00Z\n", remove=False)
def test_the_model_and_the_schema_agree(place: tuple[Any, ...], value: Any, remove: bool) -> None:
    # Not compared: whole floats as integers and null for an absent field, which only one of them takes, and what a
    # pattern cannot say of a date.
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
    assert names(validator("record").schema) - names(generated) == {"schema"}
