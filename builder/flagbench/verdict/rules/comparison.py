"""Rules on a comparison: doubts, which make a verdict INCONCLUSIVE, and qualifiers, which a reader should know.

A doubt leaves room for a slower run than the record shows. Each function is a rule, is named after the rule's id, and
yields a message for each problem that it finds. The arguments depend on what the rule needs (`rules.table.Find`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from flagbench.console.terminal import brief
from flagbench.machine.disturbance_limits import MEMORY_BEFORE, SAMPLE_SECONDS
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.model import Range
from flagbench.records.model import DeviceTelemetry, Timing
from flagbench.verdict.claim_limits import classify
from flagbench.verdict.conditions import Agreement, depends_on, gate_conditions
from flagbench.verdict.derivation import count, number, schedule
from flagbench.verdict.disturbance import describe_others_on_devices, find_throttling
from flagbench.verdict.result import Compared, MetricResult, Ratio, Verification
from flagbench.verdict.rules.table import Consequence, Find, Needs, rule
from flagbench.verdict.samples import find_shared_device, start_of
from flagbench.verdict.stall import Stall, find_counted_time, find_stall
from flagbench.verdict.subject import Subject, describe_slow_devices, value_text
from flagbench_core.case_kinds import INFER, MEASURE, kind_of
from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.document import WINDOW
from flagbench_core.evidence.roofs import MAMF

GIB = 2.0**30
"""Bytes of a GiB."""

# Doubts: each leaves room for a slower run than the record shows


@rule(
    "ceiling-not-measured",
    Needs.SAMPLE,
    "The image could not measure what its device reaches in the run's precision, so a wrong clock is not noticed.",
    consequence=Consequence.DOUBT,
)
def _ceiling_not_measured(
    subjects: Sequence[Subject], compared: Compared, verification: Verification
) -> Iterator[str]:
    """Find runs without a ceiling: the FLOP/s of a matmul that the image times before the steps."""
    for subject in subjects:
        flops = subject.record.flops
        precision = subject.precision
        if flops is None or subject.achieved_flops is None:
            continue
        clause = f"record {subject.record.record_id}: what a matrix product reaches was"
        ceiling = flops.measured_ceiling
        if ceiling is None:
            yield f"{clause} not measured in its run"
        elif precision != ceiling.precision:
            yield f"{clause} measured in {value_text(ceiling.precision)}, and its steps ran in {precision}"


ABOVE_CEILING = 1.02
"""A run may exceed the matrix product that was measured in it by this factor, for the error of both measurements."""


@rule(
    "above-ceiling",
    Needs.SAMPLE,
    "Steps were timed that had not ended, or the device was slower while its ceiling was measured.",
    "2 %",
    Consequence.DOUBT,
)
def _above_ceiling(subjects: Sequence[Subject], compared: Compared, verification: Verification) -> Iterator[str]:
    for subject in subjects:
        flops = subject.record.flops
        speed = subject.achieved_flops
        if flops is None or flops.measured_ceiling is None or speed is None:
            continue
        ceiling = flops.measured_ceiling.flops
        if speed > ABOVE_CEILING * ceiling:
            factor = math.inf
            if ceiling:
                factor = speed / ceiling
            yield (
                f"record {subject.record.record_id}: its window has {speed:.4g} FLOP/s per device, {factor:.3f} "
                f"times what a matrix product had in the same run"
            )


@rule(
    "sockets",
    Needs.SAMPLE,
    "NCCL could not use the machine's RDMA devices, for lack of a library or a permission, and fell back to TCP.",
    consequence=Consequence.DOUBT,
)
def _sockets(subjects: Sequence[Subject], compared: Compared, verification: Verification) -> Iterator[str]:
    for subject in subjects:
        unused = _unused_rdma(subject)
        if unused:
            yield (
                f"record {subject.record.record_id}: NCCL connected the nodes by sockets, although node 0 has "
                f"{', '.join(unused)}; --env NCCL_DEBUG=INFO shows why"
            )


def _unused_rdma(subject: Subject) -> list[str]:
    """Return the names of node 0's RDMA devices if several nodes were connected by sockets instead; else nothing."""
    system = subject.record.system
    if system.nodes < 2 or "Socket" not in system.networks:
        return []
    return [str(nic.get("name")) for nic in system.nics if nic.get("kind") == "infiniband"]


