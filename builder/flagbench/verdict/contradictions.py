"""Whether the parts of a record agree: its conditions with its configuration, system, software and ranks.

Every condition that follows from another part of the record is derived and compared. A record in which two parts say
different things is invalid, whichever of them is right; each clause shows both sides. What a part leaves out
contradicts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from flagbench.records.model import Record
from flagbench.terminal import brief
from flagbench.verdict import configuration, course
from flagbench.verdict.conditions import DEVICE, alike
from flagbench.verdict.derivation import Unknown, count, derived_conditions, number
from flagbench.verdict.subject import Subject, differ, text

_OF_DEVICES = ("tf32", "fp16")
"""Precisions in which no case runs on a processor."""

# Limits of entrypoints/flagbench_cases/engines/precision.py on the relative error of the matrix product.
_ERRORS = {"fp32": (0.0, 2e-5), "tf32": (2e-5, 1.2e-3), "fp16": (0.0, 2e-2), "bf16": (0.0, 2e-2)}


def contradictions(subject: Subject) -> Iterator[str]:
    """Every contradiction between the parts of a record, one clause each."""
    for rule in (
        _conditions,
        _devices,
        _sizes,
        _ranks,
        _precision,
        _software,
        _peak,
        course.contradictions,
        configuration.contradictions,
    ):
        yield from rule(subject)


def _conditions(subject: Subject) -> Iterator[str]:
    """Conditions that follow from the configuration."""
    if not subject.config:
        return
    stated = subject.record.conditions
    for name, value in derived_conditions(subject.case, subject.config).items():
        if name not in stated:
            continue
        if isinstance(value, Unknown):
            if value.lacks:
                yield f"the condition {name} is {text(stated[name])}, which its configuration does not give"
            elif stated[name] is not None and _ruled_out(stated[name], value):
                yield f"the condition {name} is {text(stated[name])}, which its configuration rules out"
        elif not alike(stated[name], value):
            yield differ(f"the condition {name}", stated[name], "its configuration gives", value)


def _ruled_out(stated: Any, value: Unknown) -> bool:
    return stated in value.excluded or bool(value.allowed and stated not in value.allowed)


def _devices(subject: Subject) -> Iterator[str]:
    """The device model by name, devices counted twice, and devices that the stack cannot have."""
    record, names = subject.record, subject.names
    stated = record.conditions.get(DEVICE)
    if names and DEVICE in record.conditions:
        known = subject.accelerator
        expected = known.name if known else " + ".join(names)
        # Of several nodes only node 0 lists its devices; the condition joins those of all.
        joined = isinstance(stated, str) and record.system.nodes > 1 and set(names) < set(stated.split(" + "))
        if stated != expected and not joined:
            yield differ(f"the condition {DEVICE}", stated, "system.devices gives", expected)
    yield from _counted_twice(record)
    numbers = sorted(device.index for device in record.system.devices)
    if numbers != list(range(len(numbers))):
        yield f"system.devices has the indices {_listed(numbers)}, which are not those of {len(numbers)} devices"
    own = [rank for rank in sorted(record.ranks, key=lambda rank: rank.rank) if rank.node == 0]
    for rank, device in zip(own, record.system.devices, strict=False):
        if rank.uuid is not None and device.uuid is not None and rank.uuid != device.uuid:
            yield differ(f"the UUID of rank {rank.rank}", rank.uuid, "system.devices has", device.uuid)
    yield from _stack(subject)


def _counted_twice(record: Record) -> Iterator[str]:
    """Devices, and processes, that are there more than once."""
    monitored = record.telemetry.devices if record.telemetry is not None else ()
    found: tuple[tuple[str, Sequence[object]], ...] = (
        ("index", [device.index for device in record.system.devices]),
        ("UUID", [device.uuid for device in record.system.devices]),
        ("UUID", [rank.uuid for rank in record.ranks]),
        ("index in telemetry", [device.index for device in monitored]),
    )
    for what, values in found:
        # Tools write a UUID with and without capitals.
        known = [(str(value).strip().lower(), value) for value in values if value is not None]
        plain, times = next(iter(Counter(plain for plain, _ in known).most_common(1)), ("", 0))
        if times > 1:
            yield f"one device is counted {times} times: its {what} is {text(dict(known)[plain])}"
    pids = Counter((rank.node, rank.pid) for rank in record.ranks if rank.pid is not None)
    (node, pid), times = next(iter(pids.most_common(1)), ((0, None), 0))
    if times > 1:
        yield f"one process is counted {times} times: its pid on node {node} is {pid}"


def _stack(subject: Subject) -> Iterator[str]:
    record, stack = subject.record, subject.stack
    if stack is None:
        return
    if record.case not in stack.runs:
        yield f"its stack is {stack.name}, which does not run {record.case}"
    if stack.device_kind != "cpu":
        if record.system.cpu.model is not None and record.system.cpu.model in subject.names:
            yield f"its stack is {stack.name}, but system.devices has the processor {text(record.system.cpu.model)}"
        return
    device = next((n for n in subject.names for s in subject.case.stacks.values() if s.accelerator(n)), None)
    if device:
        yield f"its stack is {stack.name}, but system.devices has {text(device)}"
    if record.software.cuda is not None:
        yield f"its stack is {stack.name}, but software.cuda is {text(record.software.cuda)}"
    if subject.config.get("precision") in _OF_DEVICES:
        yield f"its stack is {stack.name}, but config.precision is {subject.config['precision']}"


def _sizes(subject: Subject) -> Iterator[str]:
    """Nodes, devices and ranks, each counted in several parts of the record."""
    record, system = subject.record, subject.record.system
    product = f"system has {system.nodes} x {system.devices_per_node}"
    for name, stated, here in (
        ("the condition nodes", record.conditions.get("nodes"), system.nodes),
        ("the condition devices", record.conditions.get("devices"), subject.world),
        ("config.nodes", subject.config.get("nodes"), system.nodes),
        ("config.gpus", subject.config.get("gpus"), system.devices_per_node),
    ):
        if stated is not None and not alike(stated, here):
            yield differ(name, stated, product + ":", here)
    if subject.replicas and "layout" in record.conditions:
        parts = [count(subject.config, f"layout.{axis}") or 1 for axis in ("tp", "pp")]
        layout = "dp{} tp{} pp{}".format(subject.replicas, *parts)
        if record.conditions["layout"] != layout:
            yield differ("the condition layout", record.conditions["layout"], "its configuration gives", layout)
    if len(system.devices) != system.devices_per_node:
        listed = f"system.devices has {len(system.devices)} of node 0"
        yield f"{listed}, but system.devices_per_node is {system.devices_per_node}"
    if record.layout is not None:
        dp, tp, pp = record.layout.dp, record.layout.tp, record.layout.pp
        if dp * tp * pp != subject.world:
            yield f"layout is dp{dp} tp{tp} pp{pp}, {dp * tp * pp} ranks, but {product}"
        for axis, size in (("tp", tp), ("pp", pp)):
            asked = count(subject.config, f"layout.{axis}") or 1
            if subject.config and asked != size:
                yield differ(f"layout.{axis}", size, "its configuration gives", asked)


def _ranks(subject: Subject) -> Iterator[str]:
    """Every rank once, as many on every node, all with as many steps."""
    ranks, system = subject.record.ranks, subject.record.system
    found = sorted(rank.rank for rank in ranks)
    if len(found) != subject.world or found != list(range(subject.world)):
        yield f"its ranks are {_listed(found)}, but system has {system.nodes} x {system.devices_per_node}"
        return
    for rank in ranks:
        node, local = divmod(rank.rank, system.devices_per_node)
        if rank.node != node or rank.local_rank not in (None, local):
            yield (
                f"rank {rank.rank} is on node {rank.node} as {text(rank.local_rank)}, but with "
                f"{system.devices_per_node} ranks per node it is on node {node} as {local}"
            )
            return
    hosts = dict.fromkeys((rank.node, rank.host) for rank in ranks if rank.host is not None)
    node, times = next(iter(Counter(node for node, _ in hosts).most_common(1)), (0, 0))
    if times > 1:
        yield f"the ranks of node {node} are on {times} hosts: {brief(', '.join(h for n, h in hosts if n == node))}"
    for rank in ranks:
        if rank.exit not in (None, "exit 0"):
            yield f"status.state is ok, but rank {rank.rank} ended with {text(rank.exit)}"
    steps = sorted({rank.steps for rank in ranks if rank.steps is not None})
    if len(steps) > 1:
        yield f"its ranks have different numbers of steps: {_listed(steps)}"


def _listed(numbers: Sequence[int]) -> str:
    return brief(", ".join(map(str, numbers[:1000]))) or "none"


def _precision(subject: Subject) -> Iterator[str]:
    """The precision that was asked for, and the one that a matrix product had."""
    record = subject.record
    proof = record.software.precision or {}
    executed, error = proof.get("executed"), number(proof, "relative_error")
    # Records of earlier versions, which have no evidence, need not have the error.
    required = record.evidence is not None or "relative_error" in proof
    if not isinstance(executed, str) or (error is None and required):
        yield f"software.precision does not say in what precision a matrix product ran: {text(proof)}"
    for name, stated in (
        ("the condition precision", record.conditions.get("precision")),
        ("config.precision", subject.config.get("precision")),
    ):
        if executed is not None and stated is not None and stated != executed:
            yield differ(name, stated, "by software.precision a matrix product ran in", executed)
    if proof.get("requested", subject.config.get("precision")) != subject.config.get("precision") and subject.config:
        asked = subject.config.get("precision")
        yield differ("config.precision", asked, "software.precision.requested is", proof.get("requested"))
    if error is not None and isinstance(executed, str) and executed in _ERRORS:
        low, high = _ERRORS[executed]
        if not low <= error <= high:
            yield f"software.precision.executed is {executed}, but its relative_error is {error:.1e}"
    asked = subject.config.get("precision")
    if asked is not None and asked not in subject.case.precisions:
        yield differ("config.precision", asked, f"{subject.case.name} runs in", ", ".join(subject.case.precisions))
    flops = record.flops
    for name, measured in (("peak", flops and flops.peak), ("measured_ceiling", flops and flops.measured_ceiling)):
        if measured and executed is not None and measured.precision != executed:
            yield differ(f"flops.{name}.precision", measured.precision, "software.precision.executed is", executed)


def _software(subject: Subject) -> Iterator[str]:
    """Versions in conditions and in software; in an image, those that its stack expects."""
    record, software = subject.record, subject.record.software
    found: dict[str, Any] = {"torch": software.torch, "cuda": software.cuda}
    packages = {name: version for name, version in software.packages.items() if name in record.conditions}
    for name, version in {**packages, **found}.items():
        here = record.conditions.get(name)
        if name not in record.conditions or here == version:
            continue
        # A package may leave its build out of what it calls itself.
        if name in packages and isinstance(here, str) and (_extends(here, version) or _extends(version, here)):
            continue
        yield differ(f"the condition {name}", here, "software has", version)
    stated, driver = record.conditions.get("driver"), record.system.driver
    if stated is not None and driver is not None and driver not in str(stated).split(" + "):
        yield differ("the condition driver", stated, "system.driver is", driver)
    if record.system.image.context_digest is None:
        return
    versions = {"python": software.python, **found}
    for name, expected in software.stack_expects.items():
        here = versions.get(name, software.packages.get(name))
        if isinstance(expected, str) and isinstance(here, str) and not _extends(here, expected):
            yield differ(f"{name} in software", here, "its image's stack expects", expected)


def _extends(version: str, expected: str) -> bool:
    """Whether a version equals the expected one or extends it: 2.13.0+cpu is a 2.13, and 2.130 is not."""
    return version == expected or version.startswith((f"{expected}.", f"{expected}+"))


def _peak(subject: Subject) -> Iterator[str]:
    """The FLOP formula of the case, and the peak of the device."""
    flops = subject.record.flops
    if flops is None:
        return
    if subject.case.formula not in (None, flops.formula) and not subject.other_formula:
        yield differ("flops.formula", flops.formula, f"{subject.case.name} has", subject.case.formula)
    known, precision = subject.accelerator, str(subject.config.get("precision"))
    device = known if subject.stack is not None else subject.device
    if flops.peak is not None and (subject.stack is not None or device is not None):
        peak = device.peaks.get(flops.peak.precision) if device else None
        if peak is None or not alike(flops.peak.flops, peak.flops):
            manifest = f"{f'the stack {subject.stack.name}' if subject.stack else 'the manifest'} says of this device"
            yield differ("flops.peak.flops", flops.peak.flops, manifest, peak and peak.flops)
    elif known is not None and subject.stack is not None and (peak := known.peaks.get(precision)):
        said = f"the stack {subject.stack.name} says of {known.name} in {precision}"
        yield differ("flops.peak", None, said, peak.flops)
    used = next((m.name for m in subject.record.metrics if m.name in ("mfu", "hfu")), None)
    if used and flops.peak is None:
        yield f"it has the metric {used}, but flops.peak is null"
