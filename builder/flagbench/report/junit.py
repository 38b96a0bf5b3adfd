"""Checks and verdicts as JUnit XML, which CI systems show: `--junit` of `verify` and `accept` writes it."""

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
"""How a check ended that did not pass: the name of its XML element.

`error` is a check that could not be decided, and `skipped` one that cannot be made on this machine.
"""


class JUnitCase(NamedTuple):
    """One check in a suite."""

    name: str
    output: str
    """What was measured, and how that was judged."""
    kind: Kind | None
    """None for a check that passed."""
    reason: str
    """Why it did not pass."""


def junit_xml(suite: str, cases: Sequence[JUnitCase], seconds: float = 0.0) -> bytes:
    """Return a suite of checks as XML; `seconds` is how long all of them took."""
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
    """Return a verdict as a suite of checks: the verdict itself, then that of each metric that has one.

    A metric without a verdict, such as one that a run did not measure, is not a check, so it is not even skipped.
    """
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
    """Return the numbers of a metric: `1510 samples/s [1490, 1530]; published: 1943; ratio 0.777 [0.767, 0.788]`.

    `side` says where the second number is from: `published` or `in the baseline`.
    """
    measured = ""  # not in practice: a metric that was not measured has no verdict, and so is not shown
    if metric.measured is not None:
        measured = metric.measured.text(metric.unit)
    return f"{measured}; {side}: {metric.expected.text(metric.unit)}; ratio {metric.ratio}"


def _kind(verdict: Verdict) -> Kind | None:
    """Return how a verdict is shown: as a check that passed, failed, or could not be decided.

    Every verdict that is neither good nor BELOW or SLOWER is an error on purpose: a CI job must not pass without a
    comparison, and nothing says that the speed is at fault.
    """
    if verdict.exit_code is ExitCode.OK:
        return None
    if verdict.exit_code is ExitCode.BELOW:
        return "failure"
    return "error"