SECONDS_FOR_SAMPLES = 10
"""From this many seconds of a run on, the number of its samples, one a second, shows whether the monitor worked."""
LEAST_SAMPLES = 0.5
"""The least samples, as a share of those that the interval gives: a busy machine delays a few."""


@rule(
    "telemetry-incomplete",
    Needs.SAMPLE,
    "The monitor hung, lost a device or was never started, so nothing says what the devices did.",
    "half of the samples that its interval gives, in runs of 10 s or more",
    Consequence.DOUBT,
)
def _telemetry_incomplete(
    subjects: Sequence[Subject], compared: Compared, verification: Verification
) -> Iterator[str]:
    for subject in subjects:
        if not subject.on_accelerator:
            continue
        reason = ""
        if subject.record.telemetry is not None and subject.record.telemetry.problems:
            reason = f" ({brief('; '.join(subject.record.telemetry.problems), 200)})"
        for lack in _missing_telemetry(subject):
            yield f"record {subject.record.record_id}: {lack}{reason}"


def _missing_telemetry(subject: Subject) -> Iterator[str]:
    """Yield what the telemetry of an accelerator's run lacks, unless the record has a reason for it."""
    record = subject.record
    telemetry = subject.record.telemetry
    if telemetry is None:
        if record.telemetry_reason is None:
            yield "it has no telemetry, and no reason"
        return
    seconds = _seconds(record.timing, "train", "infer", "measure")
    if telemetry.samples is not None and seconds >= SECONDS_FOR_SAMPLES:
        expected_samples = seconds / (telemetry.interval_s or SAMPLE_SECONDS)
        readings = telemetry.samples * max(1, len(telemetry.devices))
        if telemetry.samples < LEAST_SAMPLES * expected_samples:
            yield f"its telemetry has {telemetry.samples} samples in {seconds:.0f} s"
        elif telemetry.errors >= readings:  # every reading failed
            yield f"its telemetry has {telemetry.errors} errors in {telemetry.samples} samples"
    monitored = [device for device in telemetry.devices if _has_reading(device)]
    if len(monitored) < record.system.devices_per_node and telemetry.unavailable is None:
        used = record.system.devices_per_node
        yield f"its telemetry is of {len(monitored)} devices, and {used} of the node were used"


def _has_reading(device: DeviceTelemetry) -> bool:
    """Whether the monitor could read a device: its power, clock, utilisation or memory."""
    readings = (device.power_mean_w, device.sm_clock_mean_mhz, device.util_mean, device.mem_used_max_bytes)
    return any(reading is not None for reading in readings)


LEAST_SHARE = 0.9
"""The least clock and utilisation, as shares of those that the FLOP rate needs; a tenth is for errors of samples."""
LEAST_SHARE_IN_PIPELINE = 0.5
"""LEAST_SHARE in a pipeline, whose stages have unequal shares of the work."""
LEAST_POWER = 0.5
"""The least mean power, as a share of that which the FLOP rate needs at the device's power limit."""
ABOVE_POWER_LIMIT = 1.05
"""A mean power may exceed the limit in force by this factor: NVML reads power within 5 %."""


@rule(
    "telemetry-speed",
    Needs.SAMPLE,
    "The monitor watches another device or returns zeros, or the clock of the run is wrong.",
    "90 % of the clock and utilisation that the FLOP rate takes (half of them in a pipeline), half of the power; "
    "5 % above the limit in force (NVML API reference, nvmlDeviceGetPowerUsage)",
    Consequence.DOUBT,
)
def _telemetry_speed(subjects: Sequence[Subject], compared: Compared, verification: Verification) -> Iterator[str]:
    for subject in subjects:
        problems: dict[str, str] = {}  # for each reading, the problem of the first device that has one
        for place, device in enumerate(subject.device_telemetry):
            for reading in _find_implausible_readings(subject, device):
                problems.setdefault(reading.name, f"telemetry of device {place} has {reading.problem}")
        for problem in problems.values():
            yield f"record {subject.record.record_id}: {problem}"


