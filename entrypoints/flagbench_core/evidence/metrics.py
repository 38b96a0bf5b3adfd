"""Computes the metrics of a record, such as p_core or mfu, from the integers in its evidence.

Each function in METRICS computes one metric, or a few related ones, from a `Run`. The manifest of a case has a line
for each of its metrics that says on which conditions the value depends. An image computes its record with these
functions when a run ends, and `flagbench verify` computes the same numbers again on the host. What is timed in each
step is defined where it is timed: flagbench_cases/rank/train_loop.py and infer_loop.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Dict, NamedTuple, Optional

from flagbench_core.case_kinds import INFER, MEASURE, TRAIN
from flagbench_core.evidence import roofs
from flagbench_core.evidence.columns import MICRO, add
from flagbench_core.evidence.document import WINDOW, RecordEvidence, Span, StepRange
from flagbench_core.evidence.generation import Generation
from flagbench_core.evidence.slow_devices import slowest_device
from flagbench_core.stats import summary
from flagbench_core.stats.summary import median, percentile
from flagbench_core.stats.within import METHOD, MICRO_BATCHES, MIN_STEPS, WithinRun, within_run

GIB = 1024.0**3
"""Bytes per GiB."""
TERA = 1e12
GIGA = 1e9
LOSS_TAIL = 50
"""The number of last steps whose mean training loss is the metric `loss`: enough to even out single batches."""
PUBLISHER = "as published: "
"""Begins the notes of metrics that are computed as the publisher computes them."""
HOST_CLOCK = f"{PUBLISHER}rank 0's host clock, batches counted as full: "
"""Begins the notes of metrics that use the publisher's clock and count."""

DEVICE = ("device",)
"""The columns of a step's time that p_core adds up."""
OWN = ("data_wait", "to_device", "host", "after")
"""The columns that p_train adds up: all of a rank's time from the beginning of one step to that of the next."""
PUBLISHED = ("data_wait", "to_device", "host")
"""The columns that the publishers' p_train adds up: their clocks stop when the host finishes the step."""
HOST = ("host",)
"""The columns that the publishers' p_core adds up."""

Entry = Optional[Dict[str, Any]]
"""An entry of a record's `metrics` (see `metric`); None if the run does not have that metric."""


class Facts(NamedTuple):
    """What the metrics of a record depend on besides its evidence: configuration, manifests, how the run went."""

    kind: str
    """The kind of case, one of KINDS."""
    unit: str
    """The case's unit of work: `samples` or `tokens`."""
    replicas: int
    """The number of data-parallel replicas. The publisher multiplies the work of rank 0 by it."""
    complete: bool
    """Whether the run was the whole published one, from its first step to its end."""
    precision: str
    """The precision of the configuration, such as `tf32`."""
    published: Mapping[str, Any] | None
    """The publisher's formula of utilisation, as in the case's manifest; None if it does not apply to this run."""
    peak: float | None
    """The datasheet's peak of one device in this precision, FLOP/s; None if it is not known."""
    device_kind: str
    """The kind of device of the stack, such as `cuda` or `cpu`."""
    evaluations: Sequence[Mapping[str, Any]]
    """The evaluations of the run in their order, as the record's `quality` has them."""
    losses: Sequence[float | None]
    """The last losses of the job, at most LOSS_TAIL; empty if the case has none."""
    stages: int = 1
    """The number of stages of the pipeline."""
    counted: bool = True
    """Whether the case has a formula for its FLOPs."""
    nodes: int = 1
    generation: Generation | None = None
    """The lengths of a batch; None if the case generates no tokens."""


class Window(NamedTuple):
    """The steps that p_core is computed from, with the times of the slowest rank."""

    step_range: StepRange
    rank: int
    """The slowest rank: the one with the longest device time."""
    micro: list[int]
    """The slowest rank's device time of each block of steps, microseconds."""

    @property
    def seconds(self) -> float:
        """The device time of the slowest rank over the whole window, seconds."""
        return sum(self.micro) / MICRO


