"""Computes the metrics of a record from the ranks' steps, as defined in rank/train_loop.py."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from flagbench_cases.record import stats
from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import Step

GIB = 1024.0**3
LOSS_TAIL = 50
CLOCK_DRIFT = 1e-4  # maximum drift of a device's clock relative to the host's
PUBLISHER = "as published: "


class Window(NamedTuple):
    """The steps that p_core is computed from: device times of the slowest rank, and the work of all ranks."""

    first: int
    rank: int
    seconds: List[float]
    host_seconds: float  # host time of the same steps, maximum over ranks of the sum
    samples: List[float]
    tokens: List[float]
    flops_executed: float
    flops_useful: float
    flops_recomputed: float


def metric(name: str, value: float, unit: str, scope: str = "job", **more: Any) -> Dict[str, Any]:
    """An entry of `metrics`; None values are omitted."""
    entry = {"name": name, "value": value, "unit": unit, "scope": scope}
    entry.update({key: item for key, item in more.items() if item is not None})
    return entry


def complete_steps(ranks: Dict[int, List[Step]], world: int) -> int:
    """Number of steps that every rank has finished, with device times."""
    if len(ranks) < world:
        return 0
    counts = []
    for steps in ranks.values():
        count = len(steps)
        while count and math.isnan(steps[count - 1].device):
            count -= 1
        counts.append(count)
    return min(counts) if counts else 0


def device_seconds(step: Step) -> float:
    """The duration of a step as used by p_core."""
    return step.device


def own_seconds(step: Step) -> float:
    """The duration of a step as used by p_train: a rank's time from one step to the next."""
    return step.data_wait + step.to_device + step.host + step.after


def published_seconds(step: Step) -> float:
    """The duration of a step as used by the publishers' p_train, whose clocks stop when the host finishes the
    step."""
    return step.data_wait + step.to_device + step.host


def slowest(
    ranks: Dict[int, List[Step]], first: int, count: int, seconds: Callable[[Step], float]
) -> Tuple[int, List[float]]:
    """The rank with the largest total duration of steps `first` to `count`, and its durations.

    Not the sum of each step's maximum over ranks: different ranks are late in different steps, so that sum would be
    longer than the job's time.
    """
    own = {rank: [seconds(step) for step in steps[first:count]] for rank, steps in ranks.items()}
    rank = max(sorted(own), key=lambda r: math.fsum(own[r]))
    return rank, own[rank]


def window(ranks: Dict[int, List[Step]], first: int, count: int) -> Optional[Window]:
    """Steps `first` to `count` of all ranks combined; None if there are none."""
    if count <= first:
        return None
    rows = list(zip(*(steps[first:count] for steps in ranks.values())))
    rank, seconds = slowest(ranks, first, count, device_seconds)
    return Window(
        first,
        rank,
        seconds,
        math.fsum(slowest(ranks, first, count, own_seconds)[1]),
        [sum(step.samples for step in row) for row in rows],
        [sum(step.tokens for step in row) for row in rows],
        sum(step.flops_executed for row in rows for step in row),
        sum(step.flops_useful for row in rows for step in row),
        sum(step.flops_recomputed for row in rows for step in row),
    )


def rate(name: str, unit: str, amounts: Sequence[float], seconds: Sequence[float], note: str) -> Dict[str, Any]:
    """Amounts over seconds as a metric, with its within-run confidence interval."""
    interval = stats.rate_interval(amounts, seconds)
    return metric(
        name,
        math.fsum(amounts) / math.fsum(seconds),
        unit + "/s",
        n=len(seconds),
        stdev=stats.stdev([a / s for a, s in zip(amounts, seconds)]),
        ci95=list(interval) if interval else None,
        ci_method="within-run block bootstrap" if interval else None,
        note=note,
    )


