"""What a schema cannot say: that the names in one manifest exist in the others, and that values fit each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any, get_args

from packaging.utils import canonicalize_name

from flagbench.manifests.device import Limits
from flagbench.manifests.documents import Document
from flagbench.manifests.fields import PeakPrecision
from flagbench.manifests.rows import printed_number
from flagbench.schema import FieldPath, type_remedy
from flagbench_core.config import setting_fault
from flagbench_core.evidence.section import MEASURE
from flagbench_core.flops import FORMULAS

DEVICE_NUMBERS = (*get_args(PeakPrecision), *(field.name for field in fields(Limits)))
"""The peaks and limits that every device's manifest speaks of."""
_CONVERSION = re.compile(r"%[-+ #0-9.]*[a-zA-Z]")
_FORMS = ({"value"}, {"one_of"}, {"text", "of"}, {"product"}, {"difference"}, {"quotient"})
"""The keys of each form of a derivation but `by`, which may have an `else`."""
FLOPS_METRICS = ("mfu", "hfu")
"""How the names of metrics begin that follow from FLOPs."""
_RESOLVED = dict.fromkeys(("case", "division", "preset", "precision", "nodes", "gpus", "seed", "weights"))
"""What resolving adds to a preset."""


def check(
    cases: Sequence[Document],
    devices: Sequence[Document],
    stacks: Sequence[Document],
    claims: Sequence[Document],
    workloads: Sequence[Document],
    limits: Document,
) -> None:
    """Note every problem of the manifests whose shape can be relied on; the others are reported already.

    Names of all files are known, so that a faulty case is reported once and not again as unknown in every claim.
    """
    case_names, stack_names = {doc.path.stem for doc in cases}, {doc.path.stem for doc in stacks}
    for doc in _valid(cases):
        doc.require_known("family", "case", case_names)
        _check_case(doc, stack_names)
    _check_devices(_valid(devices))
    if not limits.problems:
        _check_limits(limits, _valid(devices))
    _check_stacks(_valid(stacks), case_names, {doc.path.stem for doc in devices})
    _check_needs(_valid(cases), _valid(stacks))
    valid_cases, valid_stacks = ({doc.data["name"]: doc for doc in _valid(docs)} for docs in (cases, stacks))
    for doc in _valid(workloads):
        doc.require_known("cases", "case", case_names)
    first_use: dict[str, str] = {}
    for doc in _valid(claims):
        doc.require_known("case", "case", case_names)
        doc.require_known("claims.*.stack", "stack", stack_names)
        doc.require_unique("claims.*.id", "claim", first_use)
        _check_claims(doc, valid_cases.get(doc.data["case"]), valid_stacks)


def _valid(documents: Sequence[Document]) -> list[Document]:
    return [doc for doc in documents if not doc.problems]


def _check_case(doc: Document, stack_names: Collection[str]) -> None:
    """Names inside one case: its file, stacks, groups, metrics, settable paths, overrides and engines."""
    raw = doc.data
    _check_file_name(doc, "name")
    metrics = [name for _, name in doc.names("metrics.*.name")]
    conditions = [name for _, name in doc.names("condition_groups.*")]
    for pattern, kind, known in (
        ("does_not_run", "stack", stack_names),
        ("default_precision", "precision of this case", raw["precisions"]),
        ("memory.*.precision", "precision of this case", raw["precisions"]),
        ("gate", "metric of this case", metrics),
        ("further_gates.*", "metric of this case", metrics),
        ("metrics.*.held_by", "metric of this case", metrics),
        ("flops.published.metric", "metric of this case", metrics),
        ("metrics.*.depends_on", "condition group", raw["condition_groups"]),
        ("shapes", "condition of this case", conditions),
        ("presets.reference.engine.name", "engine of this case", raw["engines"]),
        ("conditions", "condition of this case", conditions),
        ("ranges", "condition of this case", conditions),
    ):
        doc.require_known(pattern, kind, known)
    doc.require_unique("quirks.*.id", "quirk")
    _check_quirks(doc)
    doc.require_unique("metrics.*.name", "metric")
    doc.require_unique("condition_groups.*", "condition")
    _check_flops(doc)
    _check_settable(doc)
    for section in ("conditions", "counts"):
        for name, derivation in raw.get(section, {}).items():
            _check_derivation(doc, derivation, (section, name))
    for name, entry in raw.get("ranges", {}).items():
        if entry["low"] > entry["high"]:
            doc.problem(("ranges", name, "low"), f"{entry['low']} is above high, {entry['high']}")
    reference = raw["presets"]["reference"]
    _check_overrides(doc, raw["presets"]["tiny"], reference, ("presets", "tiny"))
    _check_overrides(doc, raw.get("absent", {}), reference, ("absent",))
    kind = raw.get("kind", "train")
    section = reference.get(kind)
    for key in ("seconds" if kind == MEASURE else "batch_size", "warmup_steps", "window_steps"):
        if not isinstance(section, dict) or key not in section:
            doc.problem(("presets", "reference"), f"a case of the kind {kind} needs '{kind}.{key}'")
    if len(raw["engines"]) > 1 and not any(doc.names("presets.reference.engine.name")):
        doc.problem(("presets", "reference"), "missing: engine.name, one of the engines above")