def window_of(step_range: StepRange) -> Window | None:
    """The steps of a range with the times of its slowest rank; None if it has no steps."""
    if not step_range.steps:
        return None
    rank = step_range.slowest(DEVICE)
    return Window(step_range, rank, step_range.time(DEVICE, rank))


class Run(NamedTuple):
    """One run: the evidence and the facts that its metrics are computed from."""

    evidence: RecordEvidence
    facts: Facts
    window: Window | None
    """None if the run ended in its warm-up."""
    metrics: list[dict[str, Any]]
    """The metrics computed so far, in the order of METRICS: some functions use the results of earlier ones."""

    @property
    def ceiling(self) -> float | None:
        """The slowest of the matmuls that the ranks measured in this run, FLOP/s; None if none was measured."""
        return min(self.evidence.ceilings, default=None)


def compute_metrics(evidence: RecordEvidence, facts: Facts) -> list[dict[str, Any]]:
    """The record's `metrics`. Metrics that the run does not have, or that are not finite, are left out."""
    window = window_of(evidence.step_range(facts.kind, WINDOW))
    run = Run(evidence, facts, window, [])
    for compute in METRICS:
        for entry in compute(run):
            if entry is not None and math.isfinite(entry["value"]):
                run.metrics.append(entry)
    return run.metrics


def metric(name: str, value: float, unit: str, scope: str = "job", **optional: Any) -> dict[str, Any]:
    """An entry of `metrics`: the four fields that all have, and those of `optional` that are not None.

    `scope` says what the value belongs to: `job`, `node` or `device`.
    """
    entry = {"name": name, "value": value, "unit": unit, "scope": scope}
    for key, field in optional.items():
        if field is not None:
            entry[key] = field
    return entry


class TimedWork(NamedTuple):
    """The work of consecutive blocks of steps, and the time that each block took."""

    amounts: Sequence[float]
    """The work of each block, in samples, tokens or another unit."""
    micro: Sequence[int]
    """The time of each block, microseconds."""
    steps: int
    """The number of steps in all blocks."""
    shares: Sequence[Sequence[float]] = ()
    """The share of its step's time that each micro-batch took, by step; empty if blocks are longer than a step or
    `micro_batch_shares` has none."""


def rate(name: str, unit: str, work: TimedWork, note: str) -> Entry:
    """The work per second as a metric; None if the work took no time.

    The metric has the interval within this run (`ci95`), or the reason why there is none (`ci_reason`).
    """
    amounts, micro = work.amounts, work.micro
    if not sum(micro):
        return None
    seconds = [block / MICRO for block in micro]
    within = _rate_interval(amounts, seconds, work.steps, work.shares)
    rates = [amount / time for amount, time in zip(amounts, seconds) if time]
    return metric(
        name,
        math.fsum(amounts) * MICRO / sum(micro),
        unit + "/s",
        n=work.steps,
        stdev=summary.stdev(rates),
        **_interval_fields(within),
        note=note,
    )


def _interval_fields(within: WithinRun) -> dict[str, Any]:
    """The fields of a metric with its interval, or with the reason why there is none."""
    fields: dict[str, Any] = {}
    if within.interval is not None:
        fields["ci95"] = list(within.interval)
        fields["ci_method"] = METHOD
    if within.refusal is not None:
        fields["ci_reason"] = str(within.refusal)
    return fields


