"""Checks as JUnit XML, which CI systems show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from flagbench.terminal import visible

Kind = Literal["failure", "error"]


class Case(NamedTuple):
    """One check: how it ended, and what it measured. `kind` is None where it passed."""

    name: str
    output: str
    kind: Kind | None
    reason: str


def junit_xml(suite: str, cases: Sequence[Case], seconds: float = 0.0) -> bytes:
    """A suite of checks. What could not be decided is an error, as it is no failure of what is tested."""
    counts = {kind: sum(case.kind == kind for case in cases) for kind in ("failure", "error")}
    attributes = {"name": suite, "tests": str(len(cases)), "time": f"{seconds:.1f}"}
    attributes.update({f"{kind}s": str(count) for kind, count in counts.items()})
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