def throughput(
    ranks: Dict[int, List[Step]],
    steady: Window,
    count: int,
    unit: str,
    trained: Optional[Dict[int, float]],
    replicas: int,
) -> List[Dict[str, Any]]:
    """p_core, p_train and their published counterparts, in the case's unit; per device too if the unit is tokens.

    `trained`: each rank's training seconds of a complete published run, from which p_whole is computed; else None.
    """
    begin = 0 if trained else steady.first
    span = "all steps" if trained else "the window"
    world, clock = len(ranks), ranks[min(ranks)][begin:count]
    amounts = [sum(amount(step, unit) for step in row) for row in zip(*(s[begin:count] for s in ranks.values()))]
    published = [published_amount(step, unit) * replicas for step in clock]
    in_window = steady.tokens if unit == "tokens" else steady.samples
    rank, own = slowest(ranks, begin, count, own_seconds)
    theirs = [published_seconds(step) for step in clock]
    core = "device time of the steps of rank %d, the slowest rank; excluding warm-up" % steady.rank
    train = "time of rank %d, the slowest rank, without evaluations and checkpoints; over %s" % (rank, span)
    host = "%srank 0's host clock, batches counted as full: step, over %s" % (PUBLISHER, span)
    wait = "%srank 0's host clock, batches counted as full: data wait, copy to device and step, over %s" % (
        PUBLISHER,
        span,
    )
    found = [
        rate("p_core", unit, in_window, steady.seconds, core),
        rate("p_core_host", unit, published, [step.host for step in clock], host),
        rate("p_train", unit, amounts, own, train),
    ]
    if unit == "tokens":
        per_device = "%s; per device, %d devices"
        for name, tokens, seconds, note in (
            ("tokens_per_second_per_device", amounts, own, train),
            ("tokens_per_second_per_device_host", published, theirs, wait),
        ):
            each = rate(name, unit, [t / world for t in tokens], seconds, per_device % (note, world))
            found.append(dict(each, scope="device"))
    else:
        found.append(rate("p_train_published_count", unit, published, theirs, wait))
    if trained:
        longest = max(trained.values())
        found.append(whole("p_whole", unit, amounts, longest, "training including evaluations, by the slowest rank"))
        if unit != "tokens":
            note = PUBLISHER + "rank 0's host clock, batches counted as full: training including evaluations"
            found.append(whole("p_whole_published_count", unit, published, trained[min(ranks)], note))
    return found


def train_seconds(timings: Sequence[Dict[str, Any]]) -> Dict[int, float]:
    """Training time by each rank's clock, seconds, without checkpoints."""
    return {timing["rank"]: timing["train"] for timing in timings}


def in_order(ranks: Dict[int, List[Step]], first: int, count: int, trained: Dict[int, float]) -> Tuple[bool, str]:
    """Whether p_core >= p_train >= p_whole over the same steps, within one step; and the times behind them.

    Checked over all `count` steps, and over those from `first` on, which p_core uses. `trained`: each rank's training
    seconds over all steps; empty if training did not end.
    """
    ok, spans = True, []
    for begin in sorted({0, first}):
        if begin >= count:
            continue
        times = [math.fsum(slowest(ranks, begin, count, of)[1]) for of in (device_seconds, own_seconds)]
        if trained and begin == 0:
            times.append(max(trained.values()))
        allowed = 1 + 1 / (count - begin) + CLOCK_DRIFT
        ok = ok and all(times[i] <= times[i + 1] * allowed for i in range(len(times) - 1))
        spans.append("steps %d to %d: %s" % (begin, count, " <= ".join("%.4f s" % seconds for seconds in times)))
    return ok, "device <= host <= end to end, each the maximum over ranks: " + "; ".join(spans)


def amount(step: Step, unit: str) -> float:
    """The amount of work of a step, in the case's unit."""
    return step.tokens if unit == "tokens" else step.samples


def published_amount(step: Step, unit: str) -> float:
    """The amount of work of a step as counted by the publisher, who may count every batch as full."""
    return step.tokens if unit == "tokens" else step.published_samples


def whole(name: str, unit: str, amounts: Sequence[float], seconds: float, note: str) -> Dict[str, Any]:
    """The total amount over the total seconds, as a metric."""
    return metric(name, math.fsum(amounts) / seconds, unit + "/s", n=1, note=note)


def utilisation(
    steady: Window, devices: int, peak: Optional[float], ceiling: Optional[float]
) -> List[Dict[str, Any]]:
    """mfu and hfu relative to the datasheet's peak, mfu_measured relative to this run's matrix product; fractions."""
    seconds = math.fsum(steady.seconds) * devices
    achieved, recomputed = steady.flops_executed / seconds, steady.flops_recomputed / seconds
    found = []
    if peak:
        recomputation = "including recomputation" if recomputed else "equal to mfu: nothing is recomputed"
        found.append(metric("mfu", achieved / peak, "fraction", note="executed model FLOPs, including padding"))
        found.append(metric("hfu", (achieved + recomputed) / peak, "fraction", note=recomputation))
        useful = steady.flops_useful / seconds
        found.append(metric("mfu_useful", useful / peak, "fraction", note="without padding"))
    if ceiling:
        note = "relative to the matrix product measured in this run"
        found.append(metric("mfu_measured", achieved / ceiling, "fraction", note=note))
        if recomputed:
            found.append(metric("hfu_measured", (achieved + recomputed) / ceiling, "fraction", note=note))
    return found


