"""Collects the facts of a certificate about the machine: its devices, drivers and health before and after the runs.

Facts are JSON in the shape of `document.Facts`. The checks (judge.py) are computed from the facts and the records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from flagbench.accept.limits import limits_of
from flagbench.accept.plan import AcceptancePlan
from flagbench.machine.devices import Machine, this_machine
from flagbench.machine.disturbance_limits import WHOLE_MEMORY
from flagbench.machine.health import MachineHealth, look_at_health
from flagbench.machine.look import look_at_machine
from flagbench.manifests.model import Catalog
from flagbench_core.host_name import host_name


def facts_before(plan: AcceptancePlan, asked: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Look at the machine before anything runs. Returns `document.Facts`; each run adds its own facts to `parts`.

    `asked`: the options of the command, `document.Asked`.
    """
    on_devices = plan.stack.device_kind != "cpu" and bool(plan.parts)
    look = look_at_machine(plan.gpus, health=on_devices)
    machine = look.accelerators
    names = [device.name for device in machine.devices]
    limits = limits_of(catalog, names, processor=plan.stack.device_kind == "cpu")
    driver_floor = None
    if plan.parts and plan.parts[0].target.via == "docker":
        # The oldest driver that the image runs on. A run without an image uses the libraries of its own Python.
        driver_floor = plan.stack.device.driver_floor
    devices = []
    for index, device in enumerate(machine.devices):
        devices.append({"index": index, "name": device.name, "uuid": device.uuid})
    return {
        "asked": asked,
        "gpus": plan.gpus,
        "stack": plan.stack.name,
        "device_kind": plan.stack.device_kind,
        "driver_floor": driver_floor,
        "machine": {
            "host": host_name(),
            "visible": machine.visible,
            "problem": machine.problem,
            "remedy": machine.remedy or "",
            "tool": machine.tool.value,
            "lost": machine.lost,
            "devices": devices,
            "drivers": look.drivers,
            "foreign": [*look.programs],
            "partitions": [*look.partitions, *_smaller_devices(machine, catalog)],
            "capped": look.power_caps,
        },
        "planned": [part.case.name for part in plan.parts],
        "without_case": plan.without_case,
        "ending": "done",
        "parts": [],
        "limits": [msgspec.to_builtins(limit) for limit in limits],
        "health": _health_before(look.health),
    }


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


def _health_before(health: MachineHealth | None) -> dict[str, Any] | None:
    """The first reading of the devices, and the number of the last line of the kernel log before this acceptance.

    None on a machine without devices to read.
    """
    if health is None or (health.problem is None and not health.devices):
        return None
    facts: dict[str, Any] = {"before": _reading(health)}
    if health.xids is not None:
        facts["xids"] = replace(health.xids, xids=()).to_dict()
    return facts


def add_health_after(facts: dict[str, Any]) -> None:
    """Read the devices again, and add the reading and the new lines of the kernel log to the facts."""
    health_facts = facts["health"]
    if health_facts is None:
        return
    log = health_facts.get("xids", {})
    health = look_at_health(this_machine(), facts["gpus"], after=log.get("last"))
    health_facts["after"] = _reading(health)
    if health.xids is not None:
        health_facts["xids"] = {**health.xids.to_dict(), "last": log.get("last")}


def _reading(health: MachineHealth) -> dict[str, Any]:
    """`document.ReadDevices` as JSON: the kernel log is a fact apart."""
    reading = health.to_dict()
    reading.pop("xids", None)
    return reading
