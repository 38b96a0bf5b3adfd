"""The JSON Schemas in manifests/schema follow from the types of the documents."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from flagbench.records.model import Record
from flagbench.schema import violations
from tools.generated.schemas import schema_files
from unit.host.conftest import FULL_RECORD, MANIFESTS

SCHEMAS: dict[str, Any] = {name: json.loads(text) for name, text in schema_files().items()}
FOLDERS = {"cases": "case-v1.json", "stacks": "stack-v1.json", "claims": "claims-v1.json"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_valid_and_committed(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert json.loads((MANIFESTS / "schema" / name).read_text(encoding="utf-8")) == SCHEMAS[name]


@pytest.mark.parametrize("folder", FOLDERS)
def test_another_validator_takes_the_manifests(folder: str) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS[FOLDERS[folder]])
    for path in (MANIFESTS / folder).glob("*.yaml"):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        validator.validate(document)
        assert not validator.is_valid({**document, "unknown": 1})


def test_records_may_have_unknown_fields() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS["record-v1.json"])
    validator.validate({**FULL_RECORD, "unknown": 1, "raw": 5})
    for change in ({"case": "a\nb"}, {"metrics": [{"name": "p_core", "value": None, "unit": "s", "scope": "job"}]}):
        assert not validator.is_valid({**FULL_RECORD, **change})


def test_docstrings_of_fields_are_descriptions() -> None:
    build = SCHEMAS["stack-v1.json"]["$defs"]["StackBuild"]["properties"]
    assert build["env"]["description"] == "The environment variables of the image."


def test_a_whole_number_with_a_point_is_no_integer() -> None:
    work = {**FULL_RECORD["status"], "exit_code": 0.0}
    assert [path for path, _ in violations(Record, {**FULL_RECORD, "status": work})] == [("status", "exit_code")]
