"""Checks what a schema cannot say: that names in one manifest exist in the others, and that values fit each other.

`load_catalog` calls `check_manifests` with all documents after each was checked against its schema. A problem is
added to the document that has it, with its path in the document; nothing is raised.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any, get_args

from packaging.utils import canonicalize_name

from flagbench.manifests.device import Limits
from flagbench.manifests.documents import Document, FirstUse
from flagbench.manifests.fields import PeakPrecision
from flagbench.manifests.rows import printed_number
from flagbench.schema import FieldPath, type_remedy
from flagbench_core.case_kinds import MEASURE
from flagbench_core.config import setting_fault
from flagbench_core.flops import FORMULAS

DEVICE_NUMBERS = (*get_args(PeakPrecision), *(field.name for field in fields(Limits)))
"""The peaks and limits that every device's manifest states or lists as missing."""
_CONVERSION = re.compile(r"%[-+ #0-9.]*[a-zA-Z]")
"""A place for a value in a format in the style of printf."""
_FORMS = ({"value"}, {"one_of"}, {"text", "of"}, {"product"}, {"difference"}, {"quotient"})
"""The keys of each form of a derivation, except of the form with `by` and `values`, which may have an `else`."""
FLOPS_METRICS = ("mfu", "hfu")
"""The beginnings of the names of metrics that are computed from FLOPs."""
_RESOLVED = dict.fromkeys(("case", "division", "preset", "precision", "nodes", "gpus", "seed", "weights"))
"""The keys that a resolved configuration has in addition to its preset's."""
MAX_QUIRK_SHARE = 0.03
"""The share of a step's time by which a quirk that is kept may change it: a larger change would look like a slow
device."""


def check_manifests(
    cases: Sequence[Document],
    devices: Sequence[Document],
    stacks: Sequence[Document],
    claims: Sequence[Document],
    workloads: Sequence[Document],
    limits: Document,
) -> None:
    """Add the problems of the manifests that match their schema; the others have problems already.

    The names of faulty files count as existing, so that a faulty case is not reported again in every claim.
    """
    case_names = {doc.path.stem for doc in cases}
    stack_names = {doc.path.stem for doc in stacks}
    for doc in _valid(cases):
        _check_case(doc, stack_names)
    _check_devices(_valid(devices))
    if not limits.problems:
        _check_limits(limits, _valid(devices))
    families = {_family(doc) for doc in _valid(cases)}
    for doc in _valid(stacks):
        doc.require_known("families", "family of cases", families)
    _check_stacks(_valid(stacks), case_names, {doc.path.stem for doc in devices})
    _check_needs(_valid(cases), _valid(stacks))
    valid_cases = {doc.data["name"]: doc for doc in _valid(cases)}
    valid_stacks = {doc.data["name"]: doc for doc in _valid(stacks)}
    for doc in _valid(workloads):
        doc.require_known("cases", "case", case_names)
    first_uses: dict[str, FirstUse] = {}
    for doc in _valid(claims):
        doc.require_known("case", "case", case_names)
        doc.require_known("claims.*.stack", "stack", stack_names)
        doc.require_unique("claims.*.id", "claim", first_uses)
        _check_claims(doc, valid_cases.get(doc.data["case"]), valid_stacks)


def _valid(documents: Sequence[Document]) -> list[Document]:
    """The documents without problems so far."""
    return [doc for doc in documents if not doc.problems]


