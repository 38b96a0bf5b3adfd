"""Rules on one record: if one of them finds a problem, the record is INVALID.

Each function is a rule, is named after the rule's id, and yields a message for each problem that it finds. The
arguments depend on what the rule needs (`rules.table.Find`): a Subject, which is a record with its case and its
recomputed metrics, and for EVIDENCE also the record's step times as a RecordEvidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flagbench.console.terminal import brief
from flagbench.machine.disturbance_limits import WHOLE_MEMORY
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.records.model import Measurement
from flagbench.verdict import checks
from flagbench.verdict.conditions import DEVICE_MODEL, alike
from flagbench.verdict.derivation import Unknown, count, derived_conditions, leaves, number, paths, same
from flagbench.verdict.rules.table import Needs, rule
from flagbench.verdict.subject import Subject, describe_difference, find_accelerator, value_text
from flagbench_core import __version__
from flagbench_core.case_kinds import INFER, TRAIN
from flagbench_core.checks import PRECISION_ERRORS, runs_in
from flagbench_core.config import preset_of
from flagbench_core.evidence import RecordEvidence
from flagbench_core.evidence.columns import MICRO, block_sizes
from flagbench_core.evidence.document import Span
from flagbench_core.evidence.metrics import OWN

ROUNDING = 1 + 1e-9
"""A number exceeds its limit only if it is larger by this factor: rounding alone stays far below it."""
GIB = 2.0**30
"""Bytes of a GiB."""


# How the run ended, and whether its numbers follow from its evidence


@rule("run-ended", Needs.RECORD, "A run that failed or was interrupted has numbers of a part of it.")
def _run_ended(subject: Subject) -> Iterator[str]:
    if subject.record.status.state != "ok":
        yield subject.ending


@rule("check-failed", Needs.RECORD, "A check of the run failed: its losses are not finite, its ranks out of step.")
def _check_failed(subject: Subject) -> Iterator[str]:
    for check in subject.record.checks:
        if not check.ok:
            yield f"check {check.name} failed: {check.detail}"


@rule("config-digest", Needs.RECORD, "The configuration was edited after the run, or is not there.")
def _config_digest(subject: Subject) -> Iterator[str]:
    recorded = subject.record.config_digest
    digest = subject.config_digest
    if recorded is None or digest is None:
        yield "it has no resolved configuration"
    elif recorded != digest:
        yield f"config_digest is {recorded}, and its configuration gives {digest}"


@rule("evidence", Needs.RUN, "The file was damaged or edited, or parts of two runs were joined.")
def _evidence(subject: Subject) -> Iterator[str]:
    yield from subject.unreadable


@rule(
    "numbers",
    Needs.RUN,
    "A number was edited, or the version that computed it has a defect.",
    "1e-6, relative: the same code computes both",
)
def _numbers(subject: Subject) -> Iterator[str]:
    yield from subject.differences


@rule("check-missing", Needs.RUN, "The image was built from a case that has fewer checks.")
def _check_missing(subject: Subject) -> Iterator[str]:
    if subject.made_by_another_version:
        return
    missing = checks.find_missing(subject.record, subject.case)
    if missing:
        yield f"its case requires checks that it does not have: {', '.join(missing)}"


@rule("check-again", Needs.EVIDENCE, "The image's own check has a defect, or what it was made of was edited.")
def _check_again(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    yield from checks.find_failing_again(subject.record)


# Conditions, each compared with the configuration, device or software that it follows from


@rule("condition-config", Needs.RUN, "A condition was edited, or an image of another version states it otherwise.")
def _condition_config(subject: Subject) -> Iterator[str]:
    if not subject.config:
        return
    conditions = subject.record.conditions
    for name, derived in derived_conditions(subject.case, subject.config).items():
        if name not in conditions:
            continue
        recorded = conditions[name]
        if not isinstance(derived, Unknown):
            if not alike(recorded, derived):
                yield describe_difference(f"the condition {name}", recorded, "its configuration gives", derived)
        elif derived.lacks:
            yield f"the condition {name} is {value_text(recorded)}, which its configuration does not give"
        elif recorded is not None and derived.excludes(recorded):
            yield f"the condition {name} is {value_text(recorded)}, which its configuration rules out"


@rule("condition-device", Needs.RUN, "A node has devices of several models.")
def _condition_device(subject: Subject) -> Iterator[str]:
    record = subject.record
    names = subject.device_names
    if not names or DEVICE_MODEL not in record.conditions:
        return
    recorded = record.conditions[DEVICE_MODEL]
    expected = " + ".join(names)
    if subject.accelerator is not None:
        expected = subject.accelerator.name
    # Of several nodes only node 0 lists its devices; the condition has the models of all, joined by " + ".
    if record.system.nodes > 1 and isinstance(recorded, str):
        models = set(recorded.split(" + "))
        if set(names) < models:  # a proper subset
            return
    if recorded != expected:
        yield describe_difference(f"the condition {DEVICE_MODEL}", recorded, "system.devices gives", expected)


@rule("condition-software", Needs.RUN, "A library or driver was replaced after the conditions were written down.")
def _condition_software(subject: Subject) -> Iterator[str]:
    record = subject.record
    software = subject.record.software
    versions = {**software.packages, "torch": software.torch, "cuda": software.cuda}
    for name, version in versions.items():
        recorded = record.conditions.get(name, version)  # not every version is a condition
        # A package may leave its build out of its version.
        differ_by_build = _extends(recorded, version) or _extends(version, recorded)
        if name in software.packages and differ_by_build:
            continue
        if recorded != version:
            yield describe_difference(f"the condition {name}", recorded, "software has", version)
    recorded = record.conditions.get("driver")
    driver = record.system.driver
    if recorded is not None and driver is not None and driver not in str(recorded).split(" + "):
        yield describe_difference("the condition driver", recorded, "system.driver is", driver)


@rule("software-stack", Needs.RUN, "A package of the image was replaced, or a package was installed into it.")
def _software_stack(subject: Subject) -> Iterator[str]:
    software = subject.record.software
    if subject.record.system.image.context_digest is None:
        return
    versions = {**software.packages, "python": software.python, "torch": software.torch, "cuda": software.cuda}
    for name, expected in software.stack_expects.items():
        version = versions.get(name)
        if version is not None and isinstance(expected, str) and not _extends(version, expected):
            yield describe_difference(f"{name} in software", version, "its image's stack expects", expected)


def _extends(version: Any, expected: Any) -> bool:
    """Whether a version equals the expected one or extends it: 2.13.0+cpu extends 2.13, and 2.130 does not."""
    if version == expected:
        return True
    return str(version).startswith((f"{expected}.", f"{expected}+"))


@rule("preset", Needs.RUN, "The image was built from an edited manifest, for instance with a smaller model to fit.")
def _preset(subject: Subject) -> Iterator[str]:
    """Compare the configuration with its preset, setting by setting.

    In the preset `reference` every setting has to be equal, except those that --set can change. In the preset `tiny`,
    and in a record that another version made, only the settings have to be equal that decide the conditions or the
    size of the work.
    """
    record = subject.record
    case = subject.case
    if not subject.config:
        return
    config = dict(leaves(record.config or {}))
    preset = dict(leaves(preset_of(case.presets, record.preset)))
    requires_all = record.preset == "reference" and not subject.made_by_another_version
    paths_of_conditions = set(paths(case.conditions))
    note = ""
    if subject.made_by_another_version:
        note = f" of flagbench {__version__}; the record was made by {record.flagbench.version}"
    for path in _settings_of_preset(subject, config, preset):
        on_both_sides = path in config and path in preset
        decides_work = path in paths_of_conditions or path.startswith(("model.", "layout.", "engine.name"))
        is_required = requires_all or (decides_work and on_both_sides)
        if not is_required:
            continue
        if path not in config:
            yield f"config.{path} is not in its configuration"
        elif path not in preset:
            yield f"config.{path} is not in the preset {record.preset}"
        elif not same(config[path], preset[path]):
            source = f"the preset {record.preset} has"
            yield describe_difference(f"config.{path}", config[path], source, preset[path]) + note


_CHANGED_BY_RESOLVING = frozenset(
    ("case", "division", "preset", "precision", "nodes", "gpus", "seed", "weights", "data.source", "data.default")
)
"""Settings that are added to a preset, or taken away, when a run's configuration is resolved."""