MOST_OF_A_STEP = 0.03
"""The share of a step's time by which a quirk that is kept may differ; more would look like a slow device."""


def _check_quirks(doc: Document) -> None:
    """That a quirk which is kept, though its operators differ, says what of a step's time that is, and is little."""
    for index, quirk in enumerate(doc.data["quirks"]):
        if quirk["decision"] != "kept":
            continue
        if "difference" in quirk and "time" not in quirk:
            doc.problem(("quirks", index), f"missing: time, the share of a step that {quirk['id']} differs by")
        elif (share := quirk.get("time", {}).get("share", 0)) > MOST_OF_A_STEP:
            doc.problem(
                ("quirks", index, "time", "share"),
                f"{share:g} of a step is more than {MOST_OF_A_STEP:g}; do as the publisher, or write `corrected`",
            )


def _check_flops(doc: Document) -> None:
    """That the formula exists; that a case that counts no FLOPs has no metric which follows from them."""
    flops = doc.data["flops"]
    formula, where = (flops, ("flops",)) if isinstance(flops, str) else (flops["formula"], ("flops", "formula"))
    if flops == "none":
        for path, name in doc.names("metrics.*.name"):
            if name.startswith(FLOPS_METRICS):
                doc.problem(
                    path, f"'{name}' follows from FLOPs, of which `flops: none` counts none; remove one of them"
                )
    elif isinstance(flops, str) or formula not in FORMULAS:
        forms = "write none, or a mapping of formula and source" if isinstance(flops, str) else "unknown formula"
        doc.problem(where, f"'{formula}': {forms}; formulas: {', '.join(sorted(FORMULAS))}")


def _check_settable(doc: Document) -> None:
    engines = doc.data["engines"]
    for name, spec in doc.data["settable"].items():
        where: FieldPath = ("settable", name)
        if "default" in spec:
            continue
        value: Any = doc.data["presets"]["reference"]
        for key in spec["path"].split("."):
            if not isinstance(value, dict) or key not in value:
                doc.problem((*where, "path"), f"presets.reference has no '{spec['path']}'")
                break
            value = value[key]
        else:
            if fault := _setting_problem(spec, value):
                doc.problem(("presets", "reference", *spec["path"].split(".")), fault)
        if spec["path"] == "engine.name" and set(spec.get("choices", ())) != set(engines):
            doc.problem(where, f"its choices must be the engines of this case: {', '.join(engines)}")


def _setting_problem(spec: Any, value: Any) -> str | None:
    """Why a value is not allowed by an entry of `settable`, with what to write if YAML read it as another type."""
    fault = setting_fault(spec, value)
    return None if fault is None else f"{value!r} {fault}{type_remedy(spec['type'], value)}"


def _check_derivation(doc: Document, derivation: Any, where: FieldPath) -> None:
    """That it has one form with all its parts, that its paths exist, and that its format takes as many values."""
    if isinstance(derivation, str):
        _check_config_path(doc, derivation, where)
        return
    if derivation.keys() not in _FORMS and derivation.keys() - {"else"} != {"by", "values"}:
        doc.problem(where, "needs one of value, one_of, text and of, by and values, product, difference, quotient")
        return
    if "by" in derivation:
        _check_config_path(doc, derivation["by"], (*where, "by"))
    if "text" in derivation:
        found = len(_CONVERSION.findall(derivation["text"].replace("%%", "")))
        if found != len(derivation["of"]):
            doc.problem((*where, "text"), f"has {found} conversions for {len(derivation['of'])} values")
    for key in ("of", "values", "product", "difference", "quotient"):
        part = derivation.get(key, ())
        for step, inner in part.items() if isinstance(part, dict) else enumerate(part):
            _check_derivation(doc, inner, (*where, key, step))
    if "else" in derivation:
        _check_derivation(doc, derivation["else"], (*where, "else"))


