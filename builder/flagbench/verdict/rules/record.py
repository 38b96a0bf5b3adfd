"""Rules on one record: where one finds something, the record is INVALID."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from flagbench.console.terminal import brief
from flagbench.machine.disturbance_limits import WHOLE_MEMORY
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.verdict import checks
from flagbench.verdict.conditions import DEVICE_MODEL, alike
from flagbench.verdict.derivation import Unknown, count, derived_conditions, leaves, number, paths, same
from flagbench.verdict.rules.table import Needs, rule
from flagbench.verdict.subject import Subject, differ, text
from flagbench_core import __version__
from flagbench_core.checks import PRECISION_ERRORS, runs_in
from flagbench_core.config import preset_of
from flagbench_core.evidence import Section
from flagbench_core.evidence.columns import MICRO, block_sizes
from flagbench_core.evidence.metrics import OWN
from flagbench_core.evidence.section import INFER, TRAIN, Span

ROUNDING = 1 + 1e-9
GIB = 2.0**30
BEYOND_CACHES = 2**30
"""Bytes of a copy that no device's caches hold, so that its rate is that of the memory."""


# How the run ended, and whether its numbers follow from its evidence


@rule("run-ended", Needs.RECORD, "A run that failed or was interrupted has numbers of a part of it.")
def _run_ended(subject: Subject) -> Iterator[str]:
    if subject.record.status.state != "ok":
        yield subject.ending


@rule("check-failed", Needs.RECORD, "A check of the run failed: its losses are not finite, its ranks out of step.")
def _check_failed(subject: Subject) -> Iterator[str]:
    yield from (f"check {check.name} failed: {check.detail}" for check in subject.record.checks if not check.ok)


@rule("config-digest", Needs.RECORD, "The configuration was edited after the run, or is not there.")
def _config_digest(subject: Subject) -> Iterator[str]:
    stated, given = subject.record.config_digest, subject.config_digest
    if stated is None or given is None:
        yield "it has no resolved configuration"
    elif stated != given:
        yield f"config_digest is {stated}, and its configuration gives {given}"


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
    missing = () if subject.made_elsewhere else checks.missing(subject.record, subject.case)
    if missing:
        yield f"its case requires checks that it does not have: {', '.join(missing)}"


@rule("check-again", Needs.EVIDENCE, "The image's own check has a defect, or what it was made of was edited.")
def _check_again(subject: Subject, section: Section) -> Iterator[str]:
    yield from checks.failing_again(subject.record)


# Conditions, each beside what it follows from


@rule("condition-config", Needs.RUN, "A condition was edited, or an image of another version states it otherwise.")
def _condition_config(subject: Subject) -> Iterator[str]:
    stated = subject.record.conditions
    for name, value in derived_conditions(subject.case, subject.config).items() if subject.config else ():
        if name not in stated:
            continue
        here = stated[name]
        if not isinstance(value, Unknown):
            if not alike(here, value):
                yield differ(f"the condition {name}", here, "its configuration gives", value)
        elif value.lacks:
            yield f"the condition {name} is {text(here)}, which its configuration does not give"
        elif here is not None and value.excludes(here):
            yield f"the condition {name} is {text(here)}, which its configuration rules out"


@rule("condition-device", Needs.RUN, "A node has devices of several models.")
def _condition_device(subject: Subject) -> Iterator[str]:
    record, names = subject.record, subject.names
    stated = record.conditions.get(DEVICE_MODEL)
    expected = subject.accelerator.name if subject.accelerator else " + ".join(names)
    # Of several nodes only node 0 lists its devices; the condition joins those of all.
    joined = isinstance(stated, str) and record.system.nodes > 1 and set(names) < set(stated.split(" + "))
    if names and DEVICE_MODEL in record.conditions and stated != expected and not joined:
        yield differ(f"the condition {DEVICE_MODEL}", stated, "system.devices gives", expected)


