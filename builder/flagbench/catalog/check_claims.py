"""What a schema cannot say of claims: that each fits its case, its stack and its sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from flagbench.catalog.checks import check_file_name, check_unique, unknown
from flagbench.catalog.printed import printed_number
from flagbench.catalog.settings import setting_fault
from flagbench.catalog.yamlnodes import Document
from flagbench.schema import FieldPath


def check_claims(
    docs: Sequence[Document],
    cases: Mapping[str, Document],
    stacks: Mapping[str, Document],
    case_names: Collection[str],
    stack_names: Collection[str],
) -> None:
    """Each claim against its case and its stack.

    `cases` and `stacks` are the sound ones; the names are of all files, so that a faulty case is
    reported once and not again as unknown in every claim.
    """
    first_use: dict[str, str] = {}
    for doc in docs:
        check_file_name(doc, "case")
        name = doc.data["case"]
        if name not in case_names:
            doc.problem(("case",), unknown("case", name, case_names))
        if ("source" in doc.data) == ("sources" in doc.data):
            doc.problem((), "needs either `source`, one for all claims, or `sources`, one of which each claim names")
        for index, claim in enumerate(doc.data["claims"]):
            here: FieldPath = ("claims", index)
            _check_claim_id(doc, claim["id"], (*here, "id"), first_use)
            _check_sources(doc, claim, here)
            if claim["stack"] is None:
                if "no_stack" not in claim:
                    doc.problem((*here, "no_stack"), "missing: a claim without a stack says why there is none")
            elif "no_stack" in claim:
                doc.problem((*here, "no_stack"), f"there is a stack, '{claim['stack']}'; remove one of the two")
            elif claim["stack"] not in stack_names:
                doc.problem((*here, "stack"), unknown("stack", claim["stack"], stack_names))
            elif _refused(name, claim["stack"], cases, stacks):
                doc.problem((*here, "stack"), f"the stack '{claim['stack']}' does not run '{name}'")
            if name in cases:
                _check_against_case(doc, claim, cases[name].data, here)


def _check_sources(doc: Document, claim: Any, here: FieldPath) -> None:
    """That a claim and its values name entries of `sources`, and a claim of a file with one `source` names none."""
    named = [((*here, "metrics", index), metric) for index, metric in enumerate(claim["metrics"])]
    known = doc.data.get("sources", {})
    if "sources" in doc.data and "source" not in claim:
        doc.problem((*here, "source"), f"missing; known: {', '.join(sorted(known)) or 'none'}")
    for where, entry in [(here, claim), *named]:
        if "source" in entry and entry["source"] not in known:
            doc.problem((*where, "source"), unknown("entry of `sources`", entry["source"], known))


def _refused(case: str, stack: str, cases: Mapping[str, Document], stacks: Mapping[str, Document]) -> bool:
    by_stack = stack in stacks and case in stacks[stack].data["does_not_run"]
    return by_stack or (case in cases and stack in cases[case].data["does_not_run"])


def _check_claim_id(doc: Document, claim_id: str, where: FieldPath, first_use: dict[str, str]) -> None:
    if not claim_id.startswith(f"{doc.data['case']}/"):
        doc.problem(where, f"'{claim_id}' must start with '{doc.data['case']}/'")
    place = f"{doc.shown}:{doc.line(where)}"
    first = first_use.setdefault(claim_id, place)
    if first != place:
        doc.problem(where, f"'{claim_id}' is already the id of {first}")


def _check_against_case(doc: Document, claim: Any, case: Any, here: FieldPath) -> None:
    run = claim["run"]
    for key, allowed in (("precision", case["precisions"]), ("division", case["divisions"])):
        if run[key] not in allowed:
            problem = f"'{run[key]}' is not allowed; {case['name']} has {', '.join(allowed)}"
            doc.problem((*here, "run", key), problem)
    for name, value in run["set"].items():
        where = (*here, "run", "set", name)
        if name not in case["settable"]:
            doc.problem(where, unknown(f"settable of {case['name']}", name, case["settable"]))
        else:
            fault = setting_fault(case["settable"][name], value)
            if fault is not None:
                doc.problem(where, fault)
    _check_conditions(doc, claim["conditions"], case, (*here, "conditions"))
    _check_metrics(doc, claim["metrics"], case, (*here, "metrics"))


def _check_metrics(doc: Document, published: Any, case: Any, here: FieldPath) -> None:
    metrics = {metric["name"]: metric for metric in case["metrics"]}
    check_unique(doc, [metric["name"] for metric in published], here, "name", "metric")
    for index, metric in enumerate(published):
        where = (*here, index)
        if metric["name"] not in metrics:
            kind = f"metric of {case['name']}"
            doc.problem((*where, "name"), unknown(kind, metric["name"], metrics))
            continue
        for key in ("unit", "scope"):
            expected = metrics[metric["name"]][key]
            if metric[key] != expected:
                text = f"'{metric[key]}' is not allowed; allowed: {expected}, as {case['name']} declares"
                doc.problem((*where, key), f"{text} {metric['name']}")
        if "printed" in metric and printed_number(metric["printed"]) != Decimal(repr(metric["value"])):
            doc.problem((*where, "printed"), f"'{metric['printed']}' is not the value {metric['value']}")


def _check_conditions(doc: Document, conditions: Any, case: Any, path: FieldPath) -> None:
    expected = {name for group in case["condition_groups"].values() for name in group}
    for name in conditions:
        if name not in expected:
            doc.problem((*path, name), unknown(f"condition of {case['name']}", name, expected))
    missing = sorted(expected - set(conditions))
    if missing:
        doc.problem(path, f"missing: {', '.join(missing)} (write 'not published' where the source is silent)")
