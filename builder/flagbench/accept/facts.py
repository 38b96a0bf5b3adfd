"""What is known of a machine before an acceptance runs anything: the facts of its certificate."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from flagbench.accept.limits import limits_of
from flagbench.accept.plan import AcceptancePlan
from flagbench.machine.look import look_at_machine
from flagbench.manifests.model import Catalog


def facts_before(plan: AcceptancePlan, asked: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """The facts of a certificate before anything runs; each run adds its own to `parts`. See `document.Facts`."""
    look = look_at_machine()
    machine = look.accelerators
    names = [device.name for device in machine.devices]
    limits = limits_of(catalog, names, processor=plan.stack.device_kind == "cpu")
    floor = None
    if plan.parts and plan.parts[0].target.via == "docker":
        floor = plan.stack.device.driver_floor  # what its image needs
    return {
        "asked": asked,
        "gpus": plan.gpus,
        "stack": plan.stack.name,
        "device_kind": plan.stack.device_kind,
        "driver_floor": floor,
        "machine": {
            "host": os.uname().nodename,
            "visible": machine.visible,
            "problem": machine.problem,
            "remedy": machine.remedy or "",
            "tool": machine.tool.value,
            "lost": machine.lost,
            "devices": [
                {"index": index, "name": device.name, "uuid": device.uuid}
                for index, device in enumerate(machine.devices)
            ],
            "drivers": look.drivers,
            "foreign": [*look.programs],
            "partitions": look.partitions,
            "capped": look.power_caps,
        },
        "planned": [part.case.name for part in plan.parts],
        "without_case": plan.without_case,
        "ending": "done",
        "parts": [],
        "limits": [msgspec.to_builtins(limit) for limit in limits],
    }