def _rate_interval(
    amounts: Sequence[float], seconds: Sequence[float], steps: int, shares: Sequence[Sequence[float]]
) -> WithinRun:
    """The interval of a rate, or why there is none: from micro-batches if there are enough, else from steps."""
    from_steps = within_run(amounts, seconds, steps)
    if len(shares) != len(seconds):
        return from_steps
    part_amounts: list[float] = []
    part_seconds: list[float] = []
    for amount, time, step_shares in zip(amounts, seconds, shares):
        count = len(step_shares)
        part_amounts += [amount / count] * count
        part_seconds += [time * share for share in step_shares]
    from_micro_batches = within_run(part_amounts, part_seconds, counted=MICRO_BATCHES)
    refusal = from_micro_batches.refusal
    if refusal is None:
        return from_micro_batches
    if refusal.kind == "short":
        return from_steps
    # `within_run` took each micro-batch for a step.
    micro_batches_per_step = len(shares[0])
    further_steps = math.ceil(refusal.further_steps / micro_batches_per_step)
    return WithinRun(None, refusal._replace(further_steps=further_steps))


def micro_batch_shares(step_range: StepRange) -> list[list[float]]:
    """The share of its step's time that each micro-batch of a short window took, by step.

    Empty if micro-batches were not measured, or if a time is too short to tell its rate.

    In a pipeline, the first and the last micro-batches of a step take longer or shorter than the others. That is no
    noise, so each time is divided by the mean time of the micro-batches at the same place in the n steps. Values
    deviate less from a mean to which they contribute themselves: sqrt(n / (n - 1)) corrects this.
    """
    steps: list[Sequence[int]] = []
    for span in step_range.spans:
        steps += span.micro_batches
    if len(steps) != step_range.steps or len(steps) < 2:
        return []
    if not all(all(times) for times in steps):  # a time of 0: the rate of its micro-batch is not known
        return []
    means = [sum(times) / len(steps) for times in zip(*steps)]
    correction = math.sqrt(len(steps) / (len(steps) - 1))
    shares = []
    for times in steps:
        relative_times = []
        for time, mean in zip(times, means):
            deviation = (time / mean - 1) * correction
            relative_times.append(max(0.0, 1 + deviation))
        total = sum(relative_times)
        if not total:  # a step in almost no time beside a stalled one: the correction leaves nothing of it
            return []
        shares.append([relative_time / total for relative_time in relative_times])
    return shares


def whole_rate(name: str, unit: str, amount: float, micro: int, note: str) -> Entry:
    """The total amount over the total time, microseconds, as a metric; None if it took no time."""
    if not micro:
        return None
    return metric(name, amount * MICRO / micro, unit + "/s", n=1, note=note)


def train_rates(run: Run) -> Iterator[Entry]:
    """p_core, p_train and their published counterparts; p_whole of a complete run.

    p_core is computed from the window. The other rates are computed from all steps of a complete run, and from the
    window of any other.
    """
    if run.facts.kind != TRAIN or run.window is None:
        return
    unit = run.facts.unit
    window = run.window.step_range
    shares = micro_batch_shares(window)
    window_work = TimedWork(window.amount(unit), run.window.micro, window.steps, shares)
    yield rate("p_core", unit, window_work, _core_note(run.window))
    durations = run.evidence.durations.get(TRAIN)
    if run.facts.complete and durations:
        everything = run.evidence.step_range()
        yield from _train_rates_over(run, everything, "all steps", shares)
        yield from _whole_train_rates(run, everything, durations)
    else:
        yield from _train_rates_over(run, window, "the window", shares)


def _train_rates_over(
    run: Run, step_range: StepRange, covered: str, shares: Sequence[Sequence[float]]
) -> Iterator[Entry]:
    """p_core_host and p_train over a range of steps, which notes call `covered`; in tokens, also per device."""
    unit, world = run.facts.unit, run.evidence.world
    slowest_rank = step_range.slowest(OWN)
    train_work = TimedWork(step_range.amount(unit), step_range.time(OWN, slowest_rank), step_range.steps, shares)
    published_amounts = _published_work(step_range, run.facts)
    host_work = TimedWork(published_amounts, step_range.time(HOST, 0), step_range.steps, shares)
    published_work = TimedWork(published_amounts, step_range.time(PUBLISHED, 0), step_range.steps, shares)

    yield rate("p_core_host", unit, host_work, f"{HOST_CLOCK}step, over {covered}")
    train_note = f"time of rank {slowest_rank}, the slowest rank, without evaluations and checkpoints; over {covered}"
    yield rate("p_train", unit, train_work, train_note)
    published_note = f"{HOST_CLOCK}data wait, copy to device and step, over {covered}"
    if unit == "tokens":
        yield _device_rate("tokens_per_second_per_device", train_work, train_note, world)
        yield _device_rate("tokens_per_second_per_device_host", published_work, published_note, world)
    else:
        yield rate("p_train_published_count", unit, published_work._replace(shares=()), published_note)