def _settings_of_preset(subject: Subject, config: Mapping[str, Any], preset: Mapping[str, Any]) -> Iterator[str]:
    """The dotted paths of the settings that a run has from its preset, without those that a user may change."""
    changeable = {*_CHANGED_BY_RESOLVING}
    changeable.update(setting["path"] for setting in subject.case.settable.values())
    for path, _ in leaves(subject.case.absent):
        # An earlier version did not have this setting, and the case says what it did instead.
        if path not in config:
            changeable.add(path)
    for path in dict.fromkeys((*preset, *config)):
        # --steps changes the length of the window.
        if path not in changeable and not path.endswith(".window_steps"):
            yield path


@rule("formula", Needs.RUN, "An image of another version counts other FLOPs.")
def _formula(subject: Subject) -> Iterator[str]:
    flops = subject.record.flops
    expected = subject.case.formula
    # Another version's record may have another formula, and its FLOPs are then not compared.
    if flops is None or expected is None or subject.other_formula:
        return
    if flops.formula != expected:
        yield describe_difference("flops.formula", flops.formula, f"{subject.case.name} has", expected)


@rule("peak", Needs.RUN, "The stack's manifest was edited, or has a peak of another variant of the device.")
def _peak(subject: Subject) -> Iterator[str]:
    """Compare the recorded peak with that of the run's stack, or of the device's model if the stack is not known."""
    if subject.record.flops is None or subject.record.flops.peak is None:
        return
    recorded = subject.record.flops.peak
    device = subject.device
    manifest = "the manifest"
    if subject.stack is not None:
        device = subject.accelerator
        manifest = f"the stack {subject.stack.name}"
    elif device is None:
        return
    expected = None
    if device is not None and recorded.precision in device.peaks:
        expected = device.peaks[recorded.precision].flops
    elif subject.made_by_another_version:
        return  # a later version knows the peaks of more devices
    if expected is None or not alike(recorded.flops, expected):
        yield describe_difference("flops.peak.flops", recorded.flops, f"{manifest} says of this device", expected)