def _check_case(doc: Document, stack_names: Collection[str]) -> None:
    """Check one case by itself, and that the stacks which it names exist."""
    raw = doc.data
    _check_file_name(doc, "name")
    metrics = [name for _, name in doc.find_names("metrics.*.name")]
    conditions = [name for _, name in doc.find_names("condition_groups.*")]
    doc.require_known("does_not_run", "stack", stack_names)
    doc.require_known("default_precision", "precision of this case", raw["precisions"])
    doc.require_known("memory.*.precision", "precision of this case", raw["precisions"])
    doc.require_known("gate", "metric of this case", metrics)
    doc.require_known("further_gates.*", "metric of this case", metrics)
    doc.require_known("metrics.*.held_by", "metric of this case", metrics)
    doc.require_known("flops.published.metric", "metric of this case", metrics)
    doc.require_known("metrics.*.depends_on", "condition group", raw["condition_groups"])
    doc.require_known("shapes", "condition of this case", conditions)
    doc.require_known("required_conditions", "condition of this case", conditions)
    doc.require_known("presets.reference.engine.name", "engine of this case", raw["engines"])
    doc.require_known("conditions", "condition of this case", conditions)
    doc.require_known("ranges", "condition of this case", conditions)
    doc.require_unique("quirks.*.id", "quirk")
    _check_quirks(doc)
    doc.require_unique("metrics.*.name", "metric")
    doc.require_unique("condition_groups.*", "condition")
    _check_flops(doc)
    _check_settable(doc)
    for section in ("conditions", "counts"):
        for name, derivation in raw.get(section, {}).items():
            _check_derivation(doc, derivation, (section, name))
    for name, limits in raw.get("ranges", {}).items():
        if limits["low"] > limits["high"]:
            doc.add_problem(("ranges", name, "low"), f"{limits['low']} is above high, {limits['high']}")
    reference = raw["presets"]["reference"]
    _check_overrides(doc, raw["presets"]["tiny"], reference, ("presets", "tiny"))
    _check_overrides(doc, raw.get("absent", {}), reference, ("absent",))
    _check_length(doc, raw.get("kind", "train"), reference)
    if len(raw["engines"]) > 1 and not any(doc.find_names("presets.reference.engine.name")):
        doc.add_problem(("presets", "reference"), "missing: engine.name, one of the engines above")


def _check_length(doc: Document, kind: str, reference: Mapping[str, Any]) -> None:
    """Check that the reference preset has the section of the case's kind, which sets the length of a run."""
    keys = ("batch_size", "warmup_steps", "window_steps")
    if kind == MEASURE:
        keys = ("seconds", "warmup_steps", "window_steps")
    section = reference.get(kind)
    for key in keys:
        if not isinstance(section, dict) or key not in section:
            doc.add_problem(("presets", "reference"), f"a case of the kind {kind} needs '{kind}.{key}'")


def _check_quirks(doc: Document) -> None:
    """Check that a kept quirk which changes operators states its share of a step's time, and that the share is small.

    A quirk is a surprise in the publisher's code, which a run repeats (`kept`) or not (`corrected`).
    """
    for index, quirk in enumerate(doc.data["quirks"]):
        if quirk["decision"] != "kept":
            continue
        if "difference" in quirk and "time" not in quirk:
            doc.add_problem(("quirks", index), f"missing: time, the share of a step that {quirk['id']} differs by")
            continue
        share = quirk.get("time", {}).get("share", 0)
        if share > MAX_QUIRK_SHARE:
            doc.add_problem(
                ("quirks", index, "time", "share"),
                f"{share:g} of a step is more than {MAX_QUIRK_SHARE:g}; do as the publisher, or write `corrected`",
            )


def _check_flops(doc: Document) -> None:
    """Check that the FLOP formula exists, or that no metric needs one if the case counts no FLOPs."""
    flops = doc.data["flops"]
    formulas = f"formulas: {', '.join(sorted(FORMULAS))}"
    if flops == "none":
        for path, name in doc.find_names("metrics.*.name"):
            if name.startswith(FLOPS_METRICS):
                doc.add_problem(
                    path, f"'{name}' follows from FLOPs, of which `flops: none` counts none; remove one of them"
                )
    elif isinstance(flops, str):
        doc.add_problem(("flops",), f"'{flops}': write none, or a mapping of formula and source; {formulas}")
    elif flops["formula"] not in FORMULAS:
        doc.add_problem(("flops", "formula"), f"'{flops['formula']}': unknown formula; {formulas}")


def _check_settable(doc: Document) -> None:
    """Check that the reference preset has an allowed value at every settable path, and that every engine is a
    choice."""
    engines = doc.data["engines"]
    for name, setting in doc.data["settable"].items():
        if "default" in setting:
            continue
        _check_reference_value(doc, name, setting)
        if setting["path"] == "engine.name" and set(setting.get("choices", ())) != set(engines):
            doc.add_problem(("settable", name), f"its choices must be the engines of this case: {', '.join(engines)}")


def _check_reference_value(doc: Document, name: str, setting: Any) -> None:
    """Check that the reference preset has a value at the path of a setting, and that `--set` would allow it."""
    path = setting["path"].split(".")
    value: Any = doc.data["presets"]["reference"]
    for key in path:
        if not isinstance(value, dict) or key not in value:
            doc.add_problem(("settable", name, "path"), f"presets.reference has no '{setting['path']}'")
            return
        value = value[key]
    fault = _setting_fault(setting, value)
    if fault is not None:
        doc.add_problem(("presets", "reference", *path), fault)


