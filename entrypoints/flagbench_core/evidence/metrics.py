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
from flagbench_core.evidence.section import INFER, MEASURE, TRAIN, WINDOW, Section, Span, Stretch
from flagbench_core.evidence.slow_devices import slowest_device
from flagbench_core.stats import summary
from flagbench_core.stats.within import METHOD, MIN_STEPS, WithinRun, within_run

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
    metrics: list[dict[str, Any]]
    """Those that are computed already, in the order of METRICS."""

    @property
    def ceiling(self) -> float | None:
        """FLOP/s of the matrix product that the slowest rank measured."""
        return min(self.section.ceilings, default=None)


def metrics(run: Run) -> list[dict[str, Any]]:
    """The record's `metrics`; those that the run does not have, or that are not finite, are left out."""
    for make in METRICS:
        for computed in make(run):
            if computed is not None and math.isfinite(computed["value"]):
                run.metrics.append(computed)
    return run.metrics


def metric(name: str, value: float, unit: str, scope: str = "job", **more: Any) -> dict[str, Any]:
    """An entry of `metrics`; None values are omitted."""
    fields = {"name": name, "value": value, "unit": unit, "scope": scope, **more}
    return {key: field for key, field in fields.items() if field is not None}


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
    seconds = [block / MICRO for block in micro]
    within = _rate_interval(amounts, seconds, steps, shares)
    rates = [amount / time for amount, time in zip(amounts, seconds) if time]
    computed = metric(
        name,
        math.fsum(amounts) * MICRO / sum(micro),
        unit + "/s",
        n=steps,
        stdev=summary.stdev(rates),
    )
    if within.interval is not None:
        computed["ci95"] = list(within.interval)
        computed["ci_method"] = METHOD
    if within.refusal is not None:
        computed["ci_reason"] = str(within.refusal)
    computed["note"] = note
    return computed