def _check_config_path(doc: Document, path: str, where: FieldPath) -> None:
    value: Any = {**doc.data["presets"]["reference"], **_RESOLVED}
    if path == "data.source":  # made of `data.default` and the options of a run
        return
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            doc.problem(where, f"a resolved configuration has no '{path}'")
            return
        value = value[key]


def _check_overrides(doc: Document, changed: Any, reference: Any, path: FieldPath) -> None:
    doc.require_known(".".join(map(str, path)), "key of presets.reference", reference)
    for key in sorted(changed.keys() & reference.keys()):
        where, value, other = (*path, key), changed[key], reference[key]
        if isinstance(value, dict) != isinstance(other, dict):
            doc.problem(where, "is a mapping either here or in presets.reference, and a value in the other")
        elif isinstance(value, dict):
            _check_overrides(doc, value, other, where)


def _check_devices(docs: Sequence[Document]) -> None:
    """Each device's file name; that its names are its alone; that every number is given, or said to be missing."""
    names: dict[str, str] = {}
    for doc in docs:
        _check_file_name(doc, "id")
        doc.require_unique("match", "device", names)
        stated = {*doc.data["peaks"], *doc.data.get("limits", ())}
        missing = [*doc.data.get("not_published", ()), *doc.data.get("not_found", ())]
        if wrong := [name for name in DEVICE_NUMBERS if (name in stated) + missing.count(name) != 1]:
            places = "peaks or limits, not_published or not_found"
            doc.problem(("peaks",), f"{', '.join(wrong)}: each must be listed once, under {places}")


def _check_limits(limits: Document, devices: Sequence[Document]) -> None:
    """That an id means one limit; that none fails what it would pass; that devices override limits that exist."""
    limits.require_unique("limits.*.id", "limit")
    for place, limit in enumerate(limits.data["limits"]):
        if limit.get("fail_below", 0) > limit["inconclusive_below"]:
            limits.problem(
                ("limits", place, "fail_below"), "is above inconclusive_below, from which on a number passes"
            )
    known = {limit["id"] for limit in limits.data["limits"]}
    for doc in devices:
        doc.require_known("acceptance", "limit", known)


def _check_stacks(docs: Sequence[Document], case_names: Collection[str], device_ids: Collection[str]) -> None:
    """Each stack's file name, cases and devices; that a name or alias means one stack only."""
    owner = {doc.data["name"]: doc for doc in docs}
    for doc in docs:
        _check_file_name(doc, "name")
        doc.require_known("does_not_run", "case", case_names)
        doc.require_known("devices", "device", device_ids)
        base = doc.data["base"]
        if base is not None and base["image"] is None and base["obtain"] is None:
            doc.problem(("base", "obtain"), "missing: a stack without a public base says how to get one")
        _check_packages(doc)
        for path, alias in doc.names("aliases"):
            first = owner.setdefault(alias, doc)
            if first is not doc:
                doc.problem(path, f"'{alias}' already means the stack '{first.data['name']}'")


def _check_packages(doc: Document) -> None:
    """That each package is installed in one way."""
    first: dict[str, str] = {}
    for section in ("packages", "optional", "compiled", "other_python"):
        for index, entry in enumerate(doc.data["build"].get(section, ())):
            named = entry if isinstance(entry, str) else entry["name"]
            name = canonicalize_name(named.partition("==")[0].partition("[")[0])
            if name in first:
                doc.problem(("build", section, index), f"'{name}' is already under build.{first[name]}; remove one")
            first.setdefault(name, section)


def _check_needs(cases: Sequence[Document], stacks: Sequence[Document]) -> None:
    """Each stack that runs a case states, for every package that the case needs, whether and how it provides it."""
    for case in cases:
        for stack in stacks:
            if _refuses(case, stack):
                continue
            known = _packages_for_cases(stack.data["build"])
            for path, name in case.names("needs"):
                if name not in known:
                    places = "compiled, optional, other_python, from_base or left_out"
                    case.problem(path, f"the stack {stack.data['name']} has no '{name}' under {places}")