# Devices, nodes and ranks


@rule("device-twice", Needs.RUN, "Two ranks share a device that is visible twice.")
def _device_twice(subject: Subject) -> Iterator[str]:
    devices = [device.uuid or f"of index {device.index}" for device in subject.record.system.devices]
    devices_of_ranks = []
    for rank in subject.record.ranks:
        if rank.uuid is not None or rank.local_rank is not None:
            devices_of_ranks.append(rank.uuid or f"{rank.local_rank} of node {rank.node}")
    for names in (devices, devices_of_ranks):  # each list by itself: both name the same devices
        for name, times in Counter(names).items():
            if times > 1:
                yield f"the device {value_text(name)} is counted {times} times"


@rule("devices-listed", Needs.RUN, "A device fell off the bus, or is hidden from the driver.")
def _devices_listed(subject: Subject) -> Iterator[str]:
    listed = len(subject.record.system.devices)
    expected = subject.record.system.devices_per_node
    if listed != expected:
        yield f"system.devices has {listed} of node 0, but system.devices_per_node is {expected}"


@rule("device-monitored", Needs.RUN, "The run and the tool that watches the devices number them differently.")
def _device_monitored(subject: Subject) -> Iterator[str]:
    record = subject.record
    ranks = sorted((rank for rank in record.ranks if rank.node == 0), key=lambda rank: rank.rank)
    # Another rule says that the numbers of ranks and devices differ.
    for rank, device in zip(ranks, record.system.devices, strict=False):
        if rank.uuid is not None and device.uuid is not None and rank.uuid != device.uuid:
            yield describe_difference(f"the UUID of rank {rank.rank}", rank.uuid, "system.devices has", device.uuid)
    if subject.device is None:
        return
    for monitored in subject.device_telemetry:
        if monitored.name is None or monitored.name in subject.device_names:
            continue
        model = find_accelerator(subject.case.stacks.values(), monitored.name)
        if model is None or model.name != subject.device.name:
            yield describe_difference("a device of system", subject.device.name, "by telemetry it is", monitored.name)


@rule("stack", Needs.RUN, "The image of another stack was started, or found no accelerator and ran on the processor.")
def _stack(subject: Subject) -> Iterator[str]:
    stack = subject.stack
    cpu = subject.record.system.cpu.model
    if stack is None:
        return
    if subject.record.case not in stack.runs:
        yield f"its stack is {stack.name}, which does not run {subject.record.case}"
    if stack.device_kind != "cpu":
        if cpu is not None and cpu in subject.device_names:
            yield f"its stack is {stack.name}, but system.devices has the processor {value_text(cpu)}"
        return
    for name in subject.device_names:
        if find_accelerator(subject.case.stacks.values(), name) is not None:
            yield f"its stack is {stack.name}, but system.devices has {value_text(name)}"
            return


@rule("world-size", Needs.RUN, "The launcher started other nodes or ranks than it was asked for.")
def _world_size(subject: Subject) -> Iterator[str]:
    record = subject.record
    system = subject.record.system
    for name, recorded, expected in (
        ("the condition nodes", record.conditions.get("nodes"), system.nodes),
        ("the condition devices", record.conditions.get("devices"), subject.world),
        ("config.nodes", subject.config.get("nodes"), system.nodes),
        ("config.gpus", subject.config.get("gpus"), system.devices_per_node),
    ):
        if recorded is not None and not alike(recorded, expected):
            yield describe_difference(
                name, recorded, f"system has {system.nodes} x {system.devices_per_node}:", expected
            )
    if not subject.replicas:
        return
    tp = count(subject.config, "layout.tp") or 1
    pp = count(subject.config, "layout.pp") or 1
    layout = f"dp{subject.replicas} tp{tp} pp{pp}"
    if record.conditions.get("layout", layout) != layout:
        yield describe_difference(
            "the condition layout", record.conditions["layout"], "its configuration gives", layout
        )
    if record.layout is not None:
        recorded_layout = f"dp{record.layout.dp} tp{record.layout.tp} pp{record.layout.pp}"
        if recorded_layout != layout:
            yield describe_difference("layout", recorded_layout, "its configuration gives", layout)