class _ImplausibleReading(NamedTuple):
    """A reading of a device's telemetry that does not fit the work of the run."""

    name: str
    """The field of DeviceTelemetry."""
    problem: str


def _find_implausible_readings(subject: Subject, device: DeviceTelemetry) -> Iterator[_ImplausibleReading]:
    """Yield each reading of a device with which it cannot have done the run's work.

    The datasheet's peak is reached at the highest clock with every unit busy. So clock and utilisation, as shares of
    their highest values, are at least the share of the peak that the run reached. A device at its power limit reaches
    75 to 98 % of the peak, and at half of that power more than half of these FLOP/s. A mean over the run includes the
    time outside of the window's steps, so it is compared with the run's share of the peak.
    """
    of_window, of_run = _shares_of_peak(subject)
    stages = count(subject.config, "layout.pp") or 1
    least = LEAST_SHARE
    if stages > 1:
        least = LEAST_SHARE_IN_PIPELINE
    clock = _highest_clock(subject, device)
    power = _default_power(subject, device)
    for name, needed in (
        ("sm_clock_busy_mhz", least * of_window * clock),
        ("sm_clock_mean_mhz", least * of_run * clock),
        ("util_mean", least * of_run),
        ("power_mean_w", LEAST_POWER * of_run * power),
    ):
        reading = getattr(device, name)
        if reading is None:
            continue
        if reading <= 0 and name != "util_mean":  # utilisation is in whole percent: 0 for little work
            yield _ImplausibleReading(name, f"{name} of {reading:.5g}, which no working device has")
        elif reading < needed:
            problem = f"{name} of {reading:.5g}, and its FLOP rate takes at least {needed:.5g}"
            yield _ImplausibleReading(name, problem)
    mean = device.power_mean_w
    limit = device.power_limit_w
    if mean is not None and limit and mean > ABOVE_POWER_LIMIT * limit:
        problem = f"power_mean_w of {mean:.5g}, and the limit in force is {limit:g}"
        yield _ImplausibleReading("power_limit_w", problem)


class _SharesOfPeak(NamedTuple):
    """The shares of its device's peak that a run reached; 0 if they are not known."""

    of_window: float
    of_run: float


def _shares_of_peak(subject: Subject) -> _SharesOfPeak:
    """Return the share of the peak in the window, and its mean over the run.

    Outside of its window a run counts no FLOPs, so the mean is lower by the share of time that the window takes.
    """
    if not subject.achieved_flops or not subject.peak:
        return _SharesOfPeak(0.0, 0.0)
    of_window = subject.achieved_flops / subject.peak
    window = subject.record.window
    seconds = _seconds(subject.record.timing, *_LOOPS, "checkpoint")
    if window is None or not seconds:
        return _SharesOfPeak(of_window, 0.0)
    return _SharesOfPeak(of_window, of_window * min(1.0, window.seconds / seconds))


def _highest_clock(subject: Subject, device: DeviceTelemetry) -> float:
    """Return the highest clock of a device, MHz; 0 if it is not known."""
    if subject.device is not None and subject.device.limits.sm_clock_mhz is not None:
        return subject.device.limits.sm_clock_mhz.value
    return device.sm_clock_max_mhz or 0.0


def _default_power(subject: Subject, device: DeviceTelemetry) -> float:
    """Return the power limit that a device has unless somebody changes it, W; 0 if it is not known."""
    if device.power_limit_default_w:
        return device.power_limit_default_w
    if subject.device is not None and subject.device.limits.power_watts is not None:
        return subject.device.limits.power_watts.value
    return 0.0


UNTIMED_SHARE = 0.1
"""The share of a run that may be outside of all phases; 0.1 % was measured."""
UNTIMED_SECONDS = 1.0
"""Seconds that may be outside of all phases in a short run."""