def published_utilisation(
    found: Sequence[Dict[str, Any]], formula: Optional[Dict[str, Any]], devices: int, precision: str
) -> List[Dict[str, Any]]:
    """mfu_published_formula: computed with the publisher's FLOPs per unit of work and the publisher's peak."""
    base = next((entry for entry in found if formula and entry["name"] == formula["metric"]), None)
    if formula is None or base is None:
        return []
    share = 1 if base["scope"] == "device" else devices
    peak = formula.get("peaks", {}).get(precision, formula["peak"])
    scale = formula["flops_per_unit"] / peak / share
    note = "%s: %s x %g FLOP / %g FLOP/s" % (
        formula["id"],
        formula["metric"],
        formula["flops_per_unit"],
        peak,
    )
    interval = [bound * scale for bound in base["ci95"]] if "ci95" in base else None
    return [
        metric(
            "mfu_published_formula",
            base["value"] * scale,
            "fraction",
            n=base.get("n"),
            ci95=interval,
            ci_method=base.get("ci_method"),
            note=note,
        )
    ]


def memory(facts: Sequence[Dict[str, Any]], kind: str) -> List[Dict[str, Any]]:
    """mem_peak and allocator_peak, GiB, maximum over devices."""
    peaks = [f["peak"] for f in facts if f.get("peak")]
    allocators = [f["allocator_peak"] for f in facts if f.get("allocator_peak")]
    found = []
    if peaks:
        note = "resident set of the largest rank" if kind == "cpu" else "in use on the device when training ended"
        found.append(metric("mem_peak", max(peaks) / GIB, "GiB", "device", n=len(peaks), note=note))
    if allocators:
        note = "maximum sum of live tensors"
        found.append(metric("allocator_peak", max(allocators) / GIB, "GiB", "device", n=len(allocators), note=note))
    return found


def losses(ranks: Dict[int, List[Step]], count: int, layout: Layout) -> List[float]:
    """The loss of each step, averaged over replicas; NaN if not computed."""
    having = [steps[:count] for rank, steps in ranks.items() if layout.has_loss(rank)]
    return [sum(step.loss for step in row) / len(row) for row in zip(*having)]


def final_loss(curve: Sequence[float]) -> List[Dict[str, Any]]:
    """The mean loss of the last LOSS_TAIL steps, if finite."""
    tail = curve[-LOSS_TAIL:]
    value = sum(tail) / len(tail) if tail else float("nan")
    if not math.isfinite(value):
        return []
    return [metric("loss", value, "nats", n=len(tail), note="mean training loss of the last %d steps" % len(tail))]


def evaluated(evaluations: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """acc, acc_as_published and the case's additional results, each from the last evaluation that has it."""
    after = [e for e in evaluations if e["epoch"] >= 0]
    found: Dict[str, Dict[str, Any]] = {}
    for evaluation in after:
        count = evaluation["counted"]
        if evaluation["accuracy"] is not None:
            note = "each of %d examples counted once" % count
            found["acc"] = metric("acc", evaluation["accuracy"], "fraction", n=count, note=note)
        if evaluation["published_accuracy"] is not None:
            found["acc_as_published"] = metric(
                "acc_as_published",
                evaluation["published_accuracy"],
                "fraction",
                n=count,
                note="evaluated and counted as by the publisher; see the quirks of the case",
            )
        for extra in evaluation["extra"]:
            found[extra["name"]] = metric(extra["name"], extra["value"], extra["unit"], note=extra["note"])
    return list(found.values())


def work(ranks: Dict[int, List[Step]], first: int, end: int, unit: str) -> Dict[str, Any]:
    """The work done in steps `first` to `end` by all ranks."""
    done = [step for steps in ranks.values() for step in steps[first:end]]
    return {
        "unit": unit,
        "steps": end - first,
        "samples_executed": int(sum(step.samples for step in done)),
        "samples_published_count": int(sum(step.published_samples for step in done)),
        "tokens_executed": int(sum(step.tokens for step in done)),
        "tokens_useful": int(sum(step.tokens_useful for step in done)),
    }