@rule("condition-software", Needs.RUN, "A library or driver was replaced after the conditions were written down.")
def _condition_software(subject: Subject) -> Iterator[str]:
    record, software = subject.record, subject.record.software
    for name, version in {**software.packages, "torch": software.torch, "cuda": software.cuda}.items():
        here = record.conditions.get(name, version)
        # A package may leave its build out of its version.
        alike_names = name in software.packages and (_extends(here, version) or _extends(version, here))
        if here != version and not alike_names:
            yield differ(f"the condition {name}", here, "software has", version)
    stated, driver = record.conditions.get("driver"), record.system.driver
    if stated is not None and driver is not None and driver not in str(stated).split(" + "):
        yield differ("the condition driver", stated, "system.driver is", driver)


@rule("software-stack", Needs.RUN, "A package of the image was replaced, or a package was installed into it.")
def _software_stack(subject: Subject) -> Iterator[str]:
    software = subject.record.software
    if subject.record.system.image.context_digest is None:
        return
    versions = {**software.packages, "python": software.python, "torch": software.torch, "cuda": software.cuda}
    for name, expected in software.stack_expects.items():
        here = versions.get(name)
        if here is not None and isinstance(expected, str) and not _extends(here, expected):
            yield differ(f"{name} in software", here, "its image's stack expects", expected)


def _extends(version: Any, expected: Any) -> bool:
    """Whether a version equals the expected one or extends it: 2.13.0+cpu is a 2.13, and 2.130 is not."""
    return version == expected or str(version).startswith((f"{expected}.", f"{expected}+"))


@rule("preset", Needs.RUN, "The image was built from an edited manifest, for instance with a smaller model to fit.")
def _preset(subject: Subject) -> Iterator[str]:
    """Of `reference` every value, but those that --set can set, which conditions follow from; of `tiny`, and of a
    record of another version, those that conditions follow from, and those of model, layout and engine."""
    record, case = subject.record, subject.case
    here, there = dict(leaves(record.config or {})), dict(leaves(preset_of(case.presets, record.preset)))
    free = _CHANGED_BY_RESOLVING | {setting["path"] for setting in case.settable.values()}
    free |= {path for path, _ in leaves(case.absent) if path not in here}
    loose, derived = subject.made_elsewhere or record.preset != "reference", set(paths(case.conditions))
    note = f" of flagbench {__version__}; the record was made by {record.flagbench.version}"
    for path in dict.fromkeys((*there, *here)) if subject.config else ():
        if path in free or path.endswith(".window_steps"):
            continue
        matters = path.startswith(("model.", "layout.", "engine.name")) or path in derived
        if loose and not (matters and path in here and path in there):
            continue
        if path not in here or path not in there:
            yield f"config.{path} is not in {f'the preset {record.preset}' if path in here else 'its configuration'}"
        elif not same(here[path], there[path]):
            source = f"the preset {record.preset} has"
            yield differ(f"config.{path}", here[path], source, there[path]) + (note if subject.made_elsewhere else "")


_CHANGED_BY_RESOLVING = frozenset(
    ("case", "division", "preset", "precision", "nodes", "gpus", "seed", "weights", "data.source", "data.default")
)
"""What resolving a configuration adds to a preset, or takes away."""


@rule("formula", Needs.RUN, "An image of another version counts other FLOPs.")
def _formula(subject: Subject) -> Iterator[str]:
    flops = subject.record.flops
    if flops and subject.case.formula not in (None, flops.formula) and not subject.other_formula:
        yield differ("flops.formula", flops.formula, f"{subject.case.name} has", subject.case.formula)


@rule("peak", Needs.RUN, "The stack's manifest was edited, or has a peak of another variant of the device.")
def _peak(subject: Subject) -> Iterator[str]:
    peak = subject.record.flops.peak if subject.record.flops is not None else None
    device = subject.device if subject.stack is None else subject.accelerator
    if peak is None or (subject.stack is None and device is None):
        return
    known = device.peaks.get(peak.precision) if device else None
    if known is None and subject.made_elsewhere:  # a later version knows more devices
        return
    if known is None or not alike(peak.flops, known.flops):
        manifest = f"the stack {subject.stack.name}" if subject.stack else "the manifest"
        yield differ("flops.peak.flops", peak.flops, f"{manifest} says of this device", known and known.flops)