@rule("ranks", Needs.RUN, "A rank ended early, or two runs wrote into one folder.")
def _ranks(subject: Subject) -> Iterator[str]:
    ranks = subject.record.ranks
    system = subject.record.system
    numbers = sorted(rank.rank for rank in ranks)
    if len(numbers) != subject.world or numbers != list(range(subject.world)):
        yield f"its ranks are {_list_numbers(numbers)}, but system has {system.nodes} x {system.devices_per_node}"
    for rank in ranks:
        if rank.exit not in (None, "exit 0"):
            yield f"status.state is ok, but rank {rank.rank} ended with {value_text(rank.exit)}"
    steps = sorted({rank.steps for rank in ranks if rank.steps is not None})
    if len(steps) > 1:
        yield f"its ranks have different numbers of steps: {_list_numbers(steps)}"


def _list_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as one line of text, shortened if they are many; `none` if there are none."""
    # `brief` keeps one line, so that the first of any number of ranks are enough to join.
    return brief(", ".join(str(number) for number in numbers[:1000])) or "none"


# Precision


@rule("precision", Needs.RUN, "The environment or a library switched TF32 or a reduced precision on or off.")
def _precision(subject: Subject) -> Iterator[str]:
    proof = subject.record.software.precision or {}
    executed = proof.get("executed")
    if not isinstance(executed, str):
        yield f"software.precision does not say in what precision a matrix product ran: {value_text(proof)}"
        return
    for name, recorded in (
        ("the condition precision", subject.record.conditions.get("precision")),
        ("config.precision", subject.config.get("precision")),
    ):
        if recorded is not None and recorded != executed:
            yield describe_difference(name, recorded, "by software.precision a matrix product ran in", executed)


@rule(
    "precision-error",
    Needs.RUN,
    "A library computes in another precision than it says.",
    "limits of the relative error of a matrix product: PRECISION_ERRORS in flagbench_core/checks.py",
)
def _precision_error(subject: Subject) -> Iterator[str]:
    proof = subject.record.software.precision or {}
    error = number(proof, "relative_error")
    executed = proof.get("executed")
    if "relative_error" not in proof or executed not in PRECISION_ERRORS:
        return
    # A record may have null there: it says an error and has none.
    if error is None or not runs_in(str(executed), error):
        yield f"software.precision.executed is {executed}, but its relative_error is {value_text(error)}"


# What a device can do


@rule(
    "above-peak",
    Needs.RUN,
    "A step was timed that had not ended, a clock runs slow, or the peak is another device's.",
)
def _above_peak(subject: Subject) -> Iterator[str]:
    if subject.device is not None and subject.device.runs_above_boost:
        return
    for name in ("hfu", "mfu"):
        metric = subject.record.metric(name)
        if metric is not None and metric.value > ROUNDING:
            yield f"{name} is {metric.value:.4g}: more than the peak of the device"
    speed = subject.achieved_flops
    peak = subject.highest_flops
    if speed is not None and peak is not None and speed > peak * ROUNDING:
        yield f"its FLOPs over its window are {speed:.4g} FLOP/s per device, above the peak of {peak:.4g}"


BEYOND_CACHES = 2**30
"""Bytes of a copy that no device's caches hold, so that its rate is that of the memory."""


@rule("ceiling-above-peak", Needs.RUN, "The clock of the device runs slow, or the peak is of another device.")
def _ceiling_above_peak(subject: Subject) -> Iterator[str]:
    ceilings: list[float] = []
    if subject.record.flops is not None and subject.record.flops.measured_ceiling is not None:
        ceilings.append(subject.record.flops.measured_ceiling.flops)
    if subject.evidence is not None:
        ceilings.extend(subject.evidence.ceilings)
    highest = max(ceilings, default=0.0)
    peak = subject.highest_flops
    if peak is not None and highest > peak * ROUNDING:
        yield f"a matrix product reached {highest:.4g} FLOP/s, above the device's peak of {peak:.4g}"
    if subject.device is None:
        return
    for measurement in subject.record.measurements:
        limit = _highest_rate(subject.device, measurement)
        rate = max((measurement.rate, *measurement.devices))
        if limit is not None and rate > limit * ROUNDING:
            yield (
                f"{measurement.name} reached {rate:.4g} {measurement.unit}, above the {limit:.4g} that the device "
                "can reach"
            )


