"""What a schema cannot say of claims: that each fits its case, its stack and its sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from flagbench.catalog.checks import check_file_name, refuses
from flagbench.catalog.documents import Document
from flagbench.catalog.printed import printed_number
from flagbench.catalog.settings import setting_fault
from flagbench.schema import FieldPath


def check_claims(
    docs: Sequence[Document],
    cases: Mapping[str, Document],
    stacks: Mapping[str, Document],
    case_names: Collection[str],
    stack_names: Collection[str],
) -> None:
    """Each claim against its case and its stack.

    `cases` and `stacks` are the valid ones; the names are of all files, so that a faulty case is
    reported once and not again as unknown in every claim.
    """
    first_use: dict[str, str] = {}
    for doc in docs:
        check_file_name(doc, "case")
        if ("source" in doc.data) == ("sources" in doc.data):
            doc.problem((), "needs either `source`, one for all claims, or `sources`, one of which each claim names")
        sources = doc.data.get("sources", {})
        for pattern, kind, known in (
            ("case", "case", case_names),
            ("claims.*.stack", "stack", stack_names),
            ("claims.*.source", "entry of `sources`", sources),
            ("claims.*.metrics.*.source", "entry of `sources`", sources),
        ):
            doc.require_known(pattern, kind, known)
        doc.require_unique("claims.*.id", "claim", first_use)
        case = cases.get(doc.data["case"])
        for index, claim in enumerate(doc.data["claims"]):
            here: FieldPath = ("claims", index)
            if not claim["id"].startswith(f"{doc.data['case']}/"):
                doc.problem((*here, "id"), f"'{claim['id']}' must start with '{doc.data['case']}/'")
            if "sources" in doc.data and "source" not in claim:
                doc.problem((*here, "source"), f"missing; known: {', '.join(sorted(sources)) or 'none'}")
            _check_stack(doc, claim, here, case, stacks.get(claim["stack"]))
            if case is not None:
                _check_values(doc, claim, here, case.data)
        if case is not None:
            _check_names(doc, case.data)


def _check_stack(doc: Document, claim: Any, here: FieldPath, case: Document | None, stack: Document | None) -> None:
    """That a claim has either a stack that runs its case, or the reason why it has no stack."""
    name = claim["stack"]
    if name is None and "no_stack" not in claim:
        doc.problem((*here, "no_stack"), "missing: a claim without a stack says why there is none")
    elif name is not None and "no_stack" in claim:
        doc.problem((*here, "no_stack"), f"there is a stack, '{name}'; remove one of the two")
    elif case is not None and stack is not None and refuses(case, stack):
        doc.problem((*here, "stack"), f"the stack '{name}' does not run '{case.data['name']}'")


def _check_names(doc: Document, case: Any) -> None:
    """That what the claims of a file name is in their case."""
    for pattern, kind, known in (
        ("run.set", "settable", case["settable"]),
        ("conditions", "condition", _conditions(case)),
        ("metrics.*.name", "metric", [metric["name"] for metric in case["metrics"]]),
    ):
        doc.require_known(f"claims.*.{pattern}", f"{kind} of {case['name']}", known)


def _check_values(doc: Document, claim: Any, here: FieldPath, case: Any) -> None:
    """That a run, its settings and its metrics are as the case declares them, and that no condition is missing."""
    for key, allowed in (("precision", case["precisions"]), ("division", case["divisions"])):
        if claim["run"][key] not in allowed:
            text = f"'{claim['run'][key]}' is not allowed; {case['name']} has {', '.join(allowed)}"
            doc.problem((*here, "run", key), text)
    for name, value in claim["run"]["set"].items():
        if name in case["settable"] and (fault := setting_fault(case["settable"][name], value)):
            doc.problem((*here, "run", "set", name), fault)
    if missing := sorted(_conditions(case) - set(claim["conditions"])):
        text = f"missing: {', '.join(missing)} (write 'not published' where the source is silent)"
        doc.problem((*here, "conditions"), text)
    doc.require_unique(f"claims.{here[1]}.metrics.*.name", "metric")
    declared = {metric["name"]: metric for metric in case["metrics"]}
    for index, metric in enumerate(claim["metrics"]):
        where, name = (*here, "metrics", index), metric["name"]
        for key in ("unit", "scope"):
            if name in declared and metric[key] != (expected := declared[name][key]):
                text = f"'{metric[key]}' is not allowed; allowed: {expected}, as {case['name']} declares {name}"
                doc.problem((*where, key), text)
        if "printed" in metric and printed_number(metric["printed"]) != Decimal(repr(metric["value"])):
            doc.problem((*where, "printed"), f"'{metric['printed']}' is not the value {metric['value']}")


def _conditions(case: Any) -> set[str]:
    return {name for group in case["condition_groups"].values() for name in group}
