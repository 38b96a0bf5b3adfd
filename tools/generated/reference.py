"""docs/reference/: an index with what cases share, and a page for each case (`case_page`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import get_args

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import PeakPrecision
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import published_rows
from flagbench.manifests.stack import Stack
from flagbench.report.export import table
from flagbench.verdict.rules import RULES, Consequence, Needs, Rule
from tools.generated.case_page import NOTICE, case_page

METRICS = {
    "p_core": "steps by events of the device, on the slowest rank, without warm-up",
    "p_core_host": "steps as publishers time them: rank 0's host clock, every batch counted as full",
    "p_train": "data wait, copies and steps on the slowest rank, without evaluations and checkpoints",
    "p_train_published_count": "the same by rank 0's host clock, every batch counted as full",
    "p_whole": "all of training, evaluations included, by the slowest rank",
    "p_whole_published_count": "the same by rank 0's host clock, every batch counted as full",
    "tokens_per_second_per_device": "`p_train` per device",
    "tokens_per_second_per_device_host": "the same by rank 0's host clock, with the publisher's count of tokens",
    "p_infer_core": "steps by events of the device, on the slowest rank, without warm-up",
    "p_infer_core_host": "steps by rank 0's host clock, without warm-up",
    "p_infer_core_useful": "`p_infer_core` without the tokens that are padding",
    "p_infer_whole": "the whole pass with loading, by the slowest rank",
    "output_tokens_per_second": "generated tokens by the host's clock of the slowest rank, without warm-up",
    "total_tokens_per_second": "the same with the tokens of the prompts",
    "requests_per_second": "prompts that were answered, by the same clock",
    "latency_mean": "from handing a batch to the engine to its last token, by the same clock",
    "latency_p50": "median of the same",
    "latency_p99": "99th percentile of the same, interpolated as by numpy",
    "ttft": "median of the engine's iterations that read the prompts and give the first tokens",
    "tpot": "median of its other iterations, which give each sequence a token",
    "decode_bandwidth": "weights and cache that one device reads in such an iteration, over `tpot`",
    "decode_bandwidth_roof": "the same over the run's own `memory_bandwidth` (`--roofs`)",
    "e2e_time": "the whole published run, without imports",
    "loss": "mean of the last steps of a training; of all scored tokens in inference",
    "loss_as_published": "mean of the mean losses of all epochs",
    "val_loss": "loss on the validation set after the last epoch",
    "acc": "accuracy of the last evaluation, every example counted once",
    "acc_as_published": "the same, evaluated and counted as the publisher does",
    "f1": "F1 score of the last evaluation",
    "mem_peak": "memory in use on the device when training ends, maximum over devices",
    "allocator_peak": "largest sum of live tensors, maximum over devices",
    "mfu": "FLOPs of the model that were executed, padding included, over the device's peak",
    "mfu_useful": "the same without padding",
    "mfu_published_formula": "the publisher's FLOPs per sample or token over the publisher's peak",
    "hfu": "`mfu` with recomputation",
}
"""The meaning of each metric of the cases with a model; docs/roofs.md has those of `roofs`."""


PRECISIONS = tuple(name for name in get_args(PeakPrecision) if name != "int8")  # no case computes in int8


def reference_pages(catalog: Catalog) -> dict[str, str]:
    """The text of each page of docs/reference/, by the file's name."""
    pages = {f"{case.name}.md": case_page(case, catalog) for case in catalog.cases.values()}
    index = [*_cases(catalog), *_metrics(catalog), *_stacks(catalog), *_devices(catalog), *_rules()]
    pages["serving-rows.md"] = "\n".join([NOTICE, *_serving_rows(catalog)])
    return {"README.md": "\n".join([NOTICE, *index]), **pages}


def _cases(catalog: Catalog) -> Iterator[str]:
    yield "# Reference\n"
    yield (
        "What there is, from [manifests/](../../manifests): cases here and on a page each, then what they share. "
        "`flagbench list` prints the same, `--json` every field.\n"
    )
    yield "## Cases\n"
    rows = []
    for case in catalog.cases.values():
        claims = [claim for claim in catalog.claims.values() if claim.case == case.name]
        rows.append((f"[`{case.name}`]({case.name}.md)", case.title, f"`{case.gate}`", len(claims)))
    yield table(("case", "what it does", "the verdict is that of", "claims"), rows)
    yield "[Rows of vLLM](serving-rows.md) are only cited.\n"


def _metrics(catalog: Catalog) -> Iterator[str]:
    yield "## Metrics\n"
    yield "A rate is of the whole job unless its name has `per_device`. [Roofs](../roofs.md) has those of `roofs`.\n"
    units: dict[str, set[str]] = {}
    for case in catalog.cases.values():
        for metric in case.metrics:
            units.setdefault(metric.name, set()).add(metric.unit)
    rows = []
    for name, meaning in METRICS.items():
        if name in units:
            rows.append((f"`{name}`", " or ".join(sorted(units[name])), meaning))
    yield table(("metric", "unit", "meaning"), rows)