def _highest_rate(device: DeviceModel, measurement: Measurement) -> float | None:
    """Return the rate that a device cannot exceed in an operation, in the unit of the rate; None if not known."""
    if measurement.operation == "copy" and (measurement.bytes or 0) >= BEYOND_CACHES:
        if device.limits.memory_bandwidth is None:
            return None
        return device.limits.memory_bandwidth.value
    if device.runs_above_boost or not measurement.precision:
        return None
    peak = device.peaks.get(measurement.precision)
    if peak is None:
        return None
    return peak.flops


@rule(
    "device-memory",
    Needs.RUN,
    "A part of a device, or another variant of it, reports the name of the whole.",
    f"{100 * WHOLE_MEMORY:g} % of the model's memory: an A100 of 40 GiB reports 39.4",
)
def _device_memory(subject: Subject) -> Iterator[str]:
    model = subject.device
    if model is None:
        return
    sizes = [device.memory_bytes for device in subject.record.system.devices]
    for size in dict.fromkeys(sizes):  # each size once: most devices have the same
        if size is None:
            continue
        share = size / (model.memory_gib * GIB)
        if not WHOLE_MEMORY <= share <= ROUNDING:
            yield f"a device has {size / GIB:.4g} GiB by system.devices, but {model.name} has {model.memory_gib:g}"


@rule("memory-in-use", Needs.RUN, "The driver moved memory to the host, or its counter is wrong.")
def _memory_in_use(subject: Subject) -> Iterator[str]:
    memory = _memory_of_device(subject)
    if memory is None:
        return
    for name, used in _memory_used(subject):
        if used > memory * ROUNDING:
            yield f"{name} is {used:.4g} GiB, but a device has {memory:.4g}"


def _memory_of_device(subject: Subject) -> float | None:
    """Return the memory of a device, GiB: the smaller of what its driver reports and what its model has."""
    sizes = []
    reported = [device.memory_bytes / GIB for device in subject.record.system.devices if device.memory_bytes]
    if reported:
        sizes.append(max(reported))
    if subject.device is not None:
        sizes.append(subject.device.memory_gib)
    return min(sizes, default=None)


def _memory_used(subject: Subject) -> Iterator[tuple[str, float]]:
    """Yield the name of each counter of a device's memory, and the most that it has, GiB."""
    for name in ("mem_peak", "allocator_peak"):
        metric = subject.record.metric(name)
        if metric is not None:
            yield name, metric.value
    for device in subject.device_telemetry:
        if device.mem_used_max_bytes is None:
            continue
        # The monitor of a slice of a device (MIG) may see all of the device, with the memory of other slices.
        has_other_name = device.name is not None and device.name not in subject.device_names
        if subject.device is None and has_other_name:
            continue
        yield "telemetry's mem_used_max_bytes", device.mem_used_max_bytes / GIB


POWER_OF_SAMPLE = 1.15
"""A single sample of power may exceed the limit by this factor: a device regulates its mean, not each sample."""
POWER_OF_MEAN = 1.05
"""A mean of power may exceed the limit by this factor: NVML reads power within 5 %."""
CLOCK_STEP = 1.01
"""A clock may exceed its limit by this factor: about one step of the frequency, 15 MHz on NVIDIA's devices."""


@rule(
    "board-limits",
    Needs.RUN,
    "The board is another variant, or its limit was raised.",
    "power: 5 % for means and 15 % for samples (NVML API reference, nvmlDeviceGetPowerUsage); clocks: 1 %, one step",
)
def _board_limits(subject: Subject) -> Iterator[str]:
    if subject.device is None:
        return
    power = subject.device.limits.power_watts
    clock = subject.device.limits.sm_clock_mhz
    for device in subject.device_telemetry:
        for name, limit, tolerance in (
            ("power_max_w", power, POWER_OF_SAMPLE),
            ("power_mean_w", power, POWER_OF_MEAN),
            ("power_limit_w", power, POWER_OF_MEAN),
            ("sm_clock_mean_mhz", clock, CLOCK_STEP),
            ("sm_clock_min_mhz", clock, CLOCK_STEP),
            ("sm_clock_busy_mhz", clock, CLOCK_STEP),
        ):
            reading = getattr(device, name)
            if reading is None or limit is None:
                continue
            if reading > limit.value * tolerance * ROUNDING:
                yield f"telemetry has {name} of {reading:.5g}, but the device's limit is {limit.value:g}"


LEAST_ENERGY_SECONDS = 10
"""The shortest time over which energy and power are compared: power is sampled once a second."""
ENERGY_FACTOR = 2
"""Energy may be half to twice the power times the time: samples of power are instants, and miss what lies between."""