# Devices, nodes and ranks


@rule("device-twice", Needs.RUN, "Two ranks share a device that is visible twice.")
def _device_twice(subject: Subject) -> Iterator[str]:
    devices = [device.uuid or f"of index {device.index}" for device in subject.record.system.devices]
    ranks = [
        rank.uuid or f"{rank.local_rank} of node {rank.node}"
        for rank in subject.record.ranks
        if (rank.uuid, rank.local_rank) != (None, None)
    ]
    for owners in (devices, ranks):
        yield from (f"the device {text(one)} is counted {n} times" for one, n in Counter(owners).items() if n > 1)


@rule("devices-listed", Needs.RUN, "A device fell off the bus, or is hidden from the driver.")
def _devices_listed(subject: Subject) -> Iterator[str]:
    listed, expected = len(subject.record.system.devices), subject.record.system.devices_per_node
    if listed != expected:
        yield f"system.devices has {listed} of node 0, but system.devices_per_node is {expected}"


@rule("device-monitored", Needs.RUN, "The run and the tool that watches the devices number them differently.")
def _device_monitored(subject: Subject) -> Iterator[str]:
    record = subject.record
    own = sorted((rank for rank in record.ranks if rank.node == 0), key=lambda rank: rank.rank)
    for rank, device in zip(own, record.system.devices, strict=False):
        if rank.uuid is not None and device.uuid is not None and rank.uuid != device.uuid:
            yield differ(f"the UUID of rank {rank.rank}", rank.uuid, "system.devices has", device.uuid)
    for monitored in subject.monitored:
        if monitored.name is None or subject.device is None or monitored.name in subject.names:
            continue
        known = next(filter(None, (s.accelerator(monitored.name) for s in subject.case.stacks.values())), None)
        if known is None or known.name != subject.device.name:
            yield differ("a device of system", subject.device.name, "by telemetry it is", monitored.name)


@rule("stack", Needs.RUN, "The image of another stack was started, or found no accelerator and ran on the processor.")
def _stack(subject: Subject) -> Iterator[str]:
    stack, cpu = subject.stack, subject.record.system.cpu.model
    if stack is None:
        return
    if subject.record.case not in stack.runs:
        yield f"its stack is {stack.name}, which does not run {subject.record.case}"
    if stack.device_kind != "cpu" and cpu is not None and cpu in subject.names:
        yield f"its stack is {stack.name}, but system.devices has the processor {text(cpu)}"
    device = next((n for n in subject.names for s in subject.case.stacks.values() if s.accelerator(n)), None)
    if stack.device_kind == "cpu" and device is not None:
        yield f"its stack is {stack.name}, but system.devices has {text(device)}"


@rule("world-size", Needs.RUN, "The launcher started other nodes or ranks than it was asked for.")
def _world_size(subject: Subject) -> Iterator[str]:
    record, system = subject.record, subject.record.system
    product = f"system has {system.nodes} x {system.devices_per_node}"
    for name, stated, here in (
        ("the condition nodes", record.conditions.get("nodes"), system.nodes),
        ("the condition devices", record.conditions.get("devices"), subject.world),
        ("config.nodes", subject.config.get("nodes"), system.nodes),
        ("config.gpus", subject.config.get("gpus"), system.devices_per_node),
    ):
        if stated is not None and not alike(stated, here):
            yield differ(name, stated, f"{product}:", here)
    tp, pp = (count(subject.config, f"layout.{axis}") or 1 for axis in ("tp", "pp"))
    layout = f"dp{subject.replicas} tp{tp} pp{pp}"
    if subject.replicas and record.conditions.get("layout", layout) != layout:
        yield differ("the condition layout", record.conditions["layout"], "its configuration gives", layout)
    if subject.replicas and record.layout is not None:
        own = f"dp{record.layout.dp} tp{record.layout.tp} pp{record.layout.pp}"
        if own != layout:
            yield differ("layout", own, "its configuration gives", layout)