def _serving_rows(catalog: Catalog) -> Iterator[str]:
    yield "# Published rows of vLLM\n"
    yield (
        "What others measured with vLLM, from the [catalogue](../../manifests/catalogue). None of these rows is a "
        "claim: they are of older releases or of no release that is named, of a server, or of outputs that ended "
        "early. [`flagbench expect`](../expect.md) shows the nearest.\n"
    )
    yield (
        "A source that is a page, and not a file at a commit, has the day on which it was seen. Stored pages of "
        "vLLM's CI carry other builds' numbers, so the build in the address of a row may not be the one that it is "
        "of.\n"
    )
    rows = []
    for row in published_rows(catalog):
        if row.task != "inference" or not row.software.startswith("vLLM"):
            continue
        device = f"{row.count('devices') or ''} {row.device}".strip()
        values = [f"{value.name} {value.digits} {value.unit}" for value in row.metrics]
        shape = f"{row.batch}; {row.text('sequence_length')}"
        rows.append(
            (f"`{row.id}`", row.model, device, shape, ", ".join(values), row.software, row.remarks, row.citation)
        )
    columns = ("row", "model", "devices", "batch; lengths", "published", "software", "conditions", "source")
    yield table(columns, rows)


def _stacks(catalog: Catalog) -> Iterator[str]:
    yield "## Stacks\n"
    yield "A manifest says why a package is compiled or left out; the others come from [locks](../locks.md).\n"
    rows = []
    for stack in catalog.stacks.values():
        link = f"[`{stack.name}`](../../manifests/stacks/{stack.name}.yaml)"
        names = ", ".join([link, *(f"`{alias}`" for alias in stack.aliases if alias != stack.name)])
        compiled = ", ".join(f"{package.name} {package.version}" for package in stack.build.compiled)
        # A package that the base has is kept, and left out where the base lacks it.
        left_out = ", ".join(name for name in stack.build.left_out if name not in stack.build.from_base)
        rows.append((names, stack.title, _base(stack), stack.python, compiled, left_out))
    yield table(("stack", "what", "base image", "Python", "compiled from source", "left out"), rows)


def _base(stack: Stack) -> str:
    if stack.base_image:
        return f"`{stack.base_image}`"
    if stack.base:
        return "given with `--base`"
    return "none: native runs only"


def _devices(catalog: Catalog) -> Iterator[str]:
    yield "## Devices\n"
    yield ("Peaks in TFLOP/s, dense. A device's manifest has the source of each number, and why a cell is empty.\n")
    stacks = catalog.stacks.values()
    columns = ("device", "GiB", *PRECISIONS, "GB/s", "W", "stacks")
    yield table(columns, [_device(device, stacks) for device in catalog.devices.values()])


def _device(device: DeviceModel, stacks: Collection[Stack]) -> list[str]:
    row = [f"[`{device.id}`](../../manifests/devices/{device.id}.yaml)", f"{device.memory_gib:g}"]
    for precision in PRECISIONS:
        text = ""
        if precision in device.flops:
            text = f"{device.flops[precision] / 1e12:g}"
        row.append(text)
    bandwidth, power = device.limits.memory_bandwidth, device.limits.power_watts
    bandwidth_text = power_text = ""
    if bandwidth is not None:
        bandwidth_text = f"{bandwidth.value / 1e9:g}"
    if power is not None:
        power_text = f"{power.value:g}"
    row += [bandwidth_text, power_text]
    row.append(", ".join(f"`{stack.name}`" for stack in stacks if device in stack.accelerators))
    return row


_CONSEQUENCE_TEXTS = {
    Consequence.INVALID: "`INVALID`",
    Consequence.DOUBT: "`INCONCLUSIVE`, where a slower run would have another verdict",
    Consequence.QUALIFIER: "a qualifier of the verdict",
}
"""What a finding does to the verdict, as the page says it."""
_NEEDS_TEXTS = {
    Needs.RECORD: "any record",
    Needs.RUN: "a run that ended well",
    Needs.EVIDENCE: "its evidence",
    Needs.SAMPLE: "the runs of one side",
    Needs.CLAIM: "a claim",
    Needs.BOTH: "both sides",
}
"""What rules look at, as the page says it."""


def _rules() -> Iterator[str]:
    yield "## Rules of a verdict\n"
    yield (
        "Each is for something that a broken tool, a wrong set-up or a sick machine does. `verify --json` lists the "
        "rules that found something under `findings`.\n"
    )
    groups: dict[tuple[Consequence, Needs], list[Rule]] = {}
    for needs in Needs:
        for rule in RULES.values():
            if rule.needs is needs:
                groups.setdefault((rule.consequence, needs), []).append(rule)
    for (consequence, needs), rules in groups.items():
        yield f"Rules about {_NEEDS_TEXTS[needs]}. What follows: {_CONSEQUENCE_TEXTS[consequence]}.\n"
        yield table(("rule", "what it is for", "allows"), [(f"`{r.id}`", r.why, r.tolerance) for r in rules])