@rule(
    "time-in-no-phase",
    Needs.SAMPLE,
    "The run waited for a disk, a network or another process where nothing is timed.",
    "a tenth of the run, and 1 s (measured: 0.1 %)",
    Consequence.DOUBT,
)
def _time_in_no_phase(subjects: Sequence[Subject], compared: Compared, verification: Verification) -> Iterator[str]:
    for subject in subjects:
        e2e = subject.record.timing.e2e or 0.0
        lost = e2e - _seconds(subject.record.timing, "init", *_LOOPS)
        if lost > max(UNTIMED_SECONDS, UNTIMED_SHARE * e2e):
            yield f"record {subject.record.record_id}: {lost:.1f} s of its {e2e:.1f} s are in no phase"


_LOOPS = ("eval_initial", "train", "val", "infer", "measure")
"""The phases after `init`. `e2e` is the sum of `init` and these; the time of `train` includes its evaluations."""


def _seconds(timing: Timing, *phases: str) -> float:
    """Return the sum of the times of phases; a phase that the run did not have counts as 0."""
    return math.fsum(getattr(timing, phase) or 0.0 for phase in phases)


LEAST_MEMORY = 0.9
"""The least memory, as a share of what the parameters take; the tenth is for what a counter does not see."""


@rule(
    "memory-below-model",
    Needs.SAMPLE,
    "The model that ran is smaller than the record says, or a counter of memory is another device's.",
    "2 bytes a parameter, 4 in fp32 and tf32, shared by the ranks of a replica; 10 %",
    Consequence.DOUBT,
)
def _memory_below_model(subjects: Sequence[Subject], compared: Compared, verification: Verification) -> Iterator[str]:
    for subject in subjects:
        parameters = number(subject.record.raw, "quality.parameters")
        if parameters is None or not subject.replicas:
            continue
        bytes_of_parameter = 2
        if subject.precision in ("fp32", "tf32"):
            bytes_of_parameter = 4
        parameters_of_rank = parameters * subject.replicas / subject.world
        least = LEAST_MEMORY * parameters_of_rank * bytes_of_parameter / GIB
        for name, used in _highest_memory(subject):
            if used < least:
                yield (
                    f"record {subject.record.record_id}: {name} is {used:.4g} GiB, and its {parameters:,} parameters "
                    f"take {least:.4g} of a rank"
                )


def _highest_memory(subject: Subject) -> Iterator[tuple[str, float]]:
    """Yield the name of each counter of memory, and the most that it has for any device, GiB."""
    for name in ("mem_peak", "allocator_peak"):
        metric = subject.record.metric(name)
        if metric is not None:
            yield name, metric.value
    sizes = []
    for device in subject.device_telemetry:
        if device.mem_used_max_bytes is not None:
            sizes.append(device.mem_used_max_bytes)
    if sizes:
        yield "telemetry's mem_used_max_bytes", max(sizes) / GIB


@rule(
    "versions-mixed",
    Needs.SAMPLE,
    "flagbench was upgraded between the runs of one sample: what they have in common is not known.",
    consequence=Consequence.DOUBT,
)
def _versions_mixed(subjects: Sequence[Subject], compared: Compared, verification: Verification) -> Iterator[str]:
    versions = sorted({subject.record.flagbench.version for subject in subjects})
    if len(versions) > 1:
        yield f"its runs were made by flagbench {', '.join(brief(version) for version in versions)}"


@rule(
    "target-missed",
    Needs.CLAIM,
    "A device computes wrongly, or the data are others: the published run reached its accuracy.",
    consequence=Consequence.DOUBT,
)
def _target_missed(compared: Compared, verification: Verification) -> Iterator[str]:
    for subject in verification.subjects:
        quality = subject.record.quality
        target = number(schedule(subject.config), "target_acc")
        trained_to_the_end = schedule(subject.config).get("window_steps", 0) is None
        if not trained_to_the_end or target is None or quality is None:
            continue
        if quality.converged is False:  # None if it is not known
            yield f"record {subject.record.record_id}: its training ended without reaching acc {target:g}"


