"""Collects the facts of a certificate about the machine: its devices, drivers and health before and after the runs.

The checks (judge.py) are computed from the facts and the records.
"""

from __future__ import annotations

from dataclasses import replace

from flagbench.accept.document import (
    AcceptanceFacts,
    Asked,
    CertificateMachine,
    DeviceReadings,
    HealthFacts,
    MachineDevice,
)
from flagbench.accept.limits import limits_of
from flagbench.accept.plan import AcceptancePlan
from flagbench.machine.devices import Machine, this_machine
from flagbench.machine.disturbance_limits import WHOLE_MEMORY
from flagbench.machine.health import MachineHealth, look_at_health
from flagbench.machine.look import look_at_machine
from flagbench.manifests.model import Catalog
from flagbench_core.host_name import host_name


def facts_before(plan: AcceptancePlan, asked: Asked, catalog: Catalog) -> AcceptanceFacts:
    """Look at the machine before anything runs. Each run then adds its own facts to them.

    `asked`: the options of the command.
    """
    on_devices = plan.stack.device_kind != "cpu" and bool(plan.runs)
    look = look_at_machine(plan.gpus, health=on_devices)
    machine = look.accelerators
    names = [device.name for device in machine.devices]
    limits = limits_of(catalog, names, processor=plan.stack.device_kind == "cpu")
    driver_floor = None
    if plan.runs and plan.runs[0].target.via == "docker":
        # The oldest driver that the image runs on. A run without an image uses the libraries of its own Python.
        driver_floor = plan.stack.device.driver_floor
    devices = []
    for index, device in enumerate(machine.devices):
        devices.append(MachineDevice(index, device.name, device.uuid))
    return AcceptanceFacts(
        asked=asked,
        gpus=plan.gpus,
        stack=plan.stack.name,
        device_kind=plan.stack.device_kind,
        driver_floor=driver_floor,
        machine=CertificateMachine(
            host=host_name(),
            visible=machine.visible,
            problem=machine.problem,
            remedy=machine.remedy or "",
            tool=machine.tool,
            lost=tuple(machine.lost),
            devices=tuple(devices),
            drivers=tuple(look.drivers),
            foreign=look.programs,
            partitions=(*look.partitions, *_smaller_devices(machine, catalog)),
            capped=tuple(look.power_caps),
        ),
        planned=tuple(run.case.name for run in plan.runs),
        without_case=plan.without_case,
        ending="done",
        parts=[],
        limits=limits,
        health=_health_before(look.health),
    )


def _smaller_devices(machine: Machine, catalog: Catalog) -> list[str]:
    """A sentence for each device that shows less memory than its model has, as a part of a shared device does.

    Devices whose names say that they are partitions (MIG) have their sentences already.
    """
    sentences = []
    for device in machine.devices:
        if device.partition or device.memory_gib is None:
            continue
        for model in catalog.devices.values():
            if not model.has_name(device.name):
                continue
            if device.memory_gib < WHOLE_MEMORY * model.memory_gib:
                memory = f"{device.memory_gib:.0f} of {model.memory_gib:g} GiB"
                sentences.append(f"{device.uuid} shows {memory}")
    return sentences


def _health_before(health: MachineHealth | None) -> HealthFacts | None:
    """The first reading of the devices, and the number of the last line of the kernel log before this acceptance.

    None on a machine without devices to read.
    """
    if health is None or (health.problem is None and not health.devices):
        return None
    xids = None
    if health.xids is not None:
        xids = replace(health.xids, xids=())
    return HealthFacts(before=_reading(health), xids=xids)


def add_health_after(facts: AcceptanceFacts) -> None:
    """Read the devices again, and add the reading and the new lines of the kernel log to the facts."""
    if facts.health is None:
        return
    xids = facts.health.xids
    last_before = None
    if xids is not None:
        last_before = xids.last
    health = look_at_health(this_machine(), facts.gpus, after=last_before)
    if health.xids is not None:
        xids = replace(health.xids, last=last_before)
    facts.health = HealthFacts(before=facts.health.before, after=_reading(health), xids=xids)


def _reading(health: MachineHealth) -> DeviceReadings:
    """The reading of the devices alone: the kernel log is a fact apart."""
    return DeviceReadings(health.devices, health.source, health.problem)
