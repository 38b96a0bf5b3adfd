"""docs/reference/CASE.md: how a case runs, its settings, metrics, claims and quirks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.lookup import missing_module
from flagbench.manifests.model import Case, Catalog, Quirk
from flagbench.manifests.rows import Claim, Source
from flagbench.report.export import table
from flagbench_core.config import preset_of

NOTICE = "<!-- GENERATED from manifests/ by `make compile`. Do not edit. -->\n"
_AXES = {"dp": "data", "tp": "tensor", "pp": "pipeline"}


def case_page(case: Case, catalog: Catalog) -> str:
    """The page of a case as Markdown."""
    claims = [claim for claim in catalog.claims.values() if claim.case == case.name]
    parts = [NOTICE, *_run(case), *_settings(case), *_metrics(case)]
    if claims:
        parts += _claims(case, claims)
    if case.published_formula:
        parts += _utilisation(case)
    if case.quirks:
        parts += _quirks(case, catalog)
    return "\n".join(parts)


def _run(case: Case) -> Iterator[str]:
    """What the case is, and how it is run."""
    yield f"# `{case.name}`: {case.title}\n"
    yield (
        "```sh\n"
        f"flagbench run {case.name} --gpus 8\n"
        f"flagbench run {case.name}:cpu --preset tiny --gpus 2 --via native\n"
        "```\n"
    )
    if case.published.project == "none":
        yield "Nobody published a row of it.\n"
    else:
        published = case.published
        yield f"Published as {published.project} `{published.path}` at `{published.commit}`.\n"
    others = [name for name in case.precisions if name != case.default_precision]
    precisions = f"{case.default_precision} by default"
    if others:
        precisions += f"; {', '.join(others)} with `--precision`"
    yield f"- **Precisions:** {precisions}."
    for name, engine in case.engines.items():
        axes = ", ".join(_AXES[axis] for axis in engine.layout)
        text = f"{axes} parallel"
        if engine.max_nodes is not None:
            text += f", on {engine.max_nodes} node"
        yield f"- **Engine {name}:** {text}."
    if case.kind != "measure":
        yield f"- **Presets:** `reference` ({_preset(case, 'reference')}) and `tiny` ({_preset(case, 'tiny')})."
    if case.resume:
        yield "- **Checkpoints:** `--set checkpoint_every_steps=N`; see [resume a run](../resume-a-run.md)."
    for stack in case.stacks.values():
        module = missing_module(case, stack)
        if case.name in stack.runs and module is not None:
            yield f"- **Only natively on `{stack.name}`:** {module}: {stack.build.left_out[module]}."
    for name, reason in case.does_not_run.items():
        yield f"- **Not on `{name}`:** {reason}."
    yield ""


def _preset(case: Case, name: str) -> str:
    """The model of a preset, its sequences, and the data that a run takes where none are given."""
    preset = preset_of(case.presets, name)
    facts = [_value_at(preset, "model.name")]
    length = _value_at(preset, "data.sequence_length")
    if length:
        facts.append(f"{length} tokens")
    return ", ".join([*facts, f"{_value_at(preset, 'data.default')} data"])


def _settings(case: Case) -> Iterator[str]:
    """The table of `--set`, with the values of the published size."""
    yield "## Settings\n"
    preset = preset_of(case.presets, "reference")
    rows = []
    for name, setting in case.settable.items():
        value = str(setting["default"]) if "default" in setting else _value_at(preset, setting["path"])
        if "choices" in setting:
            value += f" (of {', '.join(str(choice) for choice in setting['choices'])})"
        rows.append((f"`{name}`", value))
    yield table(("`--set`", "default"), rows)


def _value_at(preset: Mapping[str, Any], path: str) -> str:
    """The value of a preset at a path, as `--set` takes it; empty where there is none."""
    value: Any = preset
    for key in path.split("."):
        value = value.get(key)
        if value is None:
            return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _metrics(case: Case) -> Iterator[str]:
    """The metrics by what they depend on."""
    yield "## Metrics\n"
    gates = f"`{case.gate}`"
    if case.further_gates:
        others = ", ".join(f"`{name}`" for name in case.further_gates)
        gates += f"; of a claim without it, that of the first that it has of {others}"
    yield f"The verdict is that of {gates}. See [what each means](README.md#metrics).\n"
    groups: dict[tuple[str, ...], list[str]] = {}
    for metric in case.metrics:
        depends_on = [name for name, members in case.condition_groups.items() if {*members} <= {*metric.depends_on}]
        groups.setdefault(tuple(depends_on), []).append(f"`{metric.name}`")
    yield table(("metrics", "depend on"), [(", ".join(names), ", ".join(on)) for on, names in groups.items()])
    yield "The conditions in these groups must equal those of a claim; `software` only qualifies the verdict.\n"
    for name, members in case.condition_groups.items():
        yield f"- {name}: {', '.join(members)}"
    yield ""
    pairs = [f"`{metric.name}` with `{metric.held_by}`" for metric in case.metrics if metric.held_by]
    if pairs:
        text = "A published value is compared with the metric of the publisher's clock or count"
        yield f"{text}: {', '.join(pairs)}.\n"


def _claims(case: Case, claims: list[Claim]) -> Iterator[str]:
    """One line a claim."""
    yield "## Claims\n"
    yield f"[Conditions, further metrics and anomalies](../../manifests/claims/{case.name}.yaml) of each row.\n"
    rows = []
    for claim in claims:
        devices = f"{claim.run.nodes}x{claim.run.gpus} {claim.conditions['device_model']}"
        precision: str = claim.precision.executed
        if claim.precision.label not in (precision, NOT_PUBLISHED):
            precision += f" (“{claim.precision.label}”)"
        rows.append((f"`{claim.id}`", devices, precision, _published_value(case, claim)))
    yield table(("claim", "nodes x devices", "precision (as printed)", "published"), rows)


def _published_value(case: Case, claim: Claim) -> str:
    """The value that decides a verdict, else the row's first; named if it is not the case's gate; with its source."""
    metric = claim.metric(case.with_gate_among(claim.metrics).gate)
    if metric is None:
        metric = claim.metrics[0]
    value = f"{metric.printed or metric.value} {metric.unit}"
    link = f"[{value}]({_address(metric.source or claim.source)})"
    if metric.name == case.gate:
        return link
    return f"{link} `{metric.name}`"


def _address(source: Source) -> str:
    """The published file at its commit; the page where there is no commit but a day."""
    if "-" in source.commit:
        return source.url
    return f"{source.url}/blob/{source.commit}/{source.file}"


def _utilisation(case: Case) -> Iterator[str]:
    """The publisher's formula."""
    formula = case.published_formula
    assert formula is not None
    yield "## Published utilisation\n"
    peak = f"{formula.peak:g} FLOP/s" if formula.peak else "the device's peak"
    for precision, peak_of_precision in formula.peaks.items():
        peak += f" ({precision}: {peak_of_precision:g})"
    yield (
        f"`mfu_published_formula`: {case.unit}/s of a device x {formula.flops_per_unit:g} FLOP / {peak}. "
        f"{formula.source.strip()}\n"
    )