@rule(
    "short-form",
    Needs.CLAIM,
    "A device that measures for seconds is cooler than in the publisher's iterations, and may be faster.",
    consequence=Consequence.DOUBT,
)
def _short_form(compared: Compared, verification: Verification) -> Iterator[str]:
    if verification.case.kind != MEASURE or compared.result.name.startswith(MAMF):
        return
    for subject in verification.subjects:
        if schedule(subject.config).get("window_steps") is not None:
            yield f"record {subject.record.record_id}: it has few repeats; --full has the publisher's iterations"


HOST_CLOCK = 1.02
"""The factor by which the ratio of two rates may exceed the ratio of the same rates in the published row.

The one rate is by the clock of the host, the other by a clock that includes all waits. Two clocks of one run agree to
less than 2 %.
"""


@rule(
    "host-clock",
    Needs.CLAIM,
    "The publisher's clock stops before the device has finished, which hides what comes after a step.",
    f"{HOST_CLOCK} times the same ratio of the row",
    Consequence.DOUBT,
)
def _host_clock(compared: Compared, verification: Verification) -> Iterator[str]:
    """Compare the rate by the host's clock, with which a claim is compared, with the rates by other clocks.

    A device works asynchronously: the host starts its work and goes on. A publisher's clock that stops when the host
    is done with a step may stop before the device is, so the rate by it is too high. It is compared with the gate
    (the metric that decides the verdict), with `p_core`, by the device's clock, and with `p_train`, which counts all
    the time from one step to the next. A published row may have such a difference itself, which is allowed.
    """
    gate = verification.case.gate
    held_by = compared.result.held_by
    if compared.result.name != gate or held_by == gate:
        return
    published = _published_ratio(verification, "p_core", "p_train")
    for subject in verification.subjects:
        record = subject.record
        by_host = record.metric(held_by)
        if by_host is None:
            continue
        for name in dict.fromkeys((gate, "p_core", "p_train")):
            metric = record.metric(name)
            if metric is None or metric.unit != by_host.unit or metric.value <= 0:
                continue
            rate = metric.value
            if metric.scope == "job" and by_host.scope == "device":
                rate = metric.value / subject.world
            ratio = by_host.value / rate
            if ratio > published * HOST_CLOCK:
                yield (
                    f"record {record.record_id}: {held_by}, by the host's clock, is {ratio:.3f} times {name}; "
                    f"{_allowed_text(published)}, so the clock may hide work of the device"
                )


@rule(
    "loop-clock",
    Needs.CLAIM,
    "An inference waits between its steps, which its rate does not count.",
    f"{HOST_CLOCK} times the same ratio of the row",
    Consequence.DOUBT,
)
def _loop_clock(compared: Compared, verification: Verification) -> Iterator[str]:
    """Compare the time of each inference's window by the host's clock with the time of its steps on the device."""
    if compared.result.name != verification.case.gate:
        return
    published = _published_ratio(verification, "p_infer_core", "p_infer_whole")
    for subject in verification.subjects:
        window = subject.record.window
        if INFER not in subject.config or window is None or not window.seconds or window.host_seconds is None:
            continue
        ratio = window.host_seconds / window.seconds
        if ratio > published * HOST_CLOCK:
            yield (
                f"record {subject.record.record_id}: its window took {ratio:.3f} times as long as its steps on the "
                f"device; {_allowed_text(published)}"
            )


def _allowed_text(published: float) -> str:
    """Return the largest allowed ratio of two clocks as a clause, for the ratio of the published rates."""
    return f"at most {published * HOST_CLOCK:.3f} times is allowed ({published:.3f} published x {HOST_CLOCK})"


def _published_ratio(verification: Verification, faster: str, slower: str) -> float:
    """Return the ratio of two rates of the published row, `faster` over `slower`; 1 if it is less or not known."""
    if verification.claim is None:
        return 1.0
    faster_metric = verification.claim.metric(faster)
    slower_metric = verification.claim.metric(slower)
    if faster_metric is None or slower_metric is None or slower_metric.value <= 0:
        return 1.0
    return max(1.0, faster_metric.value / slower_metric.value)


