"""What a schema cannot say: that the names in one manifest exist in the others, and fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from flagbench.catalog.settings import setting_fault
from flagbench.catalog.yamlnodes import Document
from flagbench.schema import FieldPath, nearest


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """`'x' is no group; did you mean 'y'?`, with all that is known where nothing is near."""
    close = nearest(name, known)
    if close is not None:
        return f"'{name}' is no {kind}; did you mean '{close}'?"
    return f"'{name}' is no {kind}; known: {', '.join(sorted(known)) or 'none'}"


def check_case(doc: Document, stack_names: Collection[str]) -> None:
    """Names inside one case: its file, stacks, groups, metrics, settable paths and tiny's overrides."""
    raw = doc.data
    for stack in raw["does_not_run"]:
        if stack not in stack_names:
            doc.problem(("does_not_run", stack), unknown("stack", stack, stack_names))
    _check_file_name(doc, "name")
    metrics = [metric["name"] for metric in raw["metrics"]]
    _check_unique(doc, metrics, ("metrics",), "name", "metric")
    _check_unique(doc, [quirk["id"] for quirk in raw["quirks"]], ("quirks",), "id", "quirk")
    if raw["gate"] not in metrics:
        doc.problem(("gate",), unknown("metric of this case", raw["gate"], metrics))
    if raw["default_precision"] not in raw["precisions"]:
        named = raw["default_precision"]
        doc.problem(("default_precision",), unknown("precision of this case", named, raw["precisions"]))
    for index, metric in enumerate(raw["metrics"]):
        here: FieldPath = ("metrics", index)
        for group in metric["depends_on"]:
            if group not in raw["condition_groups"]:
                known = raw["condition_groups"]
                doc.problem((*here, "depends_on"), unknown("condition group", group, known))
        held_by = metric.get("held_by")
        if held_by is not None and held_by not in metrics:
            doc.problem((*here, "held_by"), unknown("metric of this case", held_by, metrics))
    _check_condition_groups(doc)
    _check_settable(doc)
    _check_overrides(doc, raw["presets"]["tiny"], raw["presets"]["reference"], ("presets", "tiny"))


def _check_condition_groups(doc: Document) -> None:
    group_of: dict[str, str] = {}
    for group, conditions in doc.data["condition_groups"].items():
        for index, condition in enumerate(conditions):
            first = group_of.setdefault(condition, group)
            if first != group or condition in conditions[:index]:
                where = ("condition_groups", group, index)
                doc.problem(where, f"'{condition}' already stands in the group '{first}'")


def _check_settable(doc: Document) -> None:
    for name, spec in doc.data["settable"].items():
        where: FieldPath = ("settable", name)
        value: Any = doc.data["presets"]["reference"]
        for key in spec["path"].split("."):
            if not isinstance(value, dict) or key not in value:
                doc.problem((*where, "path"), f"presets.reference has no '{spec['path']}'")
                break
            value = value[key]
        else:
            fault = setting_fault(spec, value)
            if fault is not None:
                doc.problem(where, f"presets.reference.{spec['path']}: {fault}")


def _check_overrides(doc: Document, changed: Any, reference: Any, path: FieldPath) -> None:
    for key, value in changed.items():
        where = (*path, key)
        if key not in reference:
            doc.problem(where, unknown("key of presets.reference here", key, reference))
        elif isinstance(value, dict) != isinstance(reference[key], dict):
            doc.problem(where, "is a mapping in one of tiny and reference, and a value in the other")
        elif isinstance(value, dict):
            _check_overrides(doc, value, reference[key], where)


def check_stacks(docs: Sequence[Document], case_names: Collection[str]) -> None:
    """Each stack's file name and cases; that a name or alias means one stack only."""
    owner = {doc.data["name"]: doc for doc in docs}
    for doc in docs:
        _check_file_name(doc, "name")
        for case in doc.data["does_not_run"]:
            if case not in case_names:
                doc.problem(("does_not_run", case), unknown("case", case, case_names))
        base = doc.data["base"]
        if base["image"] is None and base["obtain"] is None:
            doc.problem(("base", "obtain"), "missing: a stack without a public base says how to get one")
        for index, alias in enumerate(doc.data["aliases"]):
            first = owner.setdefault(alias, doc)
            if first is not doc:
                doc.problem(("aliases", index), f"'{alias}' already means the stack '{first.data['name']}'")


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
        _check_file_name(doc, "case")
        name = doc.data["case"]
        if name not in case_names:
            doc.problem(("case",), unknown("case", name, case_names))
        for index, claim in enumerate(doc.data["claims"]):
            here: FieldPath = ("claims", index)
            _check_claim_id(doc, claim["id"], (*here, "id"), first_use)
            if claim["stack"] not in stack_names:
                doc.problem((*here, "stack"), unknown("stack", claim["stack"], stack_names))
            elif _refused(name, claim["stack"], cases, stacks):
                doc.problem((*here, "stack"), f"the stack '{claim['stack']}' does not run '{name}'")
            if name in cases:
                _check_against_case(doc, claim, cases[name].data, here)


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
    metrics = {metric["name"]: metric for metric in case["metrics"]}
    names = [metric["name"] for metric in claim["metrics"]]
    _check_unique(doc, names, (*here, "metrics"), "name", "metric")
    for index, metric in enumerate(claim["metrics"]):
        where = (*here, "metrics", index)
        if metric["name"] not in metrics:
            kind = f"metric of {case['name']}"
            doc.problem((*where, "name"), unknown(kind, metric["name"], metrics))
            continue
        for key in ("unit", "scope"):
            expected = metrics[metric["name"]][key]
            if metric[key] != expected:
                text = f"'{metric[key]}' is not allowed; allowed: {expected}, as {case['name']} declares"
                doc.problem((*where, key), f"{text} {metric['name']}")


def _check_conditions(doc: Document, conditions: Any, case: Any, path: FieldPath) -> None:
    expected = {name for group in case["condition_groups"].values() for name in group}
    for name in conditions:
        if name not in expected:
            doc.problem((*path, name), unknown(f"condition of {case['name']}", name, expected))
    missing = sorted(expected - set(conditions))
    if missing:
        doc.problem(path, f"missing: {', '.join(missing)} (write 'not published' where the source is silent)")


def _check_file_name(doc: Document, key: str) -> None:
    if doc.path.stem != doc.data[key]:
        doc.problem((key,), f"'{doc.data[key]}' must equal the file's name, '{doc.path.stem}'")


def _check_unique(doc: Document, names: Iterable[str], path: FieldPath, key: str, kind: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            doc.problem((*path, index, key), f"there are two {kind}s '{name}'; remove one")
        seen.add(name)
