"""Takes from the record of a run what nodes are compared by: its numbers, its software and its hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flagbench.manifests.limits import Kind
from flagbench.records.digest import history_digest, machine_digest
from flagbench.records.model import Measurement, Record, System
from flagbench.verdict import rules
from flagbench.verdict.subject import Subject
from flagbench_core.case_kinds import MEASURE
from flagbench_core.evidence.roofs import COLLECTIVES

_KINDS: Mapping[str, Kind] = {
    "matmul": "product",
    "copy": "memory",
    "h2d": "host-link",
    "d2h": "host-link",
    **dict.fromkeys(COLLECTIVES, "collective"),
}
"""The kinds of measurements by their operation."""
DEVICES = "devices"
"""The property with the number of devices of a node."""
CONFIGURATION = "configuration"
"""The property with the digest of the settings of the run."""
_DIGEST_DIGITS = 8
"""The characters of a digest that are shown."""
_NCCL = "NCCL_"
"""How the names of the variables that change NCCL begin."""
_UNKNOWN = "unknown"
"""The value of a property that the record does not have."""


class NodeValue(NamedTuple):
    """A number of a node."""

    kind: Kind
    amount: float
    """More is better; in the same unit on all nodes."""
    rank: int | None = None
    """The rank of the slowest device, which the number is of; None if it is of the whole node."""


@dataclass(frozen=True)
class NodeRun:
    """The run of one case on one node."""

    host: str
    created_at: str
    """UTC, as in the record."""
    run: str
    """The case and the stack, such as roofs:cuda13."""
    device: str
    """The model of its devices."""
    configuration: str
    """The digest of its settings, by which runs can be compared (`history_digest`)."""
    is_sound: bool
    """Whether the run ended well, and its record follows from its evidence."""
    values: Mapping[str, NodeValue]
    """Its numbers by the name of the metric; empty if it is not sound."""
    properties: Mapping[str, str]
    """Versions and parts that should be alike on all nodes, by name; empty if it is not sound."""
    machine: str | None = None
    """The digest of its devices (`machine_digest`); None if the record does not have them."""
    on_processor: bool = False

    @property
    def devices(self) -> int:
        """The number of its devices; 0 if the run is not sound."""
        return int(self.properties.get(DEVICES, 0))


def node_run(subject: Subject, host: str) -> NodeRun:
    """Return what nodes are compared by, from the record of a run on one node; `host` is the name of that node."""
    record = subject.record
    is_sound = record.status.state == "ok" and not rules.check_record(subject)
    values: dict[str, NodeValue] = {}
    properties: dict[str, str] = {}
    configuration = history_digest(record) or ""
    if is_sound:
        values = dict(_values(subject))
        properties = _properties(record, configuration)
    return NodeRun(
        host=host,
        created_at=record.created_at,
        run=f"{record.case}:{record.stack}",
        device=_device_model(record.system),
        configuration=configuration,
        is_sound=is_sound,
        values=values,
        properties=properties,
        machine=machine_digest(record),
        on_processor=not subject.on_accelerator,
    )


def _device_model(system: System) -> str:
    """The model of a node's devices; of its processor, if it lists none."""
    models = sorted({device.name for device in system.devices})
    if models:
        return " and ".join(models)
    return system.cpu.model or _UNKNOWN


def _values(subject: Subject) -> Iterator[tuple[str, NodeValue]]:
    """The numbers of a run by name: the rates measured on its devices, and the gate of a case with a model."""
    for measurement in subject.record.measurements:
        value = _measured_value(measurement)
        if value is not None:
            yield measurement.name, value
    if subject.case.kind == MEASURE:
        return
    metric = subject.record.metric(subject.case.gate)
    if metric is not None:
        yield metric.name, NodeValue("case", float(metric.value))


def _measured_value(measurement: Measurement) -> NodeValue | None:
    """A measured rate, that of the slowest device; None for one that sound nodes differ in too much."""
    kind = _KINDS.get(measurement.operation)
    if kind is None or measurement.pinned is False:  # copies of pageable memory depend on the host's other memory
        return None
    if kind == "collective":
        if measurement.name != measurement.operation:  # of one message size
            return None
        return NodeValue(kind, float(measurement.bus_rate or measurement.rate))
    rates = measurement.devices
    if len(rates) < 2:
        return NodeValue(kind, float(measurement.rate))
    slowest = min(range(len(rates)), key=rates.__getitem__)
    return NodeValue(kind, float(rates[slowest]), slowest)


def _properties(record: Record, configuration: str) -> dict[str, str]:
    """The versions and parts of a node, by name."""
    system = record.system
    software = record.software
    processor = system.cpu.model
    if processor is not None and system.cpu.logical is not None:
        processor = f"{processor}, {system.cpu.logical} logical"
    properties = {
        DEVICES: str(system.devices_per_node),
        "processor": processor,
        "network cards": str(len(system.nics)),
        "driver": system.driver,
        "cuda": software.cuda or software.hip,
        "torch": software.torch,
        "nccl": software.nccl,
        "image": system.image.id or system.image.digest,
        "kernel": system.kernel,
        "flagbench": record.flagbench.version,
        CONFIGURATION: configuration[-_DIGEST_DIGITS:],
    }
    for name, value in software.environment.items():
        if name.startswith(_NCCL):
            properties[name] = value
    return {name: value or _UNKNOWN for name, value in properties.items()}
