"""Checks and verdicts as JUnit XML, which CI systems show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args
from xml.etree import ElementTree

from flagbench.console.terminal import visible
from flagbench.verdict import Verdict, VerifyResult
from flagbench_core.exit_codes import ExitCode

Kind = Literal["failure", "error", "skipped"]


class JUnitCase(NamedTuple):
    """One check: how it ended, and what it measured. `kind` is None where it passed."""

    name: str
    output: str
    kind: Kind | None
    reason: str


def junit_xml(suite: str, cases: Sequence[JUnitCase], seconds: float = 0.0) -> bytes:
    """A suite of checks. What could not be decided is an error, as it is no failure of what is tested."""
    counts = {kind: sum(case.kind == kind for case in cases) for kind in get_args(Kind)}
    attributes = {"name": suite, "tests": str(len(cases)), "time": f"{seconds:.1f}"}
    attributes.update(failures=str(counts["failure"]), errors=str(counts["error"]), skipped=str(counts["skipped"]))
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(root, "testsuite", attributes)
    for case in cases:
        found = ElementTree.SubElement(element, "testcase", {"classname": suite, "name": visible(case.name)})
        if case.kind is not None:
            ElementTree.SubElement(found, case.kind, {"message": visible(case.reason)})
        ElementTree.SubElement(found, "system-out").text = visible(case.output)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def junit_of_verdict(result: VerifyResult) -> bytes:
    """The verdict of the whole, then of each metric that has one."""
    told = ", ".join(result.qualifiers)
    told = f"{result.outcome}: {told}" if told else result.outcome
    cases = [JUnitCase("verdict", told, _kind(result.verdict), result.reason)]
    for metric in result.metrics:
        if metric.verdict is not None:
            measured = "" if metric.measured is None else metric.measured.text(metric.unit)
            told = f"{measured}; {result.against.side}: {metric.expected.text(metric.unit)}; ratio {metric.ratio}"
            told = f"{metric.verdict.value}: {told}"
            cases.append(JUnitCase(metric.name, told, _kind(metric.verdict), metric.reason))
    return junit_xml(f"flagbench verify {result.against.id}", cases)


def _kind(verdict: Verdict) -> Kind | None:
    if verdict.exit_code is ExitCode.OK:
        return None
    return "failure" if verdict.exit_code is ExitCode.BELOW else "error"
