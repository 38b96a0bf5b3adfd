"""What a schema cannot say of cases and stacks: that the names in one manifest exist in the others, and fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from packaging.utils import canonicalize_name

from flagbench.catalog.documents import Document
from flagbench.catalog.settings import setting_fault
from flagbench.schema import FieldPath


def check_case(doc: Document, stack_names: Collection[str]) -> None:
    """Names inside one case: its file, stacks, groups, metrics, settable paths, overrides and engines."""
    raw = doc.data
    check_file_name(doc, "name")
    metrics = [name for _, name in doc.names("metrics.*.name")]
    conditions = [name for _, name in doc.names("condition_groups.*")]
    for pattern, kind, known in (
        ("does_not_run", "stack", stack_names),
        ("default_precision", "precision of this case", raw["precisions"]),
        ("division_presets", "division of this case", raw["divisions"]),
        ("gate", "metric of this case", metrics),
        ("metrics.*.held_by", "metric of this case", metrics),
        ("flops.published.metric", "metric of this case", metrics),
        ("metrics.*.depends_on", "condition group", raw["condition_groups"]),
        ("shapes", "condition of this case", conditions),
        ("presets.reference.engine.name", "engine of this case", raw["engines"]),
    ):
        doc.require_known(pattern, kind, known)
    doc.require_unique("quirks.*.id", "quirk")
    doc.require_unique("metrics.*.name", "metric")
    doc.require_unique("condition_groups.*", "condition")
    _check_settable(doc)
    reference = raw["presets"]["reference"]
    _check_overrides(doc, raw["presets"]["tiny"], reference, ("presets", "tiny"))
    for division, presets in raw.get("division_presets", {}).items():
        for preset, changed in presets.items():
            _check_overrides(doc, changed, reference, ("division_presets", division, preset))
    kind = raw.get("kind", "train")
    section = reference.get(kind)
    for key in ("batch_size", "warmup_steps", "window_steps"):
        if not isinstance(section, dict) or key not in section:
            doc.problem(("presets", "reference"), f"a case of the kind {kind} needs '{kind}.{key}'")
    if len(raw["engines"]) > 1 and not any(doc.names("presets.reference.engine.name")):
        doc.problem(("presets", "reference"), "missing: engine.name, one of the engines above")


def _check_settable(doc: Document) -> None:
    engines = doc.data["engines"]
    for name, spec in doc.data["settable"].items():
        where: FieldPath = ("settable", name)
        value: Any = doc.data["presets"]["reference"]
        for key in spec["path"].split("."):
            if not isinstance(value, dict) or key not in value:
                doc.problem((*where, "path"), f"presets.reference has no '{spec['path']}'")
                break
            value = value[key]
        else:
            if fault := setting_fault(spec, value):
                doc.problem(where, f"presets.reference.{spec['path']}: {fault}")
        if spec["path"] == "engine.name" and set(spec.get("choices", ())) != set(engines):
            doc.problem(where, f"its choices must be the engines of this case: {', '.join(engines)}")


def _check_overrides(doc: Document, changed: Any, reference: Any, path: FieldPath) -> None:
    doc.require_known(".".join(map(str, path)), "key of presets.reference", reference)
    for key in changed.keys() & reference.keys():
        where, value, other = (*path, key), changed[key], reference[key]
        if isinstance(value, dict) != isinstance(other, dict):
            doc.problem(where, "is a mapping either here or in presets.reference, and a value in the other")
        elif isinstance(value, dict):
            _check_overrides(doc, value, other, where)


def check_stacks(docs: Sequence[Document], case_names: Collection[str]) -> None:
    """Each stack's file name and cases; that a name or alias means one stack only."""
    owner = {doc.data["name"]: doc for doc in docs}
    for doc in docs:
        check_file_name(doc, "name")
        doc.require_known("does_not_run", "case", case_names)
        base = doc.data["base"]
        if base["image"] is None and base["obtain"] is None:
            doc.problem(("base", "obtain"), "missing: a stack without a public base says how to get one")
        for path, alias in doc.names("aliases"):
            first = owner.setdefault(alias, doc)
            if first is not doc:
                doc.problem(path, f"'{alias}' already means the stack '{first.data['name']}'")


def check_needs(cases: Sequence[Document], stacks: Sequence[Document]) -> None:
    """Each stack that runs a case states, for every package that the case needs, whether and how it provides it."""
    for case in cases:
        for stack in stacks:
            if refuses(case, stack):
                continue
            known = _packages_for_cases(stack.data["build"])
            for path, name in case.names("needs"):
                if name not in known:
                    places = "compiled, optional, from_base or left_out"
                    case.problem(path, f"the stack {stack.data['name']} has no '{name}' under {places}")


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