def _setting_fault(setting: Any, value: Any) -> str | None:
    """Say why an entry of `settable` does not allow a value; None if it does.

    If YAML read the value as another type than was meant, the text says how to write it.
    """
    fault = setting_fault(setting, value)
    if fault is None:
        return None
    return f"{value!r} {fault}{type_remedy(setting['type'], value)}"


def _check_derivation(doc: Document, derivation: Any, where: FieldPath) -> None:
    """Check that a derivation has exactly one form with all its keys, and that the paths in it exist.

    A derivation says how a value follows from a run's configuration; it can contain others. `where` is its own path.
    """
    if isinstance(derivation, str):
        _check_config_path(doc, derivation, where)
        return
    if derivation.keys() not in _FORMS and derivation.keys() - {"else"} != {"by", "values"}:
        doc.add_problem(
            where, "needs one of value, one_of, text and of, by and values, product, difference, quotient"
        )
        return
    if "by" in derivation:
        _check_config_path(doc, derivation["by"], (*where, "by"))
    if "text" in derivation:
        conversions = len(_CONVERSION.findall(derivation["text"].replace("%%", "")))
        if conversions != len(derivation["of"]):
            doc.add_problem((*where, "text"), f"has {conversions} conversions for {len(derivation['of'])} values")
    for key, inner in derivation.get("values", {}).items():
        _check_derivation(doc, inner, (*where, "values", key))
    for operation in ("of", "product", "difference", "quotient"):
        for index, inner in enumerate(derivation.get(operation, ())):
            _check_derivation(doc, inner, (*where, operation, index))
    if "else" in derivation:
        _check_derivation(doc, derivation["else"], (*where, "else"))


def _check_config_path(doc: Document, path: str, where: FieldPath) -> None:
    """Check that a resolved configuration has a value at `path`, which is named at `where`."""
    if path == "data.source":  # Resolving makes it of `data.default` and the options of a run.
        return
    section: Any = {**doc.data["presets"]["reference"], **_RESOLVED}
    for key in path.split("."):
        if not isinstance(section, dict) or key not in section:
            doc.add_problem(where, f"a resolved configuration has no '{path}'")
            return
        section = section[key]


def _check_overrides(doc: Document, overrides: Any, reference: Any, path: FieldPath) -> None:
    """Check that overrides have only keys of the reference preset, with values of the same type, or null.

    `path` is the place of the overrides in the document.
    """
    doc.require_known(".".join(map(str, path)), "key of presets.reference", reference)
    for key in sorted(overrides.keys() & reference.keys()):
        where = (*path, key)
        kind = _kind_of_value(overrides[key])
        kind_of_reference = _kind_of_value(reference[key])
        may_differ = "null" in (kind, kind_of_reference) and "mapping" not in (kind, kind_of_reference)
        if kind != kind_of_reference and not may_differ:
            doc.add_problem(where, f"is a {kind} here, and a {kind_of_reference} in presets.reference")
        elif kind == "mapping":
            _check_overrides(doc, overrides[key], reference[key], where)