def _whole_train_rates(run: Run, step_range: StepRange, durations: Sequence[int]) -> Iterator[Entry]:
    """p_whole of a complete training, and its published counterpart.

    `durations`: how long the training took on each rank, evaluations included, microseconds.
    """
    unit = run.facts.unit
    note = "training including evaluations, by the slowest rank"
    yield whole_rate("p_whole", unit, sum(step_range.amount(unit)), max(durations), note)
    if unit != "tokens":
        published_amount = sum(_published_work(step_range, run.facts))
        note = f"{HOST_CLOCK}training including evaluations"
        yield whole_rate("p_whole_published_count", unit, published_amount, durations[0], note)


def _device_rate(name: str, work: TimedWork, note: str, world: int) -> Entry:
    """The tokens per second of each device, as a mean over all `world` devices; see `rate`."""
    amounts = [amount / world for amount in work.amounts]
    computed = rate(name, "tokens", work._replace(amounts=amounts), f"{note}; per device, {world} devices")
    if computed is None:
        return None
    return dict(computed, scope="device")


def infer_rates(run: Run) -> Iterator[Entry]:
    """p_infer_core and p_infer_core_host of an inference, and p_infer_whole of a complete one.

    If the case validates before, the same metrics of that pass are called p_val_*. A case that generates tokens has
    other rates: see `generation_rates`.
    """
    if run.facts.kind != INFER or run.facts.generation is not None:
        return
    phases = dict.fromkeys(span.phase for span in run.evidence.spans)  # each once, in their order
    for phase in phases:
        window = window_of(run.evidence.step_range(phase, WINDOW))
        if window is not None:
            yield from _infer_rates_of_phase(run, phase, window)


def _infer_rates_of_phase(run: Run, phase: str, window: Window) -> Iterator[Entry]:
    """The rates of one pass over a data set, which is the phase `val` or `infer`."""
    evidence, facts = run.evidence, run.facts
    step_range, unit = window.step_range, facts.unit
    shares = micro_batch_shares(step_range)
    work = TimedWork(step_range.amount(unit), window.micro, step_range.steps, shares)
    note = _core_note(window)
    yield rate(f"p_{phase}_core", unit, work, note)
    host_work = TimedWork(_published_work(step_range, facts), step_range.time(HOST, 0), step_range.steps, shares)
    yield rate(f"p_{phase}_core_host", unit, host_work, f"{HOST_CLOCK}step; excluding warm-up")
    useful_tokens = step_range.amount("tokens_useful")
    if unit == "tokens" and useful_tokens != work.amounts:
        useful_work = work._replace(amounts=useful_tokens)
        yield rate(f"p_{phase}_core_useful", unit, useful_work, f"{note}; padding is not counted")
    if facts.complete and phase in evidence.durations:
        total = evidence.step_range(phase).total(unit)
        longest = max(evidence.durations[phase])
        note = "the whole pass including loading, by the slowest rank"
        yield whole_rate(f"p_{phase}_whole", unit, total, longest, note)