@rule(
    "not-published",
    Needs.CLAIM,
    "The row does not say how much work it is of; the verdict must be the same over the range that is possible.",
    "the ranges of the case's manifest",
    Consequence.DOUBT,
)
def _not_published(compared: Compared, verification: Verification) -> Iterator[str]:
    case = verification.case
    metric = compared.result
    needed = set(depends_on(case, compared.spec, metric.held_by)) & set(case.work_conditions)
    for condition in verification.conditions:
        name = condition.name
        if condition.agreement is not Agreement.NOT_PUBLISHED or name not in needed:
            continue
        if name in case.ranges:
            yield from _over_range(verification.subjects, name, case.ranges[name], metric)
        else:
            yield f"{name} is {NOT_PUBLISHED}, and the speed depends on it"


def _over_range(subjects: Sequence[Subject], name: str, limits: Range, metric: MetricResult) -> Iterator[str]:
    """Yield a message if the verdict changes between the ends of the range that a condition can have.

    Args:
        subjects: the runs.
        name: the condition, which is a number of sequences of a sample.
        limits: the range of that number in the publisher's run.
        metric: the compared metric with its ratio for equal work.
    """
    sequences = []
    for subject in subjects:
        if subject.sequences_of_sample is not None:
            sequences.append(subject.sequences_of_sample)
    if metric.ratio is None or len(sequences) < len(subjects):
        yield f"{name} is {NOT_PUBLISHED}, and the record does not say how much work a sample was"
        return
    low = _scale_ratio(metric.ratio, min(sequences) / limits.high)
    high = _scale_ratio(metric.ratio, max(sequences) / limits.low)
    if {classify(low), classify(high)} != {classify(metric.ratio)}:
        yield (
            f"{name} is {NOT_PUBLISHED}: for {limits.low:g} to {limits.high:g} of them (this run has "
            f"{sequences[0]:.3g}) the ratio lies between {low.value:.3f} and {high.value:.3f}"
        )


def _scale_ratio(ratio: Ratio, factor: float) -> Ratio:
    """Return a ratio and its interval, multiplied by a factor."""
    if ratio.ci95 is None:
        return Ratio(ratio.value * factor)
    low, high = ratio.ci95
    return Ratio(ratio.value * factor, (low * factor, high * factor))


# Qualifiers: what a reader of the verdict should know


def _qualifier(name: str, why: str, tolerance: str = "") -> Callable[[Find], Find]:
    """Return the decorator of a rule that looks at both sides and qualifies the verdict."""
    return rule(name, Needs.BOTH, why, tolerance, Consequence.QUALIFIER)


@_qualifier("software-differs", "The image has other versions than the publisher's.")
def _software_differs(verification: Verification) -> Iterator[str]:
    if any(condition.agreement is Agreement.DIFFERS for condition in verification.software):
        yield "software differs"


@_qualifier("software-unknown", "One side does not say what it ran.")
def _software_unknown(verification: Verification) -> Iterator[str]:
    for condition in verification.software:
        if condition.agreement is Agreement.UNKNOWN and condition.here != condition.expected:
            yield "software unknown"
            return  # one message for all packages


@_qualifier("work-not-published", "The row leaves out what the speed depends on; it is taken to be the same.")
def _work_not_published(verification: Verification) -> Iterator[str]:
    needed = set(verification.case.work_conditions) & set(gate_conditions(verification.case))
    for condition in verification.conditions:
        if condition.agreement is Agreement.NOT_PUBLISHED and condition.name in needed:
            yield f"{condition.name} {NOT_PUBLISHED}"


def _each_side(find: Callable[[Sequence[Subject]], Iterator[str]]) -> Find:
    """Decorate a function that looks at the runs of one side, so that it can be the rule of a qualifier.

    Such a rule is called with the Verification, which has the runs of both sides. The decorated function calls `find`
    for the measured runs and then for those of the baseline, whose messages begin with `baseline: `. A verdict on a
    claim has no baseline, so `find` is then called with no runs.
    """

    def find_on_both_sides(verification: Verification) -> Iterator[str]:
        yield from find(verification.subjects)
        for message in find(verification.baseline):
            yield f"baseline: {message}"

    return find_on_both_sides