@rule(
    "energy",
    Needs.RUN,
    "The energy counter wraps, or is another device's.",
    "half to twice the mean power times its time, which is of samples once a second; in the window, which may take "
    "more than the mean, at most twice the highest power",
)
def _energy(subject: Subject) -> Iterator[str]:
    for device in subject.device_telemetry:
        mean = device.power_mean_w
        joules = device.energy_j
        seconds = device.energy_seconds
        if mean is None or joules is None or seconds is None or seconds < LEAST_ENERGY_SECONDS:
            continue
        if not mean / ENERGY_FACTOR <= joules / seconds <= mean * ENERGY_FACTOR:
            yield f"telemetry has {joules:.5g} J in {seconds:.5g} s, but a mean power of {mean:.5g} W"
    for device in subject.device_telemetry:
        highest = device.power_max_w
        window = device.window_energy
        if highest is None or window is None or window.seconds < LEAST_ENERGY_SECONDS:
            continue
        if window.joules > ENERGY_FACTOR * highest * window.seconds:
            yield (
                f"telemetry has {window.joules:.5g} J in a window of {window.seconds:.5g} s, but a highest power of "
                f"{highest:.5g} W"
            )


# Time


CLOCK_DRIFT = 1e-4
"""How far two sound clocks may drift apart, as a share of the time: quartz clocks are within a fifth of that."""


@rule("device-clock", Needs.RUN, "The clock of the device runs fast.", "one step, and 1e-4 of drift")
def _device_clock(subject: Subject) -> Iterator[str]:
    window = subject.record.window
    if window is None or window.host_seconds is None or not window.steps:
        return
    one_step = 1 / window.steps  # the two clocks may start and end the window at different points of a step
    if window.seconds > window.host_seconds * (1 + one_step + CLOCK_DRIFT):
        yield f"the window's device time of {window.seconds} s is longer than the {window.host_seconds} s it took"


@rule("launch-time", Needs.RUN, "A virtual machine was suspended, or a clock runs wrong.", "1e-4 of drift")
def _launch_time(subject: Subject) -> Iterator[str]:
    record = subject.record
    if record.launch is None:
        return
    seconds = record.duration or 0.0
    if record.timing.e2e is not None:
        # The duration is then e2e, which does not count the time of checkpoints.
        seconds += record.timing.checkpoint or 0.0
    if seconds > record.launch.seconds * (1 + CLOCK_DRIFT):
        yield f"its run took {seconds:.3f} s, but its launcher measured {record.launch.seconds:.3f} s"