def _kind_of_value(value: Any) -> str:
    """The name of the type of a value in YAML. An integer and a fraction are both a number."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "list"
    return "mapping"


def _check_devices(docs: Sequence[Document]) -> None:
    """Check each device's file name and numbers, and that no two devices have a name in common.

    Each peak and limit is either stated, or listed as not published or not found.
    """
    first_uses: dict[str, FirstUse] = {}
    for doc in docs:
        _check_file_name(doc, "id")
        doc.require_unique("match", "device", first_uses)
        numbers = [*doc.data["peaks"], *doc.data.get("limits", ())]
        numbers += [*doc.data.get("not_published", ()), *doc.data.get("not_found", ())]
        wrong = [name for name in DEVICE_NUMBERS if numbers.count(name) != 1]
        if wrong:
            places = "peaks or limits, not_published or not_found"
            doc.add_problem(("peaks",), f"{', '.join(wrong)}: each must be listed once, under {places}")


def _check_limits(limits: Document, devices: Sequence[Document]) -> None:
    """Check that limits have ids of their own and consistent values, and that devices override only existing
    limits."""
    limits.require_unique("limits.*.id", "limit")
    for place, limit in enumerate(limits.data["limits"]):
        if limit.get("fail_below", 0) > limit["inconclusive_below"]:
            limits.add_problem(
                ("limits", place, "fail_below"), "is above inconclusive_below, from which on a number passes"
            )
    limit_ids = {limit["id"] for limit in limits.data["limits"]}
    for doc in devices:
        doc.require_known("acceptance", "limit", limit_ids)


def _check_stacks(docs: Sequence[Document], case_names: Collection[str], device_ids: Collection[str]) -> None:
    """Check each stack's file name and packages, that its cases and devices exist, and that its aliases are its
    own."""
    stacks_by_name = {doc.data["name"]: doc for doc in docs}
    for doc in docs:
        _check_file_name(doc, "name")
        doc.require_known("does_not_run", "case", case_names)
        doc.require_known("devices", "device", device_ids)
        base = doc.data["base"]
        if base is not None and base["image"] is None and base["obtain"] is None:
            doc.add_problem(("base", "obtain"), "missing: a stack without a public base says how to get one")
        _check_packages(doc)
        for path, alias in doc.find_names("aliases"):
            owner = stacks_by_name.setdefault(alias, doc)
            if owner is not doc:
                doc.add_problem(path, f"'{alias}' already means the stack '{owner.data['name']}'")


def _check_packages(doc: Document) -> None:
    """Check that no package is listed in two sections, which would install it twice."""
    section_of: dict[str, str] = {}
    for section in ("packages", "optional", "compiled", "other_python"):
        for index, package in enumerate(doc.data["build"].get(section, ())):
            requirement = package if isinstance(package, str) else package["name"]
            name = canonicalize_name(requirement.partition("==")[0].partition("[")[0])
            if name in section_of:
                other = section_of[name]
                doc.add_problem(("build", section, index), f"'{name}' is already under build.{other}; remove one")
            else:
                section_of[name] = section


def _check_needs(cases: Sequence[Document], stacks: Sequence[Document]) -> None:
    """Check that each stack that runs a case lists every package that the case needs, at least as left out."""
    for case in cases:
        for stack in stacks:
            if _refuses(case, stack):
                continue
            listed = _packages_for_cases(stack.data["build"])
            for path, name in case.find_names("needs"):
                if name not in listed:
                    places = "compiled, optional, other_python, from_base or left_out"
                    case.add_problem(path, f"the stack {stack.data['name']} has no '{name}' under {places}")


def _packages_for_cases(build: Any) -> set[str]:
    """The canonical names of the packages that a stack installs for single cases, has in its base, or leaves out."""
    names = [package["name"] for package in (*build["compiled"], *build.get("other_python", ()))]
    names += [line.partition("==")[0] for line in build.get("optional", ())]
    return {canonicalize_name(name) for name in (*names, *build["from_base"], *build["left_out"])}


def _check_claims(doc: Document, case: Document | None, stacks: Mapping[str, Document]) -> None:
    """Check the published rows of a file: the source and the stack of each, and that they fit their case.

    `case` is None if the case has problems itself; then the rows are not compared with it.
    """
    _check_file_name(doc, "case")
    if (doc.data.get("source") is None) == ("sources" not in doc.data):
        doc.add_problem((), "needs either `source`, one for all claims, or `sources`, one of which each claim names")
    sources = doc.data.get("sources", {})
    doc.require_known("claims.*.source", "entry of `sources`", sources)
    doc.require_known("claims.*.metrics.*.source", "entry of `sources`", sources)
    for index, claim in enumerate(doc.data["claims"]):
        where: FieldPath = ("claims", index)
        if not claim["id"].startswith(f"{doc.data['case']}/"):
            doc.add_problem((*where, "id"), f"'{claim['id']}' must start with '{doc.data['case']}/'")
        if "sources" in doc.data and claim.get("source") is None:
            doc.add_problem((*where, "source"), f"missing; known: {', '.join(sorted(sources)) or 'none'}")
        _check_stack(doc, claim, where, case, stacks.get(claim["stack"]))
        if case is not None:
            _check_run(doc, claim, where, case.data)
            _check_metrics(doc, claim, where, case.data)
    if case is not None:
        name = case.data["name"]
        metrics = [metric["name"] for metric in case.data["metrics"]]
        doc.require_known("claims.*.run.set", f"settable of {name}", case.data["settable"])
        doc.require_known("claims.*.conditions", f"condition of {name}", _conditions(case.data))
        doc.require_known("claims.*.metrics.*.name", f"metric of {name}", metrics)


def _check_stack(doc: Document, claim: Any, where: FieldPath, case: Document | None, stack: Document | None) -> None:
    """Check that a claim has either a stack that runs its case, or the reason why it has no stack."""
    name = claim["stack"]
    if name is None and claim.get("no_stack") is None:
        doc.add_problem((*where, "no_stack"), "missing: a claim without a stack says why there is none")
    elif name is not None and claim.get("no_stack") is not None:
        doc.add_problem((*where, "no_stack"), f"there is a stack, '{name}'; remove one of the two")
    elif case is not None and stack is not None and _refuses(case, stack):
        doc.add_problem((*where, "stack"), f"the stack '{name}' does not run '{case.data['name']}'")


def _check_run(doc: Document, claim: Any, where: FieldPath, case: Any) -> None:
    """Check that a claim's precision and settings exist in its case, and that it states all required conditions."""
    run = claim["run"]
    if run["precision"] not in case["precisions"]:
        text = f"'{run['precision']}' is not allowed; {case['name']} has {', '.join(case['precisions'])}"
        doc.add_problem((*where, "run", "precision"), text)
    for name, value in run["set"].items():
        if name not in case["settable"]:
            continue  # `_check_claims` reports it as unknown.
        fault = _setting_fault(case["settable"][name], value)
        if fault is not None:
            doc.add_problem((*where, "run", "set", name), fault)
    missing = sorted(_required_conditions(case, claim) - set(claim["conditions"]))
    if missing:
        text = f"missing: {', '.join(missing)} (write 'not published' where the source is silent)"
        doc.add_problem((*where, "conditions"), text)