@rule("ranks", Needs.RUN, "A rank ended early, or two runs wrote into one folder.")
def _ranks(subject: Subject) -> Iterator[str]:
    ranks, system = subject.record.ranks, subject.record.system
    found = sorted(rank.rank for rank in ranks)
    if len(found) != subject.world or found != list(range(subject.world)):
        yield f"its ranks are {_listed(found)}, but system has {system.nodes} x {system.devices_per_node}"
    for rank in ranks:
        if rank.exit not in (None, "exit 0"):
            yield f"status.state is ok, but rank {rank.rank} ended with {text(rank.exit)}"
    steps = sorted({rank.steps for rank in ranks if rank.steps is not None})
    if len(steps) > 1:
        yield f"its ranks have different numbers of steps: {_listed(steps)}"


def _listed(numbers: Sequence[int]) -> str:
    return brief(", ".join(map(str, numbers[:1000]))) or "none"


# Precision


@rule("precision", Needs.RUN, "The environment or a library switched TF32 or a reduced precision on or off.")
def _precision(subject: Subject) -> Iterator[str]:
    proof = subject.record.software.precision or {}
    executed = proof.get("executed")
    if not isinstance(executed, str):
        yield f"software.precision does not say in what precision a matrix product ran: {text(proof)}"
        return
    for name, stated in (
        ("the condition precision", subject.record.conditions.get("precision")),
        ("config.precision", subject.config.get("precision")),
    ):
        if stated is not None and stated != executed:
            yield differ(name, stated, "by software.precision a matrix product ran in", executed)


@rule(
    "precision-error",
    Needs.RUN,
    "A library computes in another precision than it says.",
    "limits of the relative error of a matrix product: PRECISION_ERRORS in flagbench_core/checks.py",
)
def _precision_error(subject: Subject) -> Iterator[str]:
    proof = subject.record.software.precision or {}
    error, executed = number(proof, "relative_error"), proof.get("executed")
    if "relative_error" not in proof or executed not in PRECISION_ERRORS:  # null is no number
        return
    if not runs_in(str(executed), float("nan") if error is None else error):
        yield f"software.precision.executed is {executed}, but its relative_error is {text(error)}"


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
    speed, peak = subject.achieved, subject.most
    if speed is not None and peak is not None and speed > peak * ROUNDING:
        yield f"its FLOPs over its window are {speed:.4g} FLOP/s per device, above the peak of {peak:.4g}"


@rule("ceiling-above-peak", Needs.RUN, "The clock of the device runs slow, or the peak is of another device.")
def _ceiling_above_peak(subject: Subject) -> Iterator[str]:
    flops, peak = subject.record.flops, subject.most
    ceilings = [flops.measured_ceiling.flops] if flops and flops.measured_ceiling else []
    most = max([*ceilings, *(subject.section.ceilings if subject.section else ())], default=0.0)
    if peak is not None and most > peak * ROUNDING:
        yield f"a matrix product reached {most:.4g} FLOP/s, above the device's peak of {peak:.4g}"
    device = subject.device
    bandwidth = device.limits.memory_bandwidth if device else None
    for each in subject.record.measurements if device else ():
        of_precision = device.peaks.get(each.precision) if device and each.precision else None
        limit = of_precision.flops if of_precision and device and not device.runs_above_boost else None
        if each.operation == "copy" and (each.bytes or 0) >= BEYOND_CACHES:
            limit = bandwidth.value if bandwidth else None
        most = max((each.rate, *each.devices))
        if limit is not None and most > limit * ROUNDING:
            yield f"{each.name} reached {most:.4g} {each.unit}, above the {limit:.4g} that the device can reach"


@rule(
    "device-memory",
    Needs.RUN,
    "A part of a device, or another variant of it, reports the name of the whole.",
    f"{100 * WHOLE_MEMORY:g} % of the model's memory: an A100 of 40 GiB reports 39.4",
)
def _device_memory(subject: Subject) -> Iterator[str]:
    known = subject.device
    for size in dict.fromkeys(device.memory_bytes for device in subject.record.system.devices):
        if known is not None and size is not None and not WHOLE_MEMORY <= size / (known.memory_gib * GIB) <= ROUNDING:
            yield f"a device has {size / GIB:.4g} GiB by system.devices, but {known.name} has {known.memory_gib:g}"