def latencies(run: Run) -> Iterator[Entry]:
    """latency_mean, latency_p50 and latency_p99 of a batch that generates tokens, as `vllm bench latency` has them.

    Percentiles are left out if the evidence has sums of several steps.
    """
    if run.facts.generation is None or run.window is None:
        return
    step_range = run.window.step_range
    steps = step_range.steps
    micro, note = _batch_times(step_range)
    seconds = [time / MICRO for time in micro]
    interval = _interval_fields(_latency_interval(step_range, seconds))
    yield metric("latency_mean", sum(micro) / steps / MICRO, "s", n=steps, **interval, note=note)
    if len(micro) < steps:
        return
    note = f"{note}; interpolated as by numpy.percentile"
    for percent in (50, 99):
        yield metric(f"latency_p{percent}", percentile(seconds, percent), "s", n=steps, note=note)


def _latency_interval(step_range: StepRange, seconds: Sequence[float]) -> WithinRun:
    """The interval of the mean time of a batch: the inverse of that of batches per second.

    `seconds`: the time of each block of batches.
    """
    within = _rate_interval(step_range.sizes, seconds, step_range.steps, micro_batch_shares(step_range))
    if within.interval is None:
        return within
    low, high = within.interval
    if low <= 0:
        return within._replace(interval=None)
    return within._replace(interval=(1 / high, 1 / low))


def generation_rates(run: Run) -> Iterator[Entry]:
    """output_tokens_per_second, total_tokens_per_second (with prompts) and requests_per_second of a generation."""
    generation = run.facts.generation
    if generation is None or run.window is None:
        return
    step_range = run.window.step_range
    requests = step_range.amount("samples")
    micro, note = _batch_times(step_range)
    work = TimedWork(requests, micro, step_range.steps, micro_batch_shares(step_range))
    generated = [count * generation.output for count in requests]
    processed = [count * (generation.prompt + generation.output) for count in requests]
    yield rate("output_tokens_per_second", "tokens", work._replace(amounts=generated), note)
    yield rate("total_tokens_per_second", "tokens", work._replace(amounts=processed), f"{note}; prompts included")
    yield rate("requests_per_second", "requests", work, note)


def _batch_times(step_range: StepRange) -> tuple[list[int], str]:
    """The times of the batches on the slowest rank by its host's clock, microseconds, and the note that says so."""
    rank = step_range.slowest(HOST)
    note = f"from handing a batch to the engine to its last token; host clock of rank {rank}, the slowest rank"
    return step_range.time(HOST, rank), note


def iteration_times(run: Run) -> Iterator[Entry]:
    """ttft and tpot: the medians of the times of an engine's first and of its further iterations.

    They are left out if a batch did not need exactly one iteration for each token: the first one may then have read
    only parts of the prompts.
    """
    generation = run.facts.generation
    if generation is None or run.window is None:
        return
    first: list[int] = []
    further: list[int] = []
    for span in run.window.step_range.spans:
        for times in span.micro_batches:
            if len(times) != generation.output:
                return
            first.append(times[0])
            further += times[1:]
    if first:
        note = "median of the iterations that read the prompts"
        yield metric("ttft", median(first) / MICRO, "s", n=len(first), note=note)
    if further:
        note = "median of the other iterations, each of which gives every sequence a token"
        yield metric("tpot", median(further) / MICRO, "s", n=len(further), note=note)


def decode_bandwidth(run: Run) -> Iterator[Entry]:
    """decode_bandwidth of one device, GB/s; decode_bandwidth_roof, its share of a copy's, if that was measured."""
    values = {entry["name"]: entry["value"] for entry in run.metrics}
    if run.facts.generation is None or not values.get("tpot"):
        return
    gigabytes = run.facts.generation.decode_bytes / GIGA
    bandwidth = gigabytes / values["tpot"]
    note = f"{gigabytes:.4g} GB of weights and cache, the mean of the iterations of tpot, over tpot"
    yield metric("decode_bandwidth", bandwidth, "GB/s", "device", note=note)
    if "memory_bandwidth" in values:
        note = "decode_bandwidth relative to memory_bandwidth, a copy before the steps"
        yield metric("decode_bandwidth_roof", bandwidth / values["memory_bandwidth"], "fraction", "device", note=note)