@rule("step-without-time", Needs.EVIDENCE, "A clock is too coarse, or stands still.")
def _step_without_time(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    for span in evidence.spans:
        for name in ("host", "device"):
            for rank, blocks in enumerate(span.columns[name]):
                if 0 in blocks:
                    yield f"steps of rank {rank} in {span.name} took no time by the clock of the {name}"


STEP_ABOVE_PEAK = 1.05
"""One step may exceed the peak by this factor: its time is whole microseconds of another clock than the device's."""


@rule(
    "step-above-peak",
    Needs.EVIDENCE,
    "A step was timed that had not ended, or the clock of the device jumped.",
    "5 % of one step, by a clock of microseconds",
)
def _step_above_peak(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    """Compare the FLOP/s of each step with the peak of the device: FLOPs by tokens, time by the device's clock.

    A rank does the FLOPs of its tokens alone, or its share of them if the ranks of a replica divide each layer.
    """
    flops_of_unit = subject.flops_of_unit
    peak = subject.highest_flops
    if flops_of_unit is None or peak is None or not subject.replicas:
        return
    stages = count(subject.config, "layout.pp") or 1
    if stages > 1:  # stages of a pipeline have unequal shares of the FLOPs
        return
    flops_of_token = flops_of_unit * subject.replicas / subject.world
    if subject.case.unit != "tokens":
        flops_of_token /= subject.work_count("tokens_per_sample") or 1
    for span in evidence.spans:
        for rank in range(evidence.world):
            for tokens, micro in zip(span.columns["tokens"][rank], span.columns["device"][rank], strict=True):
                speed = flops_of_token * tokens / max(micro, 1) * MICRO
                if speed > STEP_ABOVE_PEAK * peak:
                    yield f"a step of rank {rank} in {span.name} did {speed:.4g} FLOP/s, above the peak of {peak:.4g}"


PHASE_SHARE = 0.02
"""The share of a phase outside of its steps and evaluations; 0.1 % was measured."""
PHASE_SECONDS = 0.1
"""Seconds of a phase outside of its steps and evaluations, in addition to PHASE_SHARE; 0.03 s were measured."""


@rule(
    "phase-time",
    Needs.EVIDENCE,
    "A process was stopped between two steps, a machine suspended, or steps are not in the record.",
    "2 % and 0.1 s (measured: 0.1 % and 0.03 s), and one step",
)
def _phase_time(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    """Compare the duration of each phase with the sum of its steps and evaluations, both in microseconds.

    A phase, such as the training, is timed from its start to its end, and each of its steps by itself. Steps follow
    each other without a gap, so both times are nearly equal. If the steps take longer than their phase, a clock is
    wrong. If the phase takes longer, it has time that belongs to no step, or steps that the record lacks.
    """
    for phase in dict.fromkeys(span.phase for span in evidence.spans):
        if phase not in evidence.durations:
            yield f"its evidence has no duration of {phase}"
            continue
        durations = evidence.durations[phase]
        step_range = evidence.step_range(phase)
        times_of_steps = [step_range.rank_time(OWN, rank) for rank in range(evidence.world)]
        mean_step = max(times_of_steps) / step_range.steps
        for rank, (steps_time, duration) in enumerate(zip(times_of_steps, durations, strict=True)):
            if steps_time > duration * (1 + CLOCK_DRIFT) + mean_step:
                yield (
                    f"the steps of {phase} of rank {rank} took {steps_time / MICRO:.3f} s, but its {phase} only "
                    f"{duration / MICRO:.3f} s"
                )
        accounted = max(times_of_steps)
        if phase == TRAIN:
            accounted += evidence.timing.get("eval", 0)
        longest = max(durations)
        # A resumed run skips the batches before its checkpoint, each in less time than a step takes.
        skipping = subject.first_step * mean_step
        allowed = PHASE_SHARE * longest + PHASE_SECONDS * MICRO + mean_step + skipping
        if longest - accounted > allowed:
            yield (
                f"its {phase} lasted {longest / MICRO:.3f} s, but its steps and evaluations only "
                f"{accounted / MICRO:.3f} s: steps are missing"
            )


# Work and losses


SAMPLES_FOR_MEAN = 100
"""From this many samples on, their mean number of sequences is near that of the data set."""


@rule(
    "work-of-step",
    Needs.EVIDENCE,
    "A loader counts padding, or batches that it did not give, or each rank of a replica counts the replica's work.",
    "half of the mean sequences of a sample that the conditions state, from 100 samples on",
)
def _work_of_step(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    """Compare the samples and tokens that each rank counted with those of full batches.

    A sample is one sequence, or several if each choice of a question is a sequence. Sequences are padded to
    `tokens_per_sample` tokens, of which the useful ones are not padding. The last batch of an epoch may be smaller
    than the others, and some publishers count it as full.
    """
    batch = subject.work_count("samples_per_step")
    length = subject.work_count("tokens_per_sample")
    if batch is None or length is None:
        return
    yield from _too_few_sequences(subject)
    most_sequences = _most_sequences(subject)
    for span in evidence.spans:
        for rank in range(evidence.world):
            for work in _distinct_work(span, rank, batch, evidence.block):
                if not work.samples <= work.samples_published <= work.samples_of_full_batches:
                    yield (
                        f"rank {rank} counts {work.samples} samples, published {work.samples_published}, and a full "
                        f"batch is {work.samples_of_full_batches}"
                    )
                least_tokens = work.samples * length
                is_possible = least_tokens <= work.tokens <= least_tokens * most_sequences
                if not is_possible or work.tokens_useful > work.tokens:
                    yield (
                        f"rank {rank} counts {work.tokens} tokens, {work.tokens_useful} of them useful, for "
                        f"{work.samples} samples of {length}"
                    )
        published = sum(sum(blocks) for blocks in span.columns["samples_published"])
        samples_of_full_batches = span.steps * batch * (subject.replicas or 0)
        if 0 < samples_of_full_batches < published:
            yield (
                f"all ranks count {published} published samples in {span.name}, and {span.steps} full batches of "
                f"{subject.replicas} replicas are {samples_of_full_batches}"
            )


def _too_few_sequences(subject: Subject) -> Iterator[str]:
    """Yield that samples have fewer than half of the sequences that the conditions state."""
    stated = subject.sequences_stated
    mean = subject.sequences_of_sample
    work = subject.record.work
    if stated is None or mean is None or work is None or work.samples_executed < SAMPLES_FOR_MEAN:
        return
    if mean < stated.mean / 2:
        yield f"its samples have {mean:.3g} sequences, but by its conditions their mean is {stated.mean:.3g}"


def _most_sequences(subject: Subject) -> float:
    """Return the most sequences of a sample, according to the ranges of its case and to its conditions."""
    most = max((limits.high for limits in subject.case.ranges.values()), default=1.0)
    if subject.sequences_stated is not None:
        most = min(most, subject.sequences_stated.most)
    return most


class _BlockWork(NamedTuple):
    """The work that a rank counted in a block of steps."""

    samples: int
    samples_published: int
    """The samples as the publisher's code counts them, which may credit a batch as full."""
    tokens: int
    tokens_useful: int
    """The tokens that are not padding."""
    samples_of_full_batches: int
    """The samples of as many full batches as the block has steps."""


def _distinct_work(span: Span, rank: int, batch: int, block: int) -> list[_BlockWork]:
    """Return the work of a rank's blocks without repetitions, sorted: most blocks have the same work.

    Args:
        span: consecutive steps of one phase.
        rank: the rank.
        batch: samples of a full batch.
        block: steps of a block.
    """
    names = ("samples", "samples_published", "tokens", "tokens_useful")
    columns = [span.columns[name][rank] for name in names]
    samples_of_full_batches = [batch * size for size in block_sizes(span.steps, block)]
    distinct = {*zip(*columns, samples_of_full_batches, strict=True)}
    return [_BlockWork(*counts) for counts in sorted(distinct)]


FLOPS_TOLERANCE = 1e-6
"""Largest relative difference of FLOPs that are counted twice by one formula."""


@rule("flops-of-work", Needs.EVIDENCE, "The image counts FLOPs of another model than its configuration has.", "1e-6")
def _flops_of_work(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    """Compare the FLOPs that the image counted with those of its tokens or samples, by the case's formula."""
    flops_of_unit = subject.flops_of_unit
    if flops_of_unit is None:
        return
    condition = subject.record.conditions.get("recompute")
    recomputed = evidence.step_range().flops("recomputed")
    states_recompute = condition not in (False, "none")
    if condition not in (None, NOT_PUBLISHED) and states_recompute != bool(recomputed):
        flops = f"{recomputed:.6g}"
        yield describe_difference(
            "the condition recompute", condition, "the FLOPs that its steps recomputed are", flops
        )
    for span in evidence.spans:
        executed = sum(span.flops["executed"])
        units: float = sum(sum(blocks) for blocks in span.columns["tokens"])
        if subject.case.unit != "tokens":
            units /= subject.work_count("tokens_per_sample") or 1
        expected = flops_of_unit * units
        rounding = evidence.world * span.steps  # each rank counts whole FLOPs in each step
        if abs(executed - expected) > FLOPS_TOLERANCE * expected + rounding:
            part = f"the FLOPs of its {span.part} of {span.phase}"
            yield describe_difference(part, f"{executed:.6g}", "its tokens take", expected)


LOSS_ROUNDING = 1e-3
"""How far below 0 a cross-entropy may be by rounding, in nats."""


@rule(
    "loss-impossible",
    Needs.EVIDENCE,
    "A kernel is broken: no cross-entropy is negative, and in inference nothing skips one that is not finite.",
    "0.001 nats of rounding",
)
def _loss_impossible(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    losses: list[float | None] = [*subject.finite_losses]
    if INFER in subject.config:
        losses = _losses_of_ranks(evidence)
    if None in losses:
        yield f"{losses.count(None)} of {len(losses)} losses are not finite"
    least = min((loss for loss in losses if loss is not None), default=0.0)
    if least < -LOSS_ROUNDING:
        yield f"a loss is {least:.6g}, which no cross-entropy is"


def _losses_of_ranks(evidence: RecordEvidence) -> list[float | None]:
    """Return the losses of all ranks in all steps; None in place of a loss that is not finite."""
    losses: list[float | None] = []
    for span in evidence.spans:
        for losses_of_rank in span.loss:
            losses.extend(losses_of_rank or ())
    return losses


STEPS_OF_CONSTANT_LOSS = 100
"""From this many steps on, losses that are all equal mean that nothing is learned."""


@rule("loss-constant", Needs.EVIDENCE, "Nothing is learned: every update is skipped, or of size 0.", "100 steps")
def _loss_constant(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    if INFER in subject.config:
        return
    losses = subject.finite_losses
    if len(losses) >= STEPS_OF_CONSTANT_LOSS and min(losses) == max(losses):
        yield f"the loss of all {len(losses)} steps is {losses[0]:.6g}"


@rule("examples-counted", Needs.EVIDENCE, "A sampler that fills the last batch counts examples twice.")
def _examples_counted(subject: Subject, evidence: RecordEvidence) -> Iterator[str]:
    examples = number(subject.record.raw, "quality.data.eval_examples")
    if examples is None:
        return
    for evaluation in subject.evaluations:
        if evaluation.get("accuracy") is not None and evaluation["counted"] > examples:
            yield f"an evaluation counted {evaluation['counted']:,} examples, and its set has {examples:,}"