@rule("memory-in-use", Needs.RUN, "The driver moved memory to the host, or its counter is wrong.")
def _memory_in_use(subject: Subject) -> Iterator[str]:
    sizes = [device.memory_bytes / GIB for device in subject.record.system.devices if device.memory_bytes]
    known = [subject.device.memory_gib] if subject.device else []
    most = min([*([max(sizes)] if sizes else []), *known], default=None)
    found = [(name, m.value) for name in ("mem_peak", "allocator_peak") if (m := subject.record.metric(name))]
    for device in subject.monitored:
        # In a slice of a device (MIG), a monitor may see the whole of it, with the memory of others.
        whole = subject.device is None and device.name is not None and device.name not in subject.names
        if device.mem_used_max_bytes is not None and not whole:
            found.append(("telemetry's mem_used_max_bytes", device.mem_used_max_bytes / GIB))
    for name, used in found:
        if most is not None and used > most * ROUNDING:
            yield f"{name} is {used:.4g} GiB, but a device has {most:.4g}"


@rule(
    "board-limits",
    Needs.RUN,
    "The board is another variant, or its limit was raised.",
    "power: 5 % for means and 15 % for samples (NVML API reference, nvmlDeviceGetPowerUsage); clocks: 1 %, one step",
)
def _board_limits(subject: Subject) -> Iterator[str]:
    limits = subject.device.limits if subject.device else None
    power, clock = (limits.power_watts, limits.sm_clock_mhz) if limits else (None, None)
    for device in subject.monitored:
        for name, limit, tolerance in (
            ("power_max_w", power, 1.15),
            ("power_mean_w", power, 1.05),
            ("power_limit_w", power, 1.05),
            ("sm_clock_mean_mhz", clock, 1.01),
            ("sm_clock_min_mhz", clock, 1.01),
            ("sm_clock_busy_mhz", clock, 1.01),
        ):
            value = getattr(device, name)
            if value is not None and limit is not None and value > limit.value * tolerance * ROUNDING:
                yield f"telemetry has {name} of {value:.5g}, but the device's limit is {limit.value:g}"


@rule(
    "energy",
    Needs.RUN,
    "The energy counter wraps, or is another device's.",
    "half to twice the mean power times its time, which is of samples once a second; in the window, which may take "
    "more than the mean, at most twice the highest power",
)
def _energy(subject: Subject) -> Iterator[str]:
    for device in subject.monitored:
        mean, joules, seconds = device.power_mean_w, device.energy_j, device.energy_seconds
        if mean is None or joules is None or seconds is None or seconds < 10:  # of few samples, a second apart
            continue
        if not mean / 2 <= joules / seconds <= mean * 2:
            yield f"telemetry has {joules:.5g} J in {seconds:.5g} s, but a mean power of {mean:.5g} W"
    for device in subject.monitored:
        highest, window = device.power_max_w, device.window_energy
        if highest is None or window is None or window.seconds < 10:
            continue
        if window.joules > 2 * highest * window.seconds:
            yield (
                f"telemetry has {window.joules:.5g} J in a window of {window.seconds:.5g} s, but a highest power of "
                f"{highest:.5g} W"
            )


# Time


@rule("device-clock", Needs.RUN, "The clock of the device runs fast.", "one step, and 1e-4 of drift")
def _device_clock(subject: Subject) -> Iterator[str]:
    window = subject.record.window
    if window is None or window.host_seconds is None or not window.steps:
        return
    if window.seconds > window.host_seconds * (1 + 1 / window.steps + 1e-4):
        yield f"the window's device time of {window.seconds} s is longer than the {window.host_seconds} s it took"


@rule("launch-time", Needs.RUN, "A virtual machine was suspended, or a clock runs wrong.", "1e-4 of drift")
def _launch_time(subject: Subject) -> Iterator[str]:
    record = subject.record
    # e2e does not count checkpoints.
    took = (record.duration or 0.0) + ((record.timing.checkpoint or 0.0) if record.timing.e2e is not None else 0.0)
    if record.launch is not None and took > record.launch.seconds * (1 + 1e-4):
        yield f"its run took {took:.3f} s, but its launcher measured {record.launch.seconds:.3f} s"