def _published_work(step_range: StepRange, facts: Facts) -> list[int]:
    """The work of each block as publishers count it: the work of rank 0 multiplied by the number of replicas.

    Publishers count every batch of samples as full.
    """
    column = "samples_published"
    if facts.unit == "tokens":
        column = "tokens"
    return [amount * facts.replicas for amount in step_range.column(column, 0)]


def _core_note(window: Window) -> str:
    return f"device time of the steps of rank {window.rank}, the slowest rank; excluding warm-up"


def utilisation(run: Run) -> Iterator[Entry]:
    """The model's FLOPs per second as fractions of a peak: mfu, hfu, mfu_useful, mfu_measured and mfu_roof.

    The first three are relative to the peak in the datasheet. mfu_measured is relative to the matmul that every rank
    measures during the run, mfu_roof to the fastest matmul of the roofs that were measured before it.
    """
    window, peak, ceiling = run.window, run.facts.peak, run.ceiling
    if window is None or not run.facts.counted or not window.seconds:
        return
    device_seconds = window.seconds * run.evidence.world
    executed = window.step_range.flops("executed") / device_seconds
    recomputed = window.step_range.flops("recomputed") / device_seconds
    useful = window.step_range.flops("useful") / device_seconds
    if peak:
        yield metric("mfu", executed / peak, "fraction", note="executed model FLOPs, including padding")
        hfu_note = "equal to mfu: nothing is recomputed"
        if recomputed:
            hfu_note = "including recomputation"
        yield metric("hfu", (executed + recomputed) / peak, "fraction", note=hfu_note)
        yield metric("mfu_useful", useful / peak, "fraction", note="without padding")
    if ceiling:
        note = "relative to the matrix product measured in this run"
        yield metric("mfu_measured", executed / ceiling, "fraction", note=note)
        if recomputed:
            yield metric("hfu_measured", (executed + recomputed) / ceiling, "fraction", note=note)
    matmul_names = roofs.matmul_names(run.facts.precision)
    matmul_rates = [entry["value"] * TERA for entry in run.metrics if entry["name"] in matmul_names]
    if matmul_rates:
        note = "relative to the fastest matrix product before the steps, of the middle device"
        yield metric("mfu_roof", executed / max(matmul_rates), "fraction", note=note)


def published_utilisation(run: Run) -> Iterator[Entry]:
    """mfu_published_formula: computed with the publisher's FLOPs per unit of work and the publisher's peak."""
    formula = run.facts.published
    if not formula or run.window is None or not run.facts.counted:
        return
    peak = _published_peak(formula, run.facts)
    if peak is None:
        return
    for entry in run.metrics:
        if entry["name"] == formula["metric"]:
            yield _utilisation_from(entry, formula, peak, run.evidence.world)
            return


def _published_peak(formula: Mapping[str, Any], facts: Facts) -> float | None:
    """The peak that a publisher divides by, FLOP/s: by precision, else its only one, else the datasheet's."""
    peaks: Mapping[str, float] = formula.get("peaks", {})
    if facts.precision in peaks:
        return peaks[facts.precision]
    peak: float | None = formula.get("peak", facts.peak)
    return peak


def _utilisation_from(base: Mapping[str, Any], formula: Mapping[str, Any], peak: float, world: int) -> Entry:
    """The utilisation that follows from the metric `base`, a throughput of one device or of all `world` devices."""
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
    """e2e_time: the duration of the whole published run, without imports, seconds."""
    if run.facts.complete and run.facts.kind != MEASURE and "e2e" in run.evidence.timing:
        seconds = run.evidence.timing["e2e"] / MICRO
        yield metric("e2e_time", seconds, "s", n=1, note="excluding imports")


