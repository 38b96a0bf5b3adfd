"""What a schema cannot say of cases and stacks: that the names in one manifest exist in the others, and fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
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
    """Names inside one case: its file, stacks, groups, metrics, settable paths, overrides and engines."""
    raw = doc.data
    for stack in raw["does_not_run"]:
        if stack not in stack_names:
            doc.problem(("does_not_run", stack), unknown("stack", stack, stack_names))
    check_file_name(doc, "name")
    metrics = [metric["name"] for metric in raw["metrics"]]
    check_unique(doc, metrics, ("metrics",), "name", "metric")
    check_unique(doc, [quirk["id"] for quirk in raw["quirks"]], ("quirks",), "id", "quirk")
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
    _check_named_conditions(doc)
    _check_settable(doc)
    reference = raw["presets"]["reference"]
    _check_overrides(doc, raw["presets"]["tiny"], reference, ("presets", "tiny"))
    for division, presets in raw.get("division_presets", {}).items():
        if division not in raw["divisions"]:
            doc.problem(("division_presets", division), unknown("division of this case", division, raw["divisions"]))
        for preset, changed in presets.items():
            _check_overrides(doc, changed, reference, ("division_presets", division, preset))
    _check_kind(doc)
    _check_engines(doc)


def _check_kind(doc: Document) -> None:
    """The section of the presets that says how long a run of this kind is."""
    kind = doc.data.get("kind", "train")
    section = doc.data["presets"]["reference"].get(kind)
    for key in ("batch_size", "warmup_steps", "window_steps"):
        if not isinstance(section, dict) or key not in section:
            doc.problem(("presets", "reference"), f"a case of the kind {kind} has '{kind}.{key}'")


def _check_engines(doc: Document) -> None:
    """That the engine of a run is one that the manifest describes."""
    engines, reference = doc.data["engines"], doc.data["presets"]["reference"]
    chosen = reference.get("engine", {}).get("name")
    if chosen is None:
        if len(engines) > 1:
            doc.problem(("presets", "reference"), "missing: engine.name, one of the engines above")
    elif chosen not in engines:
        doc.problem(("presets", "reference", "engine", "name"), unknown("engine of this case", chosen, engines))
    for name, spec in doc.data["settable"].items():
        if spec["path"] == "engine.name" and set(spec.get("choices", ())) != set(engines):
            doc.problem(("settable", name), f"its choices must be the engines of this case: {', '.join(engines)}")


def _check_condition_groups(doc: Document) -> None:
    group_of: dict[str, str] = {}
    for group, conditions in doc.data["condition_groups"].items():
        for index, condition in enumerate(conditions):
            first = group_of.setdefault(condition, group)
            if first != group or condition in conditions[:index]:
                where = ("condition_groups", group, index)
                doc.problem(where, f"'{condition}' already stands in the group '{first}'")


def _check_named_conditions(doc: Document) -> None:
    """The names of conditions and metrics outside their lists: `shapes`, and what the published formula takes."""
    raw = doc.data
    conditions = [name for group in raw["condition_groups"].values() for name in group]
    for index, name in enumerate(raw.get("shapes", ())):
        if name not in conditions:
            doc.problem(("shapes", index), unknown("condition of this case", name, conditions))
    formula = raw["flops"].get("published")
    metrics = [metric["name"] for metric in raw["metrics"]]
    if formula is not None and formula["metric"] not in metrics:
        where = ("flops", "published", "metric")
        doc.problem(where, unknown("metric of this case", formula["metric"], metrics))


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
            doc.problem(where, "is a mapping either here or in presets.reference, and a value in the other")
        elif isinstance(value, dict):
            _check_overrides(doc, value, reference[key], where)


def check_stacks(docs: Sequence[Document], case_names: Collection[str]) -> None:
    """Each stack's file name and cases; that a name or alias means one stack only."""
    owner = {doc.data["name"]: doc for doc in docs}
    for doc in docs:
        check_file_name(doc, "name")
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


def check_needs(cases: Sequence[Document], stacks: Sequence[Document]) -> None:
    """Each stack that runs a case states, for every package that the case needs, whether and how it provides it."""
    for case in cases:
        for stack in stacks:
            if stack.data["name"] in case.data["does_not_run"] or case.data["name"] in stack.data["does_not_run"]:
                continue
            known = _packages_for_cases(stack.data["build"])
            for index, name in enumerate(case.data.get("needs", ())):
                if name not in known:
                    places = "compiled, optional, from_base or left_out"
                    case.problem(("needs", index), f"the stack {stack.data['name']} has no '{name}' under {places}")


def _packages_for_cases(build: Any) -> set[str]:
    names = [package["name"] for package in build["compiled"]]
    names += [line.partition("==")[0] for line in build.get("optional", ())]
    return {re.sub(r"[-_.]+", "-", name).lower() for name in (*names, *build["from_base"], *build["left_out"])}


def check_file_name(doc: Document, key: str) -> None:
    """Note where the name in a manifest is not that of its file."""
    if doc.path.stem != doc.data[key]:
        doc.problem((key,), f"'{doc.data[key]}' must equal the file's name, '{doc.path.stem}'")


def check_unique(doc: Document, names: Iterable[str], path: FieldPath, key: str, kind: str) -> None:
    """Note each name that stands twice in a list; `key` is the field that holds it."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            doc.problem((*path, index, key), f"there are two {kind}s '{name}'; remove one")
        seen.add(name)