@rule("step-without-time", Needs.EVIDENCE, "A clock is too coarse, or stands still.")
def _step_without_time(subject: Subject, section: Section) -> Iterator[str]:
    for span in section.spans:
        for name in ("host", "device"):
            for rank, blocks in enumerate(span.columns[name]):
                if 0 in blocks:
                    yield f"steps of rank {rank} in {span.name} took no time by the clock of the {name}"


@rule(
    "step-above-peak",
    Needs.EVIDENCE,
    "A step was timed that had not ended, or the clock of the device jumped.",
    "5 % of one step, by a clock of microseconds",
)
def _step_above_peak(subject: Subject, section: Section) -> Iterator[str]:
    per, length, peak = subject.flops_of_unit, subject.counted("tokens_per_sample"), subject.most
    # Stages of a pipeline have unequal shares.
    if per is None or peak is None or not subject.replicas or (count(subject.config, "layout.pp") or 1) > 1:
        return
    share = per * subject.replicas / subject.world / (1 if subject.case.unit == "tokens" else length or 1)
    for span in section.spans:
        for rank in range(section.world):
            for tokens, micro in zip(span.columns["tokens"][rank], span.columns["device"][rank], strict=True):
                speed = share * tokens / max(micro, 1) * MICRO
                if speed > 1.05 * peak:
                    yield f"a step of rank {rank} in {span.name} did {speed:.4g} FLOP/s, above the peak of {peak:.4g}"


@rule(
    "phase-time",
    Needs.EVIDENCE,
    "A process was stopped between two steps, a machine suspended, or steps are not in the record.",
    "2 % and 0.1 s (measured: 0.1 % and 0.03 s), and one step",
)
def _phase_time(subject: Subject, section: Section) -> Iterator[str]:
    """The steps of a phase fit into its duration, and leave nothing of it but evaluations; a resumed run has also
    skipped the batches before its checkpoint."""
    for phase in dict.fromkeys(span.phase for span in section.spans):
        if phase not in section.durations:
            yield f"its evidence has no duration of {phase}"
            continue
        lasted, stretch = section.durations[phase], section.stretch(phase)
        own = [stretch.rank_time(OWN, rank) for rank in range(section.world)]
        step = max(own) / stretch.steps
        for rank, (seconds, most) in enumerate(zip(own, lasted, strict=True)):
            if seconds > most * (1 + 1e-4) + step:
                steps = f"the steps of {phase} of rank {rank} took {seconds / MICRO:.3f} s"
                yield f"{steps}, but its {phase} only {most / MICRO:.3f} s"
        parts = max(own) + (section.timing.get("eval", 0) if phase == TRAIN else 0)
        skipped = subject.first_step * step  # a batch is skipped in less time than a step takes
        if max(lasted) - parts > 0.02 * max(lasted) + 0.1 * MICRO + step + skipped:
            took = f"its {phase} lasted {max(lasted) / MICRO:.3f} s"
            yield f"{took}, but its steps and evaluations only {parts / MICRO:.3f} s: steps are missing"


# Work and losses


