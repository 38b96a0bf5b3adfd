"""JUnit XML of a verdict."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.records.read import read_record
from flagbench.report.junit import junit_of_verdict
from flagbench.verdict import Verdict, verify_baseline
from unit.host.verdict.conftest import ROWS

CONTENT = (ROWS / "run-roofs-2.json").read_bytes()


@pytest.mark.parametrize(
    ("verdict", "kinds"),
    [
        (Verdict.SAME, []),
        (Verdict.SLOWER, ["failure"]),
        (Verdict.BELOW, ["failure"]),
        (Verdict.INCONCLUSIVE, ["error"]),
        (Verdict.INVALID, ["error"]),
    ],
)
def test_a_verdict_as_junit(verdict: Verdict, kinds: list[str]) -> None:
    raw = json.loads(CONTENT)
    raw.update(record_id=raw["record_id"][:-8] + "00000000", run_id="another")
    record, baseline = (read_record(content) for content in (json.dumps(raw).encode(), CONTENT))
    result = replace(verify_baseline([record], baseline, CATALOG.cases["roofs"]), verdict=verdict)
    first, *metrics = ElementTree.fromstring(junit_of_verdict(result)).findall(".//testcase")
    assert [each.tag for each in first if each.tag != "system-out"] == kinds
    assert len(metrics) == sum(metric.verdict is not None for metric in result.metrics) > 0