def _packages_for_cases(build: Any) -> set[str]:
    names = [package["name"] for package in (*build["compiled"], *build.get("other_python", ()))]
    names += [line.partition("==")[0] for line in build.get("optional", ())]
    return {canonicalize_name(name) for name in (*names, *build["from_base"], *build["left_out"])}


def _check_claims(doc: Document, case: Document | None, stacks: Mapping[str, Document]) -> None:
    """The claims of a file: each one's sources, its stack, and where the case is known what it says of it."""
    _check_file_name(doc, "case")
    if (doc.data.get("source") is None) == ("sources" not in doc.data):
        doc.problem((), "needs either `source`, one for all claims, or `sources`, one of which each claim names")
    sources = doc.data.get("sources", {})
    doc.require_known("claims.*.source", "entry of `sources`", sources)
    doc.require_known("claims.*.metrics.*.source", "entry of `sources`", sources)
    for index, claim in enumerate(doc.data["claims"]):
        here: FieldPath = ("claims", index)
        if not claim["id"].startswith(f"{doc.data['case']}/"):
            doc.problem((*here, "id"), f"'{claim['id']}' must start with '{doc.data['case']}/'")
        if "sources" in doc.data and claim.get("source") is None:
            doc.problem((*here, "source"), f"missing; known: {', '.join(sorted(sources)) or 'none'}")
        _check_stack(doc, claim, here, case, stacks.get(claim["stack"]))
        if case is not None:
            _check_values(doc, claim, here, case.data)
    if case is not None:
        of, metrics = f"of {case.data['name']}", [metric["name"] for metric in case.data["metrics"]]
        doc.require_known("claims.*.run.set", f"settable {of}", case.data["settable"])
        doc.require_known("claims.*.conditions", f"condition {of}", _conditions(case.data))
        doc.require_known("claims.*.metrics.*.name", f"metric {of}", metrics)


def _check_stack(doc: Document, claim: Any, here: FieldPath, case: Document | None, stack: Document | None) -> None:
    """That a claim has either a stack that runs its case, or the reason why it has no stack."""
    name = claim["stack"]
    if name is None and claim.get("no_stack") is None:
        doc.problem((*here, "no_stack"), "missing: a claim without a stack says why there is none")
    elif name is not None and claim.get("no_stack") is not None:
        doc.problem((*here, "no_stack"), f"there is a stack, '{name}'; remove one of the two")
    elif case is not None and stack is not None and _refuses(case, stack):
        doc.problem((*here, "stack"), f"the stack '{name}' does not run '{case.data['name']}'")


def _check_values(doc: Document, claim: Any, here: FieldPath, case: Any) -> None:
    """That a run, its settings and its metrics are as the case declares them, and that no condition is missing."""
    if claim["run"]["precision"] not in case["precisions"]:
        text = f"'{claim['run']['precision']}' is not allowed; {case['name']} has {', '.join(case['precisions'])}"
        doc.problem((*here, "run", "precision"), text)
    for name, value in claim["run"]["set"].items():
        if name in case["settable"] and (fault := _setting_problem(case["settable"][name], value)):
            doc.problem((*here, "run", "set", name), fault)
    if missing := sorted(_needed(case, claim) - set(claim["conditions"])):
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
        printed = metric.get("printed")
        if printed is not None and printed_number(printed) != Decimal(repr(metric["value"])):
            doc.problem((*where, "printed"), f"'{printed}' is not the value {metric['value']}")


def _needed(case: Any, claim: Any) -> set[str]:
    """The conditions that a claim states; of a case that measures, none on which only metrics of others depend."""
    if case.get("kind") != MEASURE:
        return _conditions(case)
    on = {metric["name"]: {*metric["depends_on"]} for metric in case["metrics"]}
    own = set().union(*(on.get(metric["name"], ()) for metric in claim["metrics"]))
    others = set().union(*on.values()) - own
    return {name for group, names in case["condition_groups"].items() if group not in others for name in names}


def _conditions(case: Any) -> set[str]:
    return {name for group in case["condition_groups"].values() for name in group}


def _refuses(case: Document, stack: Document) -> bool:
    """Whether the case or the stack says that the one does not run on the other."""
    return stack.data["name"] in case.data["does_not_run"] or case.data["name"] in stack.data["does_not_run"]


def _check_file_name(doc: Document, key: str) -> None:
    """Note where the name in a manifest is not that of its file."""
    if doc.path.stem != doc.data[key]:
        doc.problem((key,), f"'{doc.data[key]}' must equal the file's name, '{doc.path.stem}'")
