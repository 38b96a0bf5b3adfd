"""Checks and verdicts as JUnit XML, which CI systems show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from flagbench.console.terminal import visible
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict.result import MetricResult
from flagbench_core.exit_codes import ExitCode

Kind = Literal["failure", "error", "skipped"]


class JUnitCase(NamedTuple):
    """One check: how it ended, and what it measured. `kind` is None where it passed."""

    name: str
    output: str
    kind: Kind | None
    reason: str


def junit_xml(suite: str, cases: Sequence[JUnitCase], seconds: float = 0.0) -> bytes:
    """A suite of checks. A check that could not be decided is an error, not a failure."""
    counts = Counter(case.kind for case in cases)
    attributes = {
        "name": suite,
        "tests": str(len(cases)),
        "time": f"{seconds:.1f}",
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "skipped": str(counts["skipped"]),
    }
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(root, "testsuite", attributes)
    for case in cases:
        test = ElementTree.SubElement(element, "testcase", {"classname": suite, "name": visible(case.name)})
        if case.kind is not None:
            ElementTree.SubElement(test, case.kind, {"message": visible(case.reason)})
        ElementTree.SubElement(test, "system-out").text = visible(case.output)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def junit_of_verdict(result: VerifyResult) -> bytes:
    """The verdict, then that of each metric that has one."""
    outcome = result.outcome
    if result.qualifiers:
        outcome += f": {', '.join(result.qualifiers)}"
    cases = [JUnitCase("verdict", outcome, _kind(result.verdict), result.reason)]
    for metric in result.metrics:
        if metric.verdict is not None:
            text = f"{metric.verdict.value}: {_compared_text(metric, result.against.side)}"
            cases.append(JUnitCase(metric.name, text, _kind(metric.verdict), metric.reason))
    return junit_xml(f"flagbench verify {result.against.id}", cases)


def _compared_text(metric: MetricResult, side: str) -> str:
    """`1510 samples/s [1490, 1530]; published: 1943; ratio 0.777 [0.767, 0.788]`."""
    measured = ""
    if metric.measured is not None:
        measured = metric.measured.text(metric.unit)
    return f"{measured}; {side}: {metric.expected.text(metric.unit)}; ratio {metric.ratio}"


def _kind(verdict: Verdict) -> Kind | None:
    if verdict.exit_code is ExitCode.OK:
        return None
    if verdict.exit_code is ExitCode.BELOW:
        return "failure"
    return "error"