def _quirks(case: Case, catalog: Catalog) -> Iterator[str]:
    """A line for each quirk, and one for those that stand on the page of another case."""
    yield "## Quirks\n"
    yield (
        "What the publisher's code does, a sentence each; "
        f"[the manifest](../../manifests/cases/{case.name}.yaml) has the rest, and what is done here.\n"
    )
    earlier = _earlier_pages(case, catalog)
    for decision, heading in (
        ("kept", "Kept, so that the work is the published one:"),
        ("corrected", "Corrected:"),
    ):
        quirks = [quirk for quirk in case.quirks if quirk.decision == decision]
        if not quirks:
            continue
        yield f"{heading}\n"
        elsewhere: dict[str, list[str]] = {}
        for quirk in quirks:
            if quirk.id in earlier:
                elsewhere.setdefault(earlier[quirk.id], []).append(f"`{quirk.id}`")
            else:
                yield f"- `{quirk.id}`: {_first_sentence(quirk.publisher)}{_cost(quirk)}"
        for name, ids in elsewhere.items():
            yield f"- as in [{name}]({name}.md#quirks): {', '.join(ids)}"
        yield ""


def _earlier_pages(case: Case, catalog: Catalog) -> dict[str, str]:
    """The first of the cases before this one that has a quirk in the same words, by the quirk's id."""
    pages: dict[str, str] = {}
    for earlier in catalog.cases.values():
        if earlier.name == case.name:
            break
        texts = {quirk.id: (quirk.decision, quirk.publisher) for quirk in earlier.quirks}
        for quirk in case.quirks:
            if texts.get(quirk.id) == (quirk.decision, quirk.publisher):
                pages.setdefault(quirk.id, earlier.name)
    return pages


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s+(?=[A-Z])", text.strip())[0]


def _cost(quirk: Quirk) -> str:
    """How much longer a step is here because of it."""
    if quirk.time is None or quirk.time.share == 0:
        return ""
    return f" Costs at most {100 * quirk.time.share:g} % of a step here."
