"""Every metric of a record, each from integers of the evidence; what is timed: rank/train_loop.py and infer_loop.py.

A metric is a function of a run that is listed in METRICS, and a line in the manifest of each case that has it, which
says what its value depends on. An image computes its records with these functions, and the host verifies them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Dict, NamedTuple, Optional

from flagbench_core.evidence import roofs
from flagbench_core.evidence.columns import MICRO, add
from flagbench_core.evidence.section import INFER, MEASURE, TRAIN, WINDOW, Section, Stretch
from flagbench_core.evidence.slow_devices import slowest_device
from flagbench_core.stats import summary
from flagbench_core.stats.within import METHOD, MIN_STEPS, within_run

GIB = 1024.0**3
LOSS_TAIL = 50
PUBLISHER = "as published: "
DEVICE = ("device",)
"""What p_core counts of a step."""
OWN = ("data_wait", "to_device", "host", "after")
"""What p_train counts of a step: a rank's time from one step to the next."""
PUBLISHED = ("data_wait", "to_device", "host")
"""What the publishers' p_train counts: their clocks stop when the host finishes the step."""
HOST = ("host",)
"""What the publishers' p_core counts."""


Entry = Optional[Dict[str, Any]]
"""Of a record's `metrics`; None for one that the run does not have."""


class Facts(NamedTuple):
    """What the numbers of a record depend on besides its evidence: configuration, manifests, how the run went."""

    kind: str  # one of KINDS
    unit: str  # samples or tokens
    replicas: int  # data-parallel replicas: the publisher multiplies one rank's work by them
    complete: bool  # the published run, from its first step to its end
    precision: str
    published: Mapping[str, Any] | None  # the publisher's formula of utilisation; None if it does not apply
    peak: float | None  # of a device, FLOP/s
    device_kind: str
    evaluations: Sequence[Mapping[str, Any]]
    losses: Sequence[float | None]  # the last losses of the job, at most LOSS_TAIL; empty if a case has none
    stages: int = 1  # of the pipeline
    counted: bool = True  # whether the case has a formula of FLOPs
    nodes: int = 1


class Window(NamedTuple):
    """The steps that p_core is computed from, as its slowest rank took them."""

    stretch: Stretch
    rank: int
    micro: list[int]  # the device time of each block, microseconds

    @property
    def seconds(self) -> float:
        """Device time of the slowest rank."""
        return sum(self.micro) / MICRO


def window_of(stretch: Stretch) -> Window | None:
    """The steps of a stretch, timed by its slowest rank; None if it has no steps."""
    if not stretch.steps:
        return None
    rank = stretch.slowest(DEVICE)
    return Window(stretch, rank, stretch.time(DEVICE, rank))


class Run(NamedTuple):
    """What metrics follow from."""

    section: Section
    facts: Facts
    window: Window | None
    """None for a run that ended in its warm-up."""
    found: list[dict[str, Any]]
    """The metrics before this one."""

    @property
    def ceiling(self) -> float | None:
        """FLOP/s of the matrix product that the slowest rank measured."""
        return min(self.section.ceilings, default=None)


def metrics(run: Run) -> list[dict[str, Any]]:
    """The record's `metrics`; those that the run does not have, or that are not finite, are left out."""
    for make in METRICS:
        for entry in make(run):
            if entry is not None and math.isfinite(entry["value"]):
                run.found.append(entry)
    return run.found


def metric(name: str, value: float, unit: str, scope: str = "job", **more: Any) -> dict[str, Any]:
    """An entry of `metrics`; None values are omitted."""
    entry = {"name": name, "value": value, "unit": unit, "scope": scope}
    entry.update({key: item for key, item in more.items() if item is not None})
    return entry