def memory(run: Run) -> Iterator[Entry]:
    """mem_peak and allocator_peak, GiB, maximum over devices."""
    note = "in use on the device when training ended"
    if run.facts.device_kind == "cpu":
        note = "resident set of the largest rank"
    peaks = run.evidence.memory.get("peak", ())
    yield _largest_peak("mem_peak", peaks, note)
    allocator_peaks = run.evidence.memory.get("allocator_peak", ())
    yield _largest_peak("allocator_peak", allocator_peaks, "maximum sum of live tensors")


def _largest_peak(name: str, peaks: Sequence[int | None], note: str) -> Entry:
    """The largest of the peaks of all ranks, bytes, as a metric; None if no rank measured one."""
    measured = [peak for peak in peaks if peak]
    if not measured:
        return None
    return metric(name, max(measured) / GIB, "GiB", "device", n=len(measured), note=note)


def evaluation_results(run: Run) -> Iterator[Entry]:
    """acc, acc_as_published and the case's additional results, each from the last evaluation that has it."""
    latest: dict[str, Entry] = {}
    for evaluation in run.facts.evaluations:
        if evaluation["epoch"] < 0:  # an evaluation of the untrained model
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
    """loss: the mean of the last LOSS_TAIL losses of a training. A loss that is not finite leaves the metric out."""
    if run.facts.kind != TRAIN:
        return
    tail = run.facts.losses[-LOSS_TAIL:]
    finite = [loss for loss in tail if loss is not None and math.isfinite(loss)]
    if finite and len(finite) == len(tail):
        note = f"mean training loss of the last {len(tail)} steps"
        yield metric("loss", sum(finite) / len(tail), "nats", n=len(tail), note=note)


def device_rates(run: Run) -> Iterator[Entry]:
    """The rates of the roofs: TFLOP/s of each matmul and GB/s of each copy, of the device with the median rate.

    An all-reduce has its bus bandwidth, GB/s. Measurements as MAMF makes them are left to `published_rates`.
    """
    world = run.evidence.world
    for measured in roofs.measured_operations(run.evidence):
        if measured.name == roofs.ALL_REDUCE:
            factor = roofs.bus_factor(roofs.ALL_REDUCE, world)
            note = f"{measured.described['bytes']} bytes over {world} ranks; factor {factor:g} of nccl-tests"
            yield _measured_rate("all_reduce_busbw", measured, factor, "job", note)
        elif measured.operation not in roofs.COLLECTIVES and "cleared_bytes" not in measured.described:
            note = _device_note(measured.described, world)
            yield _measured_rate(measured.name, measured, 1.0, "device", note)


def published_rates(run: Run) -> Iterator[Entry]:
    """The rates of the roofs as they are published: means over all repeats and devices.

    MAMF (mamf-finder.py of stas00/ml-engineering) and FlagPerf's base/ compute such means. Only measurements for
    which one of them publishes a mean have this metric.
    """
    for span in (*run.evidence.spans, *run.evidence.roofs):
        if span.measured is None:
            continue
        if "cleared_bytes" in span.measured:
            yield _published_mean(run, span, span.measured, span.phase)
        elif span.phase in roofs.PUBLISHED_MEANS:
            yield _published_mean(run, span, span.measured, f"{span.phase}_mean")


