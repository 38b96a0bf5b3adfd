"""What a schema cannot say of cases and stacks: that the names in one manifest exist in the others, and fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from packaging.utils import canonicalize_name

from flagbench.catalog.documents import Document
from flagbench.catalog.settings import setting_fault
from flagbench.schema import FieldPath


def check_case(doc: Document, stack_names: Collection[str]) -> None:
    """Names inside one case: its file, stacks, groups, metrics, settable paths, overrides and engines."""
    raw = doc.data
    check_file_name(doc, "name")
    for stack in raw["does_not_run"]:
        doc.require_known(("does_not_run", stack), "stack", stack, stack_names)
    precision = raw["default_precision"]
    doc.require_known(("default_precision",), "precision of this case", precision, raw["precisions"])
    check_unique(doc, [quirk["id"] for quirk in raw["quirks"]], ("quirks",), "id", "quirk")
    _check_metrics(doc)
    _check_condition_groups(doc)
    _check_settable(doc)
    reference = raw["presets"]["reference"]
    _check_overrides(doc, raw["presets"]["tiny"], reference, ("presets", "tiny"))
    for division, presets in raw.get("division_presets", {}).items():
        doc.require_known(("division_presets", division), "division of this case", division, raw["divisions"])
        for preset, changed in presets.items():
            _check_overrides(doc, changed, reference, ("division_presets", division, preset))
    _check_kind(doc)
    _check_engines(doc)


def _check_metrics(doc: Document) -> None:
    """That metrics are unique, and that each metric and condition group named elsewhere exists."""
    raw = doc.data
    names = [metric["name"] for metric in raw["metrics"]]
    check_unique(doc, names, ("metrics",), "name", "metric")
    doc.require_known(("gate",), "metric of this case", raw["gate"], names)
    for index, metric in enumerate(raw["metrics"]):
        for group in metric["depends_on"]:
            where = ("metrics", index, "depends_on")
            doc.require_known(where, "condition group", group, raw["condition_groups"])
        if metric.get("held_by") is not None:
            doc.require_known(("metrics", index, "held_by"), "metric of this case", metric["held_by"], names)
    formula = raw["flops"].get("published")
    if formula is not None:
        doc.require_known(("flops", "published", "metric"), "metric of this case", formula["metric"], names)


def _check_condition_groups(doc: Document) -> None:
    """That a condition is in one group, and that `shapes` are conditions."""
    group_of: dict[str, str] = {}
    for group, conditions in doc.data["condition_groups"].items():
        for index, condition in enumerate(conditions):
            if condition in group_of:
                where = ("condition_groups", group, index)
                doc.problem(where, f"'{condition}' is already in the group '{group_of[condition]}'")
            group_of.setdefault(condition, group)
    for index, name in enumerate(doc.data.get("shapes", ())):
        doc.require_known(("shapes", index), "condition of this case", name, group_of)


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
        if not doc.require_known(where, "key of presets.reference", key, reference):
            continue
        if isinstance(value, dict) != isinstance(reference[key], dict):
            doc.problem(where, "is a mapping either here or in presets.reference, and a value in the other")
        elif isinstance(value, dict):
            _check_overrides(doc, value, reference[key], where)


def _check_kind(doc: Document) -> None:
    """The section of the presets that says how long a run of this kind is."""
    kind = doc.data.get("kind", "train")
    section = doc.data["presets"]["reference"].get(kind)
    for key in ("batch_size", "warmup_steps", "window_steps"):
        if not isinstance(section, dict) or key not in section:
            doc.problem(("presets", "reference"), f"a case of the kind {kind} needs '{kind}.{key}'")


def _check_engines(doc: Document) -> None:
    """That the engine of a run is one that the manifest describes."""
    engines, reference = doc.data["engines"], doc.data["presets"]["reference"]
    chosen = reference.get("engine", {}).get("name")
    if chosen is not None:
        doc.require_known(("presets", "reference", "engine", "name"), "engine of this case", chosen, engines)
    elif len(engines) > 1:
        doc.problem(("presets", "reference"), "missing: engine.name, one of the engines above")
    for name, spec in doc.data["settable"].items():
        if spec["path"] == "engine.name" and set(spec.get("choices", ())) != set(engines):
            doc.problem(("settable", name), f"its choices must be the engines of this case: {', '.join(engines)}")


def check_stacks(docs: Sequence[Document], case_names: Collection[str]) -> None:
    """Each stack's file name and cases; that a name or alias means one stack only."""
    owner = {doc.data["name"]: doc for doc in docs}
    for doc in docs:
        check_file_name(doc, "name")
        for case in doc.data["does_not_run"]:
            doc.require_known(("does_not_run", case), "case", case, case_names)
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
            if refuses(case, stack):
                continue
            known = _packages_for_cases(stack.data["build"])
            for index, name in enumerate(case.data.get("needs", ())):
                if name not in known:
                    places = "compiled, optional, from_base or left_out"
                    case.problem(("needs", index), f"the stack {stack.data['name']} has no '{name}' under {places}")


def _packages_for_cases(build: Any) -> set[str]:
    names = [package["name"] for package in build["compiled"]]
    names += [line.partition("==")[0] for line in build.get("optional", ())]
    return {canonicalize_name(name) for name in (*names, *build["from_base"], *build["left_out"])}


def refuses(case: Document, stack: Document) -> bool:
    """Whether the case or the stack says that the one does not run on the other."""
    return stack.data["name"] in case.data["does_not_run"] or case.data["name"] in stack.data["does_not_run"]


def check_file_name(doc: Document, key: str) -> None:
    """Note where the name in a manifest is not that of its file."""
    if doc.path.stem != doc.data[key]:
        doc.problem((key,), f"'{doc.data[key]}' must equal the file's name, '{doc.path.stem}'")


def check_unique(doc: Document, names: Iterable[str], path: FieldPath, key: str, kind: str) -> None:
    """Note each name that is in a list twice; `key` is the field that holds it."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            doc.problem((*path, index, key), f"there are two {kind}s '{name}'; remove one")
        seen.add(name)