def _check_metrics(doc: Document, claim: Any, where: FieldPath, case: Any) -> None:
    """Check that a claim's metrics have the unit and scope that its case declares, and the value that was printed."""
    doc.require_unique(f"claims.{where[1]}.metrics.*.name", "metric")
    declared = {metric["name"]: metric for metric in case["metrics"]}
    for index, metric in enumerate(claim["metrics"]):
        where_metric = (*where, "metrics", index)
        name = metric["name"]
        for key in ("unit", "scope"):
            if name in declared and metric[key] != declared[name][key]:
                expected = f"allowed: {declared[name][key]}, as {case['name']} declares {name}"
                doc.add_problem((*where_metric, key), f"'{metric[key]}' is not allowed; {expected}")
        printed = metric.get("printed")
        if printed is not None and printed_number(printed) != Decimal(repr(metric["value"])):
            doc.add_problem((*where_metric, "printed"), f"'{printed}' is not the value {metric['value']}")


def _required_conditions(case: Any, claim: Any) -> set[str]:
    """Collect the conditions that a claim has to state.

    Most cases require all of theirs. A case that measures a device has many metrics, of which a claim has a few; it
    does not require the groups of conditions on which only other metrics depend.
    """
    if case.get("kind") != MEASURE:
        return _conditions(case)
    claimed = {metric["name"] for metric in claim["metrics"]}
    groups_of_claim: set[str] = set()
    groups_of_metrics: set[str] = set()
    for metric in case["metrics"]:
        groups_of_metrics |= {*metric["depends_on"]}
        if metric["name"] in claimed:
            groups_of_claim |= {*metric["depends_on"]}
    conditions: set[str] = set()
    for group, names in case["condition_groups"].items():
        if group in groups_of_claim or group not in groups_of_metrics:
            conditions |= {*names}
    return conditions


def _conditions(case: Any) -> set[str]:
    """The names of all conditions of a case."""
    conditions: set[str] = set()
    for names in case["condition_groups"].values():
        conditions |= {*names}
    return conditions


def _refuses(case: Document, stack: Document) -> bool:
    """Whether the stack is for other families, or one of the two lists the other under `does_not_run`."""
    families = stack.data.get("families")
    if families and _family(case) not in families:
        return True
    return stack.data["name"] in case.data["does_not_run"] or case.data["name"] in stack.data["does_not_run"]


def _family(case: Document) -> str:
    """The family of a case: a case without one has its own name as its family."""
    return str(case.data.get("family") or case.data["name"])


def _check_file_name(doc: Document, key: str) -> None:
    """Check that the name in a manifest is that of its file."""
    if doc.path.stem != doc.data[key]:
        doc.add_problem((key,), f"'{doc.data[key]}' must equal the file's name, '{doc.path.stem}'")
