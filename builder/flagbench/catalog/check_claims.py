"""What a schema cannot say of claims: that each fits its case, its stack and its sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from flagbench.catalog.checks import check_file_name, check_unique, refuses
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
        name = doc.data["case"]
        doc.require_known(("case",), "case", name, case_names)
        if ("source" in doc.data) == ("sources" in doc.data):
            doc.problem((), "needs either `source`, one for all claims, or `sources`, one of which each claim names")
        for index, claim in enumerate(doc.data["claims"]):
            here: FieldPath = ("claims", index)
            _check_id(doc, claim["id"], (*here, "id"), first_use)
            _check_sources(doc, claim, here)
            _check_stack(doc, claim, here, cases.get(name), stacks, stack_names)
            if name in cases:
                _check_run(doc, claim["run"], cases[name].data, (*here, "run"))
                _check_conditions(doc, claim["conditions"], cases[name].data, (*here, "conditions"))
                _check_metrics(doc, claim["metrics"], cases[name].data, (*here, "metrics"))


def _check_id(doc: Document, claim_id: str, where: FieldPath, first_use: dict[str, str]) -> None:
    if not claim_id.startswith(f"{doc.data['case']}/"):
        doc.problem(where, f"'{claim_id}' must start with '{doc.data['case']}/'")
    if claim_id in first_use:
        doc.problem(where, f"'{claim_id}' is already the id of {first_use[claim_id]}")
    first_use.setdefault(claim_id, f"{doc.shown}:{doc.line(where)}")


def _check_sources(doc: Document, claim: Any, here: FieldPath) -> None:
    """That a claim and its values name entries of `sources`, and a claim of a file with one `source` names none."""
    known = doc.data.get("sources", {})
    if "sources" in doc.data and "source" not in claim:
        doc.problem((*here, "source"), f"missing; known: {', '.join(sorted(known)) or 'none'}")
    metrics = [((*here, "metrics", index), metric) for index, metric in enumerate(claim["metrics"])]
    for where, entry in [(here, claim), *metrics]:
        if "source" in entry:
            doc.require_known((*where, "source"), "entry of `sources`", entry["source"], known)


def _check_stack(
    doc: Document,
    claim: Any,
    here: FieldPath,
    case: Document | None,
    stacks: Mapping[str, Document],
    stack_names: Collection[str],
) -> None:
    """That a claim has either a stack that runs its case, or the reason why it has no stack."""
    stack = claim["stack"]
    if stack is None:
        if "no_stack" not in claim:
            doc.problem((*here, "no_stack"), "missing: a claim without a stack says why there is none")
    elif "no_stack" in claim:
        doc.problem((*here, "no_stack"), f"there is a stack, '{stack}'; remove one of the two")
    elif (
        doc.require_known((*here, "stack"), "stack", stack, stack_names)
        and case is not None
        and stack in stacks
        and refuses(case, stacks[stack])
    ):
        doc.problem((*here, "stack"), f"the stack '{stack}' does not run '{case.data['name']}'")


def _check_run(doc: Document, run: Any, case: Any, here: FieldPath) -> None:
    for key, allowed in (("precision", case["precisions"]), ("division", case["divisions"])):
        if run[key] not in allowed:
            doc.problem((*here, key), f"'{run[key]}' is not allowed; {case['name']} has {', '.join(allowed)}")
    for name, value in run["set"].items():
        where = (*here, "set", name)
        if doc.require_known(where, f"settable of {case['name']}", name, case["settable"]):
            fault = setting_fault(case["settable"][name], value)
            if fault is not None:
                doc.problem(where, fault)


def _check_metrics(doc: Document, published: Any, case: Any, here: FieldPath) -> None:
    metrics = {metric["name"]: metric for metric in case["metrics"]}
    check_unique(doc, [metric["name"] for metric in published], here, "name", "metric")
    for index, metric in enumerate(published):
        where = (*here, index)
        if not doc.require_known((*where, "name"), f"metric of {case['name']}", metric["name"], metrics):
            continue
        for key in ("unit", "scope"):
            expected = metrics[metric["name"]][key]
            if metric[key] != expected:
                text = f"'{metric[key]}' is not allowed; allowed: {expected}, as {case['name']} declares"
                doc.problem((*where, key), f"{text} {metric['name']}")
        if "printed" in metric and printed_number(metric["printed"]) != Decimal(repr(metric["value"])):
            doc.problem((*where, "printed"), f"'{metric['printed']}' is not the value {metric['value']}")


def _check_conditions(doc: Document, conditions: Any, case: Any, here: FieldPath) -> None:
    expected = {name for group in case["condition_groups"].values() for name in group}
    for name in conditions:
        doc.require_known((*here, name), f"condition of {case['name']}", name, expected)
    missing = sorted(expected - set(conditions))
    if missing:
        doc.problem(here, f"missing: {', '.join(missing)} (write 'not published' where the source is silent)")