@_qualifier("unsteady", "The device became slower or faster within the window: it warmed up, or was shared.", "2 %")
@_each_side
def _unsteady(subjects: Sequence[Subject]) -> Iterator[str]:
    drifts = []
    for subject in subjects:
        window = subject.record.window
        if window is not None and window.steady is False:  # None if it is not known
            drifts.append(window.drift or 0.0)
    if not drifts:
        return
    largest = max(drifts, key=abs)
    if largest:
        yield f"window not steady (drift {100 * largest:+.1f} %)"
    else:
        yield "window not steady"


@_qualifier(
    "stalled-step",
    "One step waited for a disk, a network or another process, which makes the interval of its run wide.",
    "ten times the median step, and 1 % of the window",
)
def _stalled_step(verification: Verification) -> Iterator[str]:
    for compared in verification.metrics:
        if compared.spec.name == verification.case.gate:
            yield from _longest_stall(verification.subjects, compared.result.held_by)
            for message in _longest_stall(verification.baseline, compared.result.held_by):
                yield f"baseline: {message}"
            return  # a verdict has one gate


def _longest_stall(subjects: Sequence[Subject], metric: str) -> Iterator[str]:
    """Yield the stall, of those in the windows of several runs, that lost the largest share of its window."""
    stalls = list(_stalls(subjects, metric))
    if stalls:
        yield str(max(stalls, key=lambda stall: stall.share))


def _stalls(subjects: Sequence[Subject], metric: str) -> Iterator[Stall]:
    """Yield the longest stall in the window of each run that has one, in the time that a metric counts."""
    for subject in subjects:
        if subject.evidence is None:
            continue
        window = subject.evidence.step_range(kind_of(subject.config), WINDOW)
        if not window.steps:
            continue
        counted = find_counted_time(metric, window)
        stall = find_stall(window, counted.columns, counted.rank)
        if stall is not None:
            yield stall


HEATED = 30.0
"""Seconds of a window after which a device is near its steady temperature: a choice, not a measurement."""
MARGIN = 1.1
"""The advised window is longer than HEATED by this factor, as the next run may be faster."""


@_qualifier(
    "heat-not-seen",
    "The window ended before the device had its steady temperature, at which it may be slower.",
    f"{HEATED:g} s, a choice; not for runs on a processor, nor for `roofs`",
)
def _heat_not_seen(verification: Verification) -> Iterator[str]:
    for side, subjects in (("", verification.subjects), ("baseline: ", verification.baseline)):
        shortest = min(_windows_of_accelerators(subjects), default=None)
        if shortest is not None and shortest.seconds < HEATED:
            steps = math.ceil(MARGIN * HEATED / shortest.step_seconds)
            advice = f"--steps {steps} takes {steps * shortest.step_seconds:.0f} s"
            yield f"{side}a window of {shortest.seconds:.3g} s is too short to see heat: {advice}"
            return  # one message is enough: the same option is typed for both sides


class _WindowTime(NamedTuple):
    """The time of a window of measured steps, and that of its mean step; the smallest of several is the shortest."""

    seconds: float
    step_seconds: float


def _windows_of_accelerators(subjects: Sequence[Subject]) -> Iterator[_WindowTime]:
    """Yield the time of each window on an accelerator."""
    for subject in subjects:
        window = subject.record.window
        if window is None or not window.steps or not subject.on_accelerator:
            continue
        seconds = window.host_seconds or window.seconds
        # An INVALID record may have any numbers; a step of less than a microsecond has no measured time.
        if seconds / window.steps >= 1 / MICRO:
            yield _WindowTime(seconds, seconds / window.steps)


@_qualifier(
    "slow-device",
    "A device is hotter than the others, throttled, or shared.",
    "5 %, and three standard errors of the median over its measurements",
)
@_each_side
def _slow_device(subjects: Sequence[Subject]) -> Iterator[str]:
    messages: list[str] = []
    for subject in subjects:
        messages.extend(describe_slow_devices(subject.record))
    yield from dict.fromkeys(messages)