@rule(
    "work-of-step",
    Needs.EVIDENCE,
    "A loader counts padding, or batches that it did not give, or each rank of a replica counts the replica's work.",
    "half of the mean sequences of a sample that the conditions state, from 100 samples on",
)
def _work_of_step(subject: Subject, section: Section) -> Iterator[str]:
    batch, length = subject.counted("samples_per_step"), subject.counted("tokens_per_sample")
    if batch is None or length is None:
        return
    most = max((entry.high for entry in subject.case.ranges.values()), default=1)
    mean, work = subject.sequences_of_sample, subject.record.work
    if stated := subject.sequences_stated:
        most = min(most, stated[1])
        if mean is not None and work is not None and work.samples_executed >= 100 and mean < stated[0] / 2:
            yield f"its samples have {mean:.3g} sequences, but by its conditions their mean is {stated[0]:.3g}"
    for span in section.spans:
        for rank in range(section.world):
            for samples, published, tokens, useful, full in _work(span, rank, batch, section.block):
                if not samples <= published <= full:
                    yield f"rank {rank} counts {samples} samples, published {published}, and a full batch is {full}"
                if not samples * length <= tokens <= samples * length * most or useful > tokens:
                    what = f"{samples} samples of {length}"
                    yield f"rank {rank} counts {tokens} tokens, {useful} of them useful, for {what}"
        published = sum(sum(own) for own in span.columns["samples_published"])
        full = span.steps * batch * (subject.replicas or 0)
        if 0 < full < published:
            what = f"{span.steps} full batches of {subject.replicas} replicas"
            yield f"all ranks count {published} published samples in {span.name}, and {what} are {full}"


def _work(span: Span, rank: int, batch: int, block: int) -> list[tuple[int, ...]]:
    """Samples, published samples, tokens and useful tokens of blocks, and the samples of as many full batches.

    Each once: in most steps they are the same.
    """
    names = ("samples", "samples_published", "tokens", "tokens_useful")
    columns = [span.columns[name][rank] for name in names]
    full = [batch * size for size in block_sizes(span.steps, block)]
    return sorted({*zip(*columns, full, strict=True)})


@rule("flops-of-work", Needs.EVIDENCE, "The image counts FLOPs of another model than its configuration has.", "1e-6")
def _flops_of_work(subject: Subject, section: Section) -> Iterator[str]:
    per, length = subject.flops_of_unit, subject.counted("tokens_per_sample")
    again, recomputed = subject.record.conditions.get("recompute"), section.stretch().flops("recomputed")
    if per is not None and again not in (None, NOT_PUBLISHED) and (again in (False, "none")) != (not recomputed):
        yield differ("the condition recompute", again, "the FLOPs that its steps recomputed are", f"{recomputed:.6g}")
    for span in section.spans if per is not None else ():
        executed, tokens = sum(span.flops["executed"]), sum(sum(own) for own in span.columns["tokens"])
        expected = (per or 0.0) * (tokens if subject.case.unit == "tokens" else tokens / (length or 1))
        if abs(executed - expected) > 1e-6 * expected + section.world * span.steps:
            what = f"the FLOPs of its {span.part} of {span.phase}"
            yield differ(what, f"{executed:.6g}", "its tokens take", expected)


@rule(
    "loss-impossible",
    Needs.EVIDENCE,
    "A kernel is broken: no cross-entropy is negative, and in inference nothing skips one that is not finite.",
    "0.001 nats of rounding",
)
def _loss_impossible(subject: Subject, section: Section) -> Iterator[str]:
    losses: list[float | None] = [*subject.finite_losses]
    if INFER in subject.config:
        losses = [loss for span in section.spans for own in span.loss for loss in own or ()]
    if None in losses:
        yield f"{losses.count(None)} of {len(losses)} losses are not finite"
    least = min((loss for loss in losses if loss is not None), default=0.0)
    if least < -1e-3:
        yield f"a loss is {least:.6g}, which no cross-entropy is"


@rule("loss-constant", Needs.EVIDENCE, "Nothing is learned: every update is skipped, or of size 0.", "100 steps")
def _loss_constant(subject: Subject, section: Section) -> Iterator[str]:
    losses = [] if INFER in subject.config else subject.finite_losses
    if len(losses) >= 100 and min(losses) == max(losses):
        yield f"the loss of all {len(losses)} steps is {losses[0]:.6g}"


@rule("examples-counted", Needs.EVIDENCE, "A sampler that fills the last batch counts examples twice.")
def _examples_counted(subject: Subject, section: Section) -> Iterator[str]:
    examples = number(subject.record.raw, "quality.data.eval_examples")
    for entry in subject.evaluations:
        if entry.get("accuracy") is not None and examples is not None and entry["counted"] > examples:
            yield f"an evaluation counted {entry['counted']:,} examples, and its set has {examples:,}"
