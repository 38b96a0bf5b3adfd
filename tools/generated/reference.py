"""The reference tables of the docs, generated from the manifests so that they cannot drift."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from flagbench.claims.published import reproductions
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import NOT_PUBLISHED, PeakPrecision
from flagbench.manifests.model import Case, Catalog, ClaimMetric, Quirk
from flagbench.manifests.stack import Stack
from flagbench.report.export import cell, table
from flagbench.verdict.rules import RULES, Needs

HEADER = """<!-- GENERATED from manifests/ by `make compile`. Do not edit. -->

# Reference
"""


def reference(catalog: Catalog) -> str:
    """docs/reference.md: cases, stacks, devices, the rules of a verdict and claims, as Markdown."""
    cases, stacks = catalog.cases.values(), catalog.stacks.values()
    return (
        "\n".join(
            [
                HEADER,
                *_cases(cases),
                *_stacks(stacks),
                *_devices(catalog.devices.values(), stacks),
                *_rules(),
                *_published(catalog),
                *_claims(catalog),
            ]
        )
        + "\n"
    )


def _cases(cases: Iterable[Case]) -> Iterable[str]:
    yield "## Cases\n"
    for case in cases:
        yield f"### `{case.name}`: {case.title}\n"
        yield (
            f"Counts {case.unit}; the gate is `{case.gate}`; divisions {', '.join(case.divisions)}; precisions "
            f"{', '.join(case.precisions)}. Published as {case.published.project} "
            f"`{case.published.path}` at `{case.published.commit}`.\n"
        )
        groups = {name: ", ".join(members) for name, members in case.condition_groups.items()}
        yield table(("condition group", "conditions"), groups.items())
        rows = (
            (f"`{m.name}`", m.unit, m.scope, m.better, _groups_of(case, m.depends_on), m.held_by or "")
            for m in case.metrics
        )
        yield table(("metric", "unit", "scope", "better", "depends on", "held by"), rows)
        settings = ((f"`{name}`", s["type"], _range(s)) for name, s in case.settable.items())
        yield table(("`--set`", "type", "range"), settings)
        quirks = ((q.id, q.decision, q.publisher, _here(q)) for q in case.quirks)
        yield table(("quirk", "decision", "the publisher's code", "here"), quirks)


def _here(quirk: Quirk) -> str:
    """What is done here, and what it costs."""
    if quirk.time is None:
        return quirk.here
    return f"{quirk.here} At most {100 * quirk.time.share:g} % of a step: {quirk.time.formula}"


def _rules() -> Iterable[str]:
    yield "## Rules of a verdict\n"
    yield (
        "Each is for something that a broken tool, a wrong set-up or a sick machine does. `verify --json` names them "
        "in `findings`.\n"
    )
    found = sorted(RULES.values(), key=lambda rule: [*Needs].index(rule.needs))
    rows = ((f"`{r.id}`", r.needs.value, r.why, r.tolerance, r.consequence.value) for r in found)
    yield table(("rule", "looks at", "what it is for", "allows", "what follows"), rows)


def _groups_of(case: Case, conditions: Sequence[str]) -> str:
    named = [name for name, members in case.condition_groups.items() if set(members) <= set(conditions)]
    return ", ".join(named)


_BOUNDS = {
    "minimum": "at least",
    "exclusive_minimum": "more than",
    "maximum": "at most",
    "exclusive_maximum": "less than",
}


def _range(setting: Mapping[str, Any]) -> str:
    bounds = [f"{words} {setting[key]}" for key, words in _BOUNDS.items() if key in setting]
    return ", ".join(bounds + [str(choice) for choice in setting.get("choices", [])])


def _stacks(stacks: Collection[Stack]) -> Iterable[str]:
    yield "## Stacks\n"
    rows = []
    for stack in stacks:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys((stack.name, *stack.aliases)))
        expected = ", ".join(f"{name} {version}" for name, version in stack.expects.items())
        rows.append((names, stack.title, _base(stack), stack.python, expected))
    yield table(("stack", "what", "base image", "Python", "expects"), rows)
    packages = [row for stack in stacks for row in _packages(stack)]
    yield table(("stack", "package", "where from", "why"), packages)


def _base(stack: Stack) -> str:
    return stack.base_image or ("given with --base" if stack.base else "no image: native runs only")


def _devices(devices: Iterable[DeviceModel], stacks: Collection[Stack]) -> Iterable[str]:
    """The numbers of each device; where each of them is from is in its manifest."""
    yield "## Devices\n"
    yield "Peaks in TFLOP/s, dense (int8: TOP/s). The manifest says why a cell is empty.\n"
    precisions = get_args(PeakPrecision)
    rows = []
    for device in devices:
        peaks = [f"{device.flops[name] / 1e12:g}" if name in device.flops else "" for name in precisions]
        power, bandwidth = device.limits.power_watts, device.limits.memory_bandwidth
        limits = f"{bandwidth.value / 1e9:g}" if bandwidth else "", f"{power.value:g}" if power else ""
        listed = ", ".join(f"`{stack.name}`" for stack in stacks if device in stack.accelerators)
        name = f"[`{device.id}`](../manifests/devices/{device.id}.yaml)"
        rows.append(
            (name, device.form_factor, device.architecture or "", f"{device.memory_gib:g}", *peaks, *limits, listed)
        )
    columns = ("device", "form", "architecture", "GiB", *precisions, "GB/s", "W", "stacks")
    yield table(columns, rows)


def _packages(stack: Stack) -> Iterable[tuple[str, str, str, str]]:
    """What a reader looks for in an image beside the pinned packages: the base's own, compiled, and absent ones."""
    name = f"`{stack.name}`"
    for package in stack.build.from_base:
        yield name, package, "the base", "kept as it is: nothing is installed over it"
    for made in stack.build.compiled:
        yield name, f"{made.name} {made.version}", "compiled from source", made.reason
    for other in stack.build.other_python:
        yield name, f"{other.name} {other.version}", f"a wheel for Python {other.python}", other.reason
    for package, reason in stack.build.left_out.items():
        yield name, package, "not installed", reason