def _rate_interval(
    amounts: Sequence[float], seconds: Sequence[float], steps: int, shares: Sequence[Sequence[float]]
) -> WithinRun:
    """The interval of a rate, or why there is none: from micro-batches if there are enough, else from steps."""
    of_steps = within_run(amounts, seconds, steps)
    if len(shares) != len(seconds):
        return of_steps
    part_amounts: list[float] = []
    part_seconds: list[float] = []
    for amount, time, step_shares in zip(amounts, seconds, shares):
        part_amounts += [amount / len(step_shares)] * len(step_shares)
        part_seconds += [time * share for share in step_shares]
    of_parts = within_run(part_amounts, part_seconds)
    refusal = of_parts.refusal
    if refusal is None:
        return of_parts
    if refusal.kind == "short":
        return of_steps
    further_steps = -(-refusal.further_steps // len(shares[0]))
    text = refusal.text.replace("steps", "micro-batches")
    return of_parts._replace(refusal=refusal._replace(text=text, further_steps=further_steps))


def micro_batch_shares(stretch: Stretch) -> list[list[float]]:
    """The share of its step's time that each micro-batch of a short window took, by step; empty if not measured.

    In a pipeline, the first and last micro-batches of a step take another time than the others. So each is taken
    relative to the mean of its place over the n steps; for that mean, its deviation is widened by sqrt(n / (n - 1)).
    """
    steps: list[Sequence[int]] = []
    for span in stretch.spans:
        steps += span.micro_batches
    if len(steps) != stretch.steps or len(steps) < 2 or not all(map(all, steps)):
        return []
    means = [sum(times) / len(steps) for times in zip(*steps)]
    widen = math.sqrt(len(steps) / (len(steps) - 1))
    shares = []
    for step in steps:
        relative = [max(0.0, 1 + (time / mean - 1) * widen) for time, mean in zip(step, means)]
        total = sum(relative)
        shares.append([time / total for time in relative])
    return shares


def entire(name: str, unit: str, amount: float, micro: int, note: str) -> dict[str, Any] | None:
    """The total amount over the total time, as a metric; None if it took no time."""
    if not micro:
        return None
    return metric(name, amount * MICRO / micro, unit + "/s", n=1, note=note)


def train_rates(run: Run) -> Iterator[Entry]:
    """p_core, p_train and their published counterparts, in the case's unit; per device too if the unit is tokens."""
    section, facts, steady = run.section, run.facts, run.window
    if facts.kind != TRAIN or steady is None:
        return
    unit = facts.unit
    stretch, covered = steady.stretch, "the window"
    durations: Sequence[int] = ()
    if facts.complete and section.durations.get(TRAIN):
        stretch, covered = section.stretch(), "all steps"
        durations = section.durations[TRAIN]
    steps, amounts = stretch.steps, stretch.amount(unit)
    published = _published_work(stretch, facts)
    rank = stretch.slowest(OWN)
    train_micro, published_micro = stretch.time(OWN, rank), stretch.time(PUBLISHED, 0)
    train_note = f"time of rank {rank}, the slowest rank, without evaluations and checkpoints; over {covered}"
    host = f"{PUBLISHER}rank 0's host clock, batches counted as full: "
    wait_note = f"{host}data wait, copy to device and step, over {covered}"
    window = steady.stretch
    shares = micro_batch_shares(window)
    yield rate("p_core", unit, window.amount(unit), steady.micro, window.steps, _core_note(steady), shares)
    host_micro = stretch.time(HOST, 0)
    yield rate("p_core_host", unit, published, host_micro, steps, f"{host}step, over {covered}", shares)
    yield rate("p_train", unit, amounts, train_micro, steps, train_note, shares)
    if unit == "tokens":
        name = "tokens_per_second_per_device"
        world = section.world
        yield _device_rate(name, amounts, train_micro, steps, train_note, shares, world)
        yield _device_rate(f"{name}_host", published, published_micro, steps, wait_note, shares, world)
    else:
        yield rate("p_train_published_count", unit, published, published_micro, steps, wait_note)
    if not durations:
        return
    note = "training including evaluations, by the slowest rank"
    yield entire("p_whole", unit, sum(amounts), max(durations), note)
    if unit != "tokens":
        note = f"{host}training including evaluations"
        yield entire("p_whole_published_count", unit, sum(published), durations[0], note)


def _device_rate(
    name: str,
    tokens: Sequence[int],
    micro: Sequence[int],
    steps: int,
    note: str,
    shares: Sequence[Sequence[float]],
    world: int,
) -> Entry:
    """A rate of tokens as one of each of `world` devices; see `rate`."""
    amounts = [amount / world for amount in tokens]
    computed = rate(name, "tokens", amounts, micro, steps, f"{note}; per device, {world} devices", shares)
    if computed is None:
        return None
    return dict(computed, scope="device")


def infer_rates(run: Run) -> Iterator[Entry]:
    """p_infer_core and p_infer_core_host, p_infer_whole of a complete run; p_val_* of the pass before."""
    section, facts = run.section, run.facts
    if facts.kind != INFER:
        return
    unit = facts.unit
    for phase in dict.fromkeys(span.phase for span in section.spans):
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
    return [amount * facts.replicas for amount in stretch.column(name, 0)]


def _core_note(steady: Window) -> str:
    return f"device time of the steps of rank {steady.rank}, the slowest rank; excluding warm-up"


def utilisation(run: Run) -> Iterator[Entry]:
    """mfu and hfu relative to the datasheet's peak, mfu_measured relative to this run's matrix product, mfu_roof to
    the fastest one of its roofs; fractions."""
    steady, peak, ceiling = run.window, run.facts.peak, run.ceiling
    if steady is None or not run.facts.counted or not steady.seconds:
        return
    seconds = steady.seconds * run.section.world
    achieved = steady.stretch.flops("executed") / seconds
    recomputed = steady.stretch.flops("recomputed") / seconds
    if peak:
        yield metric("mfu", achieved / peak, "fraction", note="executed model FLOPs, including padding")
        recomputation = "including recomputation" if recomputed else "equal to mfu: nothing is recomputed"
        yield metric("hfu", (achieved + recomputed) / peak, "fraction", note=recomputation)
        useful = steady.stretch.flops("useful") / seconds
        yield metric("mfu_useful", useful / peak, "fraction", note="without padding")
    if ceiling:
        note = "relative to the matrix product measured in this run"
        yield metric("mfu_measured", achieved / ceiling, "fraction", note=note)
        if recomputed:
            yield metric("hfu_measured", (achieved + recomputed) / ceiling, "fraction", note=note)
    names = roofs.short_roofs(run.facts.precision)[:2]
    products = [computed["value"] * 1e12 for computed in run.metrics if computed["name"] in names]
    if products:
        note = "relative to the fastest matrix product before the steps, of the middle device"
        yield metric("mfu_roof", achieved / max(products), "fraction", note=note)


def published_utilisation(run: Run) -> Iterator[Entry]:
    """mfu_published_formula: computed with the publisher's FLOPs per unit of work and the publisher's peak."""
    formula = run.facts.published
    if not formula or run.window is None or not run.facts.counted:
        return
    peak = formula.get("peaks", {}).get(run.facts.precision, formula.get("peak", run.facts.peak))
    if peak is None:
        return
    for base in run.metrics:
        if base["name"] == formula["metric"]:
            yield _utilisation_of(base, formula, peak, run.section.world)
            return


def _utilisation_of(base: Mapping[str, Any], formula: Mapping[str, Any], peak: float, world: int) -> Entry:
    """The utilisation that follows from a throughput of one device, or of all `world` devices."""
    devices = world
    if base["scope"] == "device":
        devices = 1
    scale = formula["flops_per_unit"] / peak / devices
    ci95 = None
    if "ci95" in base:
        ci95 = [bound * scale for bound in base["ci95"]]
    return metric(
        "mfu_published_formula",
        base["value"] * scale,
        "fraction",
        n=base.get("n"),
        ci95=ci95,
        ci_method=base.get("ci_method"),
        ci_reason=base.get("ci_reason"),
        note=f"{formula['id']}: {formula['metric']} x {formula['flops_per_unit']:g} FLOP / {peak:g} FLOP/s",
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
    yield _largest_peak("mem_peak", run.section.memory.get("peak", ()), used)
    allocator_peaks = run.section.memory.get("allocator_peak", ())
    yield _largest_peak("allocator_peak", allocator_peaks, "maximum sum of live tensors")


def _largest_peak(name: str, peaks: Sequence[int | None], note: str) -> Entry:
    measured = [peak for peak in peaks if peak]
    if not measured:
        return None
    return metric(name, max(measured) / GIB, "GiB", "device", n=len(measured), note=note)


def evaluated(run: Run) -> Iterator[Entry]:
    """acc, acc_as_published and the case's additional results, each from the last evaluation that has it."""
    latest: dict[str, Entry] = {}
    for evaluation in run.facts.evaluations:
        if evaluation["epoch"] < 0:  # before the training
            continue
        count = evaluation["counted"]
        if evaluation["accuracy"] is not None:
            note = f"each of {count} examples counted once"
            latest["acc"] = metric("acc", evaluation["accuracy"], "fraction", n=count, note=note)
        published = evaluation["published_accuracy"]
        if published is not None:
            note = "evaluated and counted as by the publisher; see the quirks of the case"
            latest["acc_as_published"] = metric("acc_as_published", published, "fraction", n=count, note=note)
        for extra in evaluation["extra"]:
            latest[extra["name"]] = metric(extra["name"], extra["value"], extra["unit"], note=extra["note"])
    yield from latest.values()


def final_loss(run: Run) -> Iterator[Entry]:
    """The mean of the last losses of a training, at most LOSS_TAIL; none without losses or if one is not finite."""
    if run.facts.kind != TRAIN:
        return
    tail = run.facts.losses[-LOSS_TAIL:]
    finite = [loss for loss in tail if loss is not None and math.isfinite(loss)]
    if finite and len(finite) == len(tail):
        note = f"mean training loss of the last {len(tail)} steps"
        yield metric("loss", sum(finite) / len(tail), "nats", n=len(tail), note=note)


def device_rates(run: Run) -> Iterator[Entry]:
    """The rate of each product and copy, TFLOP/s or GB/s of the middle device; the bus bandwidth of the largest
    all-reduce."""
    world = run.section.world
    for measurement in roofs.measurements(run.section):
        if measurement["name"] == roofs.ALL_REDUCE:
            factor = roofs.bus_factor(roofs.ALL_REDUCE, world)
            note = f"{measurement['bytes']} bytes over {world} ranks; factor {factor:g} of nccl-tests"
            yield _measured("all_reduce_busbw", measurement, factor, "job", note)
        elif measurement["operation"] not in roofs.COLLECTIVES and "cleared_bytes" not in measurement:
            yield _measured(measurement["name"], measurement, 1.0, "device", _device_note(measurement, world))


def published_rates(run: Run) -> Iterator[Entry]:
    """Means over all repeats and devices, as MAMF and FlagPerf's base/ count them, of all-reduce at its largest size.

    Of an all-reduce within a node, its bus bandwidth counted twice, for both directions; between nodes, counted once,
    with the factor of the devices of one node; none for one device a node, whose factor is 0.
    """
    for span in (*run.section.spans, *run.section.roofs):
        if span.measured is None:
            continue
        if "cleared_bytes" in span.measured:
            yield _published_mean(run, span, span.measured, span.phase)
        elif span.phase in roofs.PUBLISHED_MEANS:
            yield _published_mean(run, span, span.measured, f"{span.phase}_mean")


def _published_mean(run: Run, span: Span, measured: Mapping[str, Any], name: str) -> Entry:
    """The mean over all repeats and devices of one measurement; None if it has no time or no bus bandwidth.

    With all repeats that the publisher makes, a window without an interval has no `ci_reason`: a longer window would
    say no more, and only further runs give an interval.
    """
    world, operation = run.section.world, measured["operation"]
    unit, scale = "GB", 1e9
    if operation == roofs.PRODUCT:
        unit, scale = "TFLOP", 1e12
    stretch = Stretch([span], run.section.block)
    size = roofs.amount(measured) / scale
    slowest = None
    if operation not in roofs.COLLECTIVES:
        slowest = slowest_device([size * rate for rate in _operations_per_second(stretch)])
    if operation == roofs.ALL_REDUCE:
        size *= _published_bus_factor(world, run.facts.nodes)
    if not size:
        return None
    amounts = [size * count for count in stretch.amount("samples")]
    micro = add([stretch.time(DEVICE, rank) for rank in range(world)])
    computed = rate(name, unit, amounts, micro, span.steps, f"{PUBLISHER}mean over all repeats and devices")
    if computed is None:
        return None
    reason = computed.pop("ci_reason", None)
    as_many_as_published = "cleared_bytes" in measured or (run.facts.complete and span.steps >= MIN_STEPS)
    if reason and not as_many_as_published:
        computed["ci_reason"] = (
            f"{span.steps} repeats are not all that the publisher makes: `roofs --full` makes them"
        )
    if slowest is not None:
        computed["slowest_device"] = slowest
    return dict(computed, scope="device")


def _published_bus_factor(world: int, nodes: int) -> float:
    """FlagPerf's bus bandwidth of an all-reduce over its algorithm bandwidth."""
    if nodes == 1:
        return 2 * roofs.bus_factor(roofs.ALL_REDUCE, world)
    return roofs.bus_factor(roofs.ALL_REDUCE, world // nodes)


def _operations_per_second(stretch: Stretch) -> list[float]:
    """The mean of each rank; empty if one of them took no time."""
    counts = [sum(stretch.column("samples", rank)) for rank in range(stretch.world)]
    micro = [stretch.rank_time(DEVICE, rank) for rank in range(stretch.world)]
    if not all(micro):
        return []
    return [count * MICRO / time for count, time in zip(counts, micro)]


def _measured(name: str, measurement: Mapping[str, Any], factor: float, scope: str, note: str) -> Entry:
    """A measurement as a metric, its rates multiplied by `factor`."""
    scale, unit = 1e9, "GB/s"
    if measurement["unit"] == "FLOP/s":
        scale, unit = 1e12, "TFLOP/s"
    ci95 = ci_method = ci_reason = None
    if measurement["ci95"]:
        ci95 = [bound * factor / scale for bound in measurement["ci95"]]
        ci_method = roofs.INTERVAL
    elif measurement["steady"]:
        ci_reason = "the repeats are in blocks too few for one"
    else:
        ci_reason = "the last repeats were not steady"
    return metric(
        name,
        measurement["rate"] * factor / scale,
        unit,
        scope,
        n=measurement["repeats"],
        stdev=measurement["stdev"] * factor / scale,
        ci95=ci95,
        ci_method=ci_method,
        ci_reason=ci_reason,
        slowest_device=slowest_device([rate * factor / scale for rate in measurement.get("devices", ())]),
        note=note,
    )


def _device_note(measurement: Mapping[str, Any], world: int) -> str:
    if "shape" in measurement:
        note = f"{' x '.join(map(str, measurement['shape']))}; median of its repeats"
    else:
        note = f"{measurement['bytes']} bytes; median of its repeats"
    if world > 1:
        note += f", of the middle one of {world} devices"
    return note


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