def rate(
    name: str,
    unit: str,
    amounts: Sequence[float],
    micro: Sequence[int],
    steps: int,
    note: str,
    shares: Sequence[Sequence[float]] = (),
) -> dict[str, Any] | None:
    """Amounts over times of blocks as a metric, with its within-run interval or why it has none; None if they took
    no time. `shares`: of each step's time, those of its micro-batches; the interval is then from these."""
    if not sum(micro):
        return None
    seconds = [value / MICRO for value in micro]
    found = within_run(amounts, seconds, steps)
    if len(shares) == len(seconds):
        parts = [amount / len(of) for amount, of in zip(amounts, shares) for _ in of]
        finer = within_run(parts, [value * share for value, of in zip(seconds, shares) for share in of])
        why = finer.refusal
        if why is None:
            found = finer
        elif why.kind != "short":
            more = -(-why.further_steps // len(shares[0]))
            text = why.text.replace("steps", "micro-batches")
            found = finer._replace(refusal=why._replace(text=text, further_steps=more))
    timed = [index for index, value in enumerate(seconds) if value]
    return metric(
        name,
        math.fsum(amounts) * MICRO / sum(micro),
        unit + "/s",
        n=steps,
        stdev=summary.stdev([amounts[index] / seconds[index] for index in timed]),
        ci95=list(found.interval) if found.interval else None,
        ci_method=METHOD if found.interval else None,
        ci_reason=None if found.refusal is None else str(found.refusal),
        note=note,
    )


def micro_batch_shares(stretch: Stretch) -> list[list[float]]:
    """The share of its step's time that each micro-batch of a short window took, by step; empty if not measured.

    In a pipeline, the first and last micro-batches of a step take another time than the others. So each is taken
    relative to the mean of its place over the n steps; for that mean, its deviation is widened by sqrt(n / (n - 1)).
    """
    steps = [of for span in stretch.spans for of in span.micro_batches]
    if len(steps) != stretch.steps or len(steps) < 2 or not all(map(all, steps)):
        return []
    means, widen = [sum(of) / len(steps) for of in zip(*steps)], math.sqrt(len(steps) / (len(steps) - 1))
    relative = [[max(0.0, 1 + (value / mean - 1) * widen) for value, mean in zip(of, means)] for of in steps]
    return [[value / sum(of) for value in of] for of in relative]


def entire(name: str, unit: str, amount: float, micro: int, note: str) -> dict[str, Any] | None:
    """The total amount over the total time, as a metric; None if it took no time."""
    return metric(name, amount * MICRO / micro, unit + "/s", n=1, note=note) if micro else None


def train_rates(run: Run) -> Iterator[Entry]:
    """p_core, p_train and their published counterparts, in the case's unit; per device too if the unit is tokens."""
    section, facts, steady = run.section, run.facts, run.window
    if facts.kind != TRAIN or steady is None:
        return
    unit, world = facts.unit, section.world
    trained = section.durations.get(TRAIN) if facts.complete else None
    stretch = section.stretch() if trained else steady.stretch
    span = "all steps" if trained else "the window"
    n, amounts = stretch.steps, stretch.amount(unit)
    published = _published_work(stretch, facts)
    rank = stretch.slowest(OWN)
    own, theirs = stretch.time(OWN, rank), stretch.time(PUBLISHED, 0)
    train = f"time of rank {rank}, the slowest rank, without evaluations and checkpoints; over {span}"
    host = f"{PUBLISHER}rank 0's host clock, batches counted as full: step, over {span}"
    wait = f"{PUBLISHER}rank 0's host clock, batches counted as full: data wait, copy to device and step, over {span}"
    window = steady.stretch
    shares = micro_batch_shares(window)
    yield rate("p_core", unit, window.amount(unit), steady.micro, window.steps, _core_note(steady), shares)
    yield rate("p_core_host", unit, published, stretch.time(HOST, 0), n, host, shares)
    yield rate("p_train", unit, amounts, own, n, train, shares)
    if unit == "tokens":
        for name, tokens, micro, note in (
            ("tokens_per_second_per_device", amounts, own, train),
            ("tokens_per_second_per_device_host", published, theirs, wait),
        ):
            each = [value / world for value in tokens]
            found = rate(name, unit, each, micro, n, f"{note}; per device, {world} devices", shares)
            yield found and dict(found, scope="device")
    else:
        yield rate("p_train_published_count", unit, published, theirs, n, wait)
    if trained:
        note = "training including evaluations, by the slowest rank"
        yield entire("p_whole", unit, sum(amounts), max(trained), note)
        if unit != "tokens":
            note = PUBLISHER + "rank 0's host clock, batches counted as full: training including evaluations"
            yield entire("p_whole_published_count", unit, sum(published), trained[0], note)


def infer_rates(run: Run) -> Iterator[Entry]:
    """p_infer_core and p_infer_core_host, p_infer_whole of a complete run; p_val_* of the pass before."""
    section, facts = run.section, run.facts
    unit = facts.unit
    for phase in dict.fromkeys(span.phase for span in section.spans) if facts.kind == INFER else ():
        steady = window_of(section.stretch(phase, WINDOW))
        if steady is None:
            continue
        stretch, n, note = steady.stretch, steady.stretch.steps, _core_note(steady)
        amounts, useful = stretch.amount(unit), stretch.amount("tokens_useful")
        host = PUBLISHER + "rank 0's host clock, batches counted as full: step; excluding warm-up"
        yield rate(f"p_{phase}_core", unit, amounts, steady.micro, n, note)
        yield rate(f"p_{phase}_core_host", unit, _published_work(stretch, facts), stretch.time(HOST, 0), n, host)
        if unit == "tokens" and useful != amounts:
            note += "; padding is not counted"
            yield rate(f"p_{phase}_core_useful", unit, useful, steady.micro, n, note)
        if facts.complete and phase in section.durations:
            total, longest = section.stretch(phase).total(unit), max(section.durations[phase])
            note = "the whole pass including loading, by the slowest rank"
            yield entire(f"p_{phase}_whole", unit, total, longest, note)


def _published_work(stretch: Stretch, facts: Facts) -> list[int]:
    """The work of each block as publishers count it: that of rank 0 by the number of replicas, and every batch of
    samples as full."""
    name = "tokens" if facts.unit == "tokens" else "samples_published"
    return [value * facts.replicas for value in stretch.column(name, 0)]


def _core_note(steady: Window) -> str:
    return f"device time of the steps of rank {steady.rank}, the slowest rank; excluding warm-up"


def utilisation(run: Run) -> Iterator[Entry]:
    """mfu and hfu relative to the datasheet's peak, mfu_measured relative to this run's matrix product, mfu_roof to
    the fastest one of its roofs; fractions."""
    steady, peak, ceiling = run.window, run.facts.peak, run.ceiling
    if steady is None or not run.facts.counted or not steady.seconds:
        return
    seconds = steady.seconds * run.section.world
    achieved, recomputed = (steady.stretch.flops(name) / seconds for name in ("executed", "recomputed"))
    if peak:
        recomputation = "including recomputation" if recomputed else "equal to mfu: nothing is recomputed"
        yield metric("mfu", achieved / peak, "fraction", note="executed model FLOPs, including padding")
        yield metric("hfu", (achieved + recomputed) / peak, "fraction", note=recomputation)
        useful = steady.stretch.flops("useful") / seconds
        yield metric("mfu_useful", useful / peak, "fraction", note="without padding")
    if ceiling:
        note = "relative to the matrix product measured in this run"
        yield metric("mfu_measured", achieved / ceiling, "fraction", note=note)
        if recomputed:
            yield metric("hfu_measured", (achieved + recomputed) / ceiling, "fraction", note=note)
    names = roofs.short_roofs(run.facts.precision)[:2]
    if products := [entry["value"] * 1e12 for entry in run.found if entry["name"] in names]:
        note = "relative to the fastest matrix product before the steps, of the middle device"
        yield metric("mfu_roof", achieved / max(products), "fraction", note=note)


def published_utilisation(run: Run) -> Iterator[Entry]:
    """mfu_published_formula: computed with the publisher's FLOPs per unit of work and the publisher's peak."""
    formula = run.facts.published
    base = next((entry for entry in run.found if formula and entry["name"] == formula["metric"]), None)
    if formula is None or base is None or run.window is None or not run.facts.counted:
        return
    share = 1 if base["scope"] == "device" else run.section.world
    peak = formula.get("peaks", {}).get(run.facts.precision, formula.get("peak", run.facts.peak))
    if peak is None:
        return
    scale = formula["flops_per_unit"] / peak / share
    note = "{}: {} x {:g} FLOP / {:g} FLOP/s".format(
        formula["id"], formula["metric"], formula["flops_per_unit"], peak
    )
    yield metric(
        "mfu_published_formula",
        base["value"] * scale,
        "fraction",
        n=base.get("n"),
        ci95=[bound * scale for bound in base["ci95"]] if "ci95" in base else None,
        ci_method=base.get("ci_method"),
        ci_reason=base.get("ci_reason"),
        note=note,
    )


def e2e_time(run: Run) -> Iterator[Entry]:
    """The whole published run, without imports."""
    if run.facts.complete and run.facts.kind != MEASURE and "e2e" in run.section.timing:
        yield metric("e2e_time", run.section.timing["e2e"] / MICRO, "s", n=1, note="excluding imports")


def memory(run: Run) -> Iterator[Entry]:
    """mem_peak and allocator_peak, GiB, maximum over devices."""
    used = "in use on the device when training ended"
    if run.facts.device_kind == "cpu":
        used = "resident set of the largest rank"
    for name, kind, note in (
        ("mem_peak", "peak", used),
        ("allocator_peak", "allocator_peak", "maximum sum of live tensors"),
    ):
        peaks = [peak for peak in run.section.memory.get(kind, ()) if peak]
        if peaks:
            yield metric(name, max(peaks) / GIB, "GiB", "device", n=len(peaks), note=note)


def evaluated(run: Run) -> Iterator[Entry]:
    """acc, acc_as_published and the case's additional results, each from the last evaluation that has it."""
    found: dict[str, Entry] = {}
    for evaluation in run.facts.evaluations:
        if evaluation["epoch"] < 0:  # of the untrained model
            continue
        count = evaluation["counted"]
        for name, value, note in (
            ("acc", evaluation["accuracy"], f"each of {count} examples counted once"),
            (
                "acc_as_published",
                evaluation["published_accuracy"],
                "evaluated and counted as by the publisher; see the quirks of the case",
            ),
        ):
            if value is not None:
                found[name] = metric(name, value, "fraction", n=count, note=note)
        for extra in evaluation["extra"]:
            found[extra["name"]] = metric(extra["name"], extra["value"], extra["unit"], note=extra["note"])
    yield from found.values()


def final_loss(run: Run) -> Iterator[Entry]:
    """The mean of the last losses of a training, at most LOSS_TAIL; none without losses or if one is not finite."""
    tail = run.facts.losses[-LOSS_TAIL:] if run.facts.kind == TRAIN else ()
    finite = [loss for loss in tail if loss is not None and math.isfinite(loss)]
    if finite and len(finite) == len(tail):
        note = f"mean training loss of the last {len(tail)} steps"
        yield metric("loss", sum(finite) / len(tail), "nats", n=len(tail), note=note)


def device_rates(run: Run) -> Iterator[Entry]:
    """The rate of each product and copy, TFLOP/s or GB/s of the middle device; the bus bandwidth of the largest
    all-reduce."""
    world = run.section.world
    for each in roofs.measurements(run.section):
        if each["name"] == roofs.ALL_REDUCE:
            factor = roofs.bus_factor(roofs.ALL_REDUCE, world)
            note = f"{each['bytes']} bytes over {world} ranks; factor {factor:g} of nccl-tests"
            yield _measured("all_reduce_busbw", each, factor, "job", note)
        elif each["operation"] not in roofs.COLLECTIVES and "cleared_bytes" not in each:
            yield _measured(each["name"], each, 1.0, "device", _device_note(each, world))


def published_rates(run: Run) -> Iterator[Entry]:
    """Means over all repeats and devices, as MAMF and FlagPerf's base/ count them, of all-reduce at its largest size.

    Of an all-reduce within a node, its bus bandwidth counted twice, for both directions; between nodes, counted once,
    with the factor of the devices of one node; none for one device a node, whose factor is 0.

    Of as many repeats as the publisher makes, no longer window says more, whatever they look like: where it gives no
    interval, only runs do, and there is no reason against that.
    """
    world, section, nodes = run.section.world, run.section, run.facts.nodes
    for span in (*section.spans, *section.roofs):
        cleared = span.measured is not None and "cleared_bytes" in span.measured
        if span.measured is None or not (cleared or span.phase in roofs.PUBLISHED_MEANS):
            continue
        kind = span.measured["operation"]
        unit, scale = ("TFLOP", 1e12) if kind == roofs.PRODUCT else ("GB", 1e9)
        stretch, size = Stretch([span], section.block), roofs.amount(span.measured) / scale
        micro = add([stretch.time(DEVICE, rank) for rank in range(world)])
        slowest = None
        if kind not in roofs.COLLECTIVES:
            slowest = slowest_device([size * rate for rate in _operations_per_second(stretch)])
        if kind == roofs.ALL_REDUCE:
            size *= 2 * roofs.bus_factor(kind, world) if nodes == 1 else roofs.bus_factor(kind, world // nodes)
        if not size:
            continue
        note = f"{PUBLISHER}mean over all repeats and devices"
        name = span.phase if cleared else f"{span.phase}_mean"
        found = rate(name, unit, [size * n for n in stretch.amount("samples")], micro, span.steps, note)
        if found is None:
            continue
        if found.pop("ci_reason", None) and not (cleared or (run.facts.complete and span.steps >= MIN_STEPS)):
            found["ci_reason"] = (
                f"{span.steps} repeats are not all that the publisher makes: `roofs --full` makes them"
            )
        if slowest is not None:
            found["slowest_device"] = slowest
        yield dict(found, scope="device")


def _operations_per_second(stretch: Stretch) -> list[float]:
    """The mean of each rank; empty if one of them took no time."""
    counts = [sum(stretch.column("samples", rank)) for rank in range(stretch.world)]
    micro = [stretch.rank_time(DEVICE, rank) for rank in range(stretch.world)]
    if not all(micro):
        return []
    return [count * MICRO / time for count, time in zip(counts, micro)]


def _measured(name: str, each: Mapping[str, Any], factor: float, scope: str, note: str) -> Entry:
    """A measurement as a metric, its rates multiplied by `factor`."""
    scale, unit = (1e12, "TFLOP/s") if each["unit"] == "FLOP/s" else (1e9, "GB/s")
    reason = "the repeats are in blocks too few for one" if each["steady"] else "the last repeats were not steady"
    rates = [rate * factor / scale for rate in each.get("devices", ())]
    return metric(
        name,
        each["rate"] * factor / scale,
        unit,
        scope,
        n=each["repeats"],
        stdev=each["stdev"] * factor / scale,
        ci95=[bound * factor / scale for bound in each["ci95"]] if each["ci95"] else None,
        ci_method=roofs.INTERVAL if each["ci95"] else None,
        ci_reason=None if each["ci95"] else reason,
        slowest_device=slowest_device(rates),
        note=note,
    )


def _device_note(each: Mapping[str, Any], world: int) -> str:
    shape = " x ".join(map(str, each["shape"])) if "shape" in each else f"{each['bytes']} bytes"
    return f"{shape}; median of its repeats" + (f", of the middle one of {world} devices" if world > 1 else "")


METRICS = (
    train_rates,
    infer_rates,
    device_rates,
    published_rates,
    utilisation,
    published_utilisation,
    e2e_time,
    memory,
    evaluated,
    final_loss,
)
"""In the order of the record."""