def _published(catalog: Catalog) -> Iterable[str]:
    """How publishers compute utilisation, and what their formulas give for the throughputs that they print."""
    yield "## Published utilisation\n"
    yield table(("case", "utilisation, as published", "source"), _formulas(catalog))
    yield _utilisations(catalog)


def _formulas(catalog: Catalog) -> Iterator[tuple[str, str, str]]:
    for case in catalog.cases.values():
        if formula := case.published_formula:
            shown = f"{case.unit}/s of a device x {formula.flops_per_unit:g} / "
            shown += f"{formula.peak:g}" if formula.peak else "the peak of the device"
            shown += "".join(f", in {precision} / {peak:g}" for precision, peak in formula.peaks.items())
            yield f"`{case.name}`", shown, formula.source.strip()


def _utilisations(catalog: Catalog) -> str:
    rows = []
    for entry in reproductions(catalog):
        printed = catalog.claims[entry.claim].metric("mfu")
        share = f" / {entry.devices}" if entry.devices > 1 else ""
        throughput = f"{entry.throughput.value:g}{share}"
        shown = (printed.printed or printed.value) if printed else ""
        rows.append((f"`{entry.claim}`", throughput, f"{entry.computed:.5f}", shown, entry.fit.value))
    return table(("claim", "from its throughput", "computed", "printed", "by"), rows)


def _claims(catalog: Catalog) -> Iterable[str]:
    yield "## Claims\n"
    for claim in catalog.claims.values():
        yield f"### `{claim.id}`\n"
        source = claim.source
        yield (
            f"{claim.title}. {source.project}, `{source.file}` at `{source.commit}`, row “{cell(claim.row)}”. "
            f"Labelled {claim.precision.label}, executed {claim.precision.executed}: "
            f"{claim.precision.derivation.strip()}\n"
        )
        yield f"Stack: {f'`{claim.stack}`' if claim.stack else f'none: {claim.no_stack}'}.\n"
        yield table(("metric", "published", "unit"), ((f"`{m.name}`", _value(m), m.unit) for m in claim.metrics))
        if claim.aligned is not None:
            yield f"Losses aligned with the publisher's, according to the row: {'yes' if claim.aligned else 'no'}.\n"
        silent = [name for name, value in claim.conditions.items() if value == NOT_PUBLISHED]
        yield f"Not published: {', '.join(silent) or 'nothing that a metric depends on'}.\n"
        yield from (f"- **{a.id}** (`{a.field}`): {a.note.strip()}" for a in claim.anomalies)
        yield ""


def _value(metric: ClaimMetric) -> str:
    shown = metric.printed or str(metric.value)
    total = "" if metric.of is None else f" of {metric.of}"
    withdrawn = "" if metric.source is None else f" (at `{metric.source.commit}` only)"
    return f"{shown}{total}{withdrawn}"
