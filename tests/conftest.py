"""What all tests share: the folder of the tests on the path, and the schema of a record."""

import json
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture(scope="session")
def record_schema():
    """manifests/schema/record-v1.json."""
    with open(os.path.join(ROOT, "manifests", "schema", "record-v1.json"), encoding="utf-8") as file:
        return json.load(file)