@_qualifier(
    "throttled",
    "The device is too hot, or its power is limited below its own limit.",
    f"{SAMPLE_SECONDS:g} s: one sample",
)
@_each_side
def _throttled(subjects: Sequence[Subject]) -> Iterator[str]:
    for reason, seconds in find_throttling(_telemetry_of_runs(subjects)).items():
        yield f"throttled {seconds:.0f} s ({reason})"


def _telemetry_of_runs(subjects: Sequence[Subject]) -> list[DeviceTelemetry]:
    """Return the telemetry of all devices of several runs."""
    devices: list[DeviceTelemetry] = []
    for subject in subjects:
        devices.extend(subject.device_telemetry)
    return devices


@_qualifier("network", "TCP may have made the runs slow: see `sockets`.")
@_each_side
def _network(subjects: Sequence[Subject]) -> Iterator[str]:
    if any(_unused_rdma(subject) for subject in subjects):
        yield "nodes connected by sockets instead of RDMA"


@_qualifier(
    "tenant",
    "Somebody else uses the device.",
    f"{MEMORY_BEFORE / GIB:g} GiB in use before the run: a driver alone uses less",
)
@_each_side
def _tenant(subjects: Sequence[Subject]) -> Iterator[str]:
    if describe_others_on_devices(_telemetry_of_runs(subjects)):
        yield "another tenant on the device"


@_qualifier("clock-set", "The time of day was set during the run.", "1 s")
@_each_side
def _clock_set(subjects: Sequence[Subject]) -> Iterator[str]:
    changes = [subject.record.system.clock_set_seconds or 0.0 for subject in subjects]
    largest = max(changes, key=abs, default=0.0)
    if largest:
        yield f"the clock was set by {largest:+.0f} s during the run"


@_qualifier("runs-overlap", "Two runs shared a device, or the time of day was set between them.", "2 s")
def _runs_overlap(verification: Verification) -> Iterator[str]:
    records = [subject.record for subject in (*verification.subjects, *verification.baseline)]
    for earlier, later in pairwise(sorted(records, key=start_of)):
        device = find_shared_device(earlier, later)
        if device:
            ids = f"{earlier.record_id} and {later.record_id}"
            yield f"by their dates {ids} ran at the same time on the device {brief(device)}"


@_qualifier("pinned", "One side may use fewer processors, by taskset, a cpuset or a limit of its container.")
def _pinned(verification: Verification) -> Iterator[str]:
    measured = {subject.record.system.cpu.usable for subject in verification.subjects}
    baseline = {subject.record.system.cpu.usable for subject in verification.baseline}
    if not measured or not baseline:
        return
    if None in measured or None in baseline:  # a record does not say it
        return
    if measured != baseline:
        yield f"usable processors: {_list_counts(measured)}, the baseline's {_list_counts(baseline)}"


def _list_counts(counts: Iterable[int | None]) -> str:
    """Return counts in ascending order, without those that are not known or 0."""
    known = sorted(count for count in counts if count)
    return ", ".join(map(str, known))


OUTSIDE_SHARE = 0.05
"""How much of the window's time outside of steps two sides may differ by."""


@_qualifier("outside-of-steps", "One side loses more time between steps, as in a slow loader.", "5 % of the window")
def _outside_of_steps(verification: Verification) -> Iterator[str]:
    measured = _share_outside_of_steps(verification.subjects)
    baseline = _share_outside_of_steps(verification.baseline)
    if measured is None or baseline is None:
        return
    if abs(measured - baseline) > OUTSIDE_SHARE:
        yield f"{measured:.0%} of the time outside of the device's steps, the baseline {baseline:.0%}"


def _share_outside_of_steps(subjects: Sequence[Subject]) -> float | None:
    """Return the share of the windows' time in which no step ran on the device; None if it is not known."""
    seconds = 0.0
    host_seconds = 0.0
    for subject in subjects:
        window = subject.record.window
        if window is None:
            continue
        if not window.host_seconds:
            return None
        seconds += window.seconds
        host_seconds += window.host_seconds
    if host_seconds <= 0:
        return None
    return 1 - seconds / host_seconds