def _published_mean(run: Run, span: Span, measured: Mapping[str, Any], name: str) -> Entry:
    """The mean rate over all repeats and devices of one measurement; None if it took no time.

    None also for an all-reduce with one device per node, for which FlagPerf's bus bandwidth is 0.

    A measurement with all repeats that the publisher makes has no `ci_reason`, even if it has no interval: no longer
    measurement is wanted, and only further runs give an interval.
    """
    world, operation = run.evidence.world, measured["operation"]
    unit, scale = "GB", GIGA
    if operation == roofs.PRODUCT:
        unit, scale = "TFLOP", TERA
    step_range = StepRange([span], run.evidence.block)
    size = roofs.amount(measured) / scale
    slowest = None
    if operation not in roofs.COLLECTIVES:
        slowest = slowest_device([size * count for count in _operations_per_second(step_range)])
    if operation == roofs.ALL_REDUCE:
        size *= _published_bus_factor(world, run.facts.nodes)
    if not size:
        return None
    amounts = [size * count for count in step_range.amount("samples")]
    micro = add([step_range.time(DEVICE, rank) for rank in range(world)])
    work = TimedWork(amounts, micro, span.steps)
    computed = rate(name, unit, work, f"{PUBLISHER}mean over all repeats and devices")
    if computed is None:
        return None
    reason = computed.pop("ci_reason", None)
    if reason and not _has_published_repeats(run, span, measured):
        computed["ci_reason"] = (
            f"{span.steps} repeats are not all that the publisher makes: `roofs --full` makes them"
        )
    if slowest is not None:
        computed["slowest_device"] = slowest
    return dict(computed, scope="device")


def _has_published_repeats(run: Run, span: Span, measured: Mapping[str, Any]) -> bool:
    """Whether a measurement has as many repeats as the publisher makes. One made as MAMF makes it always has."""
    if "cleared_bytes" in measured:
        return True
    return run.facts.complete and span.steps >= MIN_STEPS


def _published_bus_factor(world: int, nodes: int) -> float:
    """FlagPerf's bus bandwidth of an all-reduce over its algorithm bandwidth.

    Within one node FlagPerf counts both directions of a link. Between nodes it counts one direction, and uses the
    factor for the devices of a single node.
    """
    if nodes == 1:
        return 2 * roofs.bus_factor(roofs.ALL_REDUCE, world)
    return roofs.bus_factor(roofs.ALL_REDUCE, world // nodes)


def _operations_per_second(step_range: StepRange) -> list[float]:
    """The mean number of operations per second of each rank; empty if a rank took no time."""
    counts = [sum(step_range.column("samples", rank)) for rank in range(step_range.world)]
    micro = [step_range.rank_time(DEVICE, rank) for rank in range(step_range.world)]
    if not all(micro):
        return []
    return [count * MICRO / time for count, time in zip(counts, micro)]


def _measured_rate(name: str, measured: roofs.MeasuredOperation, factor: float, scope: str, note: str) -> Entry:
    """A measurement as a metric, with its rates multiplied by `factor`."""
    unit, scale = "GB/s", GIGA
    if measured.unit == "FLOP/s":
        unit, scale = "TFLOP/s", TERA
    ci95 = ci_method = ci_reason = None
    if measured.ci95:
        ci95 = [bound * factor / scale for bound in measured.ci95]
        ci_method = roofs.INTERVAL
    elif measured.steady:
        ci_reason = "the repeats are in blocks too few for one"
    else:
        ci_reason = "the last repeats were not steady"
    device_rates = [rate * factor / scale for rate in measured.devices]
    return metric(
        name,
        measured.rate * factor / scale,
        unit,
        scope,
        n=measured.repeats,
        stdev=measured.stdev * factor / scale,
        ci95=ci95,
        ci_method=ci_method,
        ci_reason=ci_reason,
        slowest_device=slowest_device(device_rates),
        note=note,
    )


def _device_note(described: Mapping[str, Any], world: int) -> str:
    if "shape" in described:
        shape = " x ".join(map(str, described["shape"]))
        note = f"{shape}; median of its repeats"
    else:
        note = f"{described['bytes']} bytes; median of its repeats"
    if world > 1:
        note += f", of the middle one of {world} devices"
    return note


METRICS = (
    train_rates,
    infer_rates,
    latencies,
    generation_rates,
    iteration_times,
    device_rates,
    decode_bandwidth,
    published_rates,
    utilisation,
    published_utilisation,
    e2e_time,
    memory,
    evaluation_results,
    final_loss,
)
"""The functions that compute metrics, in the order of the record."""
