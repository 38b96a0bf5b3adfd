"""The checks of a machine before anything runs: its devices, its driver, and what else uses it."""

from __future__ import annotations

from collections.abc import Iterator

from flagbench.accept.check import PREFLIGHT, AcceptanceCheck, Outcome, not_known
from flagbench.accept.document import CertificateMachine, Facts
from flagbench.console.terminal import brief
from flagbench.machine.vendors import LOST_REMEDY, older_drivers
from flagbench.system.queries import Ending

_NOT_LISTED = (Ending.FAILED, Ending.NO_ANSWER)
"""How a question to a vendor's tool ends where nothing is known of the devices."""
ASK_THE_TOOL = "run the vendor's tool by hand"
WHOLE_DEVICE = "turn MIG off (nvidia-smi -mig 0), or ask for a whole device"
DEFAULT_POWER_LIMIT = "set the default power limit again, such as with nvidia-smi -i UUID -pl WATTS"
ALL_VISIBLE = "unset CUDA_VISIBLE_DEVICES, or accept a part of the devices with --gpus"


def preflight_checks(facts: Facts) -> Iterator[AcceptanceCheck]:
    """What the look at an accelerator's machine found; nothing for a processor."""
    if facts.device_kind == "cpu":
        return
    devices = _devices(facts)
    yield devices
    if facts.machine.partitions:
        yield _whole(facts.machine)
    if devices.outcome is Outcome.PASS or facts.machine.drivers:
        yield _driver(facts)
        yield _undisturbed(facts.machine)


def _devices(facts: Facts) -> AcceptanceCheck:
    machine = facts.machine
    names = sorted({device.name for device in machine.devices})
    against = f"the stack {facts.stack}"
    if facts.asked.gpus:
        against = "what was asked for"
    elif names:
        against = "what the driver shows"
    measured = "none"
    if names:
        measured = f"{machine.visible} of {', '.join(names)}"
    missing: tuple[int, ...] = ()
    if machine.devices and not machine.lost:
        missing = tuple(range(machine.visible, facts.gpus))
    outcome, reason, remedy = _devices_found(machine, facts.gpus)
    return AcceptanceCheck(
        name="devices",
        part=PREFLIGHT,
        outcome=outcome,
        measured=measured,
        against=against,
        limit=f"{facts.gpus}",
        reason=reason,
        remedy=remedy,
        ranks=missing,
    )


def _devices_found(machine: CertificateMachine, gpus: int) -> tuple[Outcome, str, str]:
    """Whether `gpus` devices can be used, why not, and what mends it."""
    if machine.lost:
        return Outcome.FAIL, "; ".join((*machine.lost, LOST_REMEDY)), ""
    if machine.problem and machine.tool in _NOT_LISTED:
        return Outcome.INCONCLUSIVE, machine.problem, machine.remedy or ASK_THE_TOOL
    if machine.problem:
        return Outcome.FAIL, machine.problem, ""
    if machine.visible < gpus <= len(machine.devices):
        reason = f"CUDA_VISIBLE_DEVICES leaves {machine.visible} of {len(machine.devices)} devices"
        return Outcome.INCONCLUSIVE, reason, ALL_VISIBLE
    if not machine.devices and machine.tool is Ending.MISSING:
        return Outcome.FAIL, "no device was found: no vendor's tool, such as nvidia-smi, is on PATH", ""
    if not machine.devices:
        return Outcome.FAIL, "no device was found", ""
    if machine.visible < gpus:
        return Outcome.FAIL, f"{gpus - machine.visible} of {gpus} devices are missing", ""
    return Outcome.PASS, "", ""


def _whole(machine: CertificateMachine) -> AcceptanceCheck:
    """A slice of a device says nothing of the device."""
    return AcceptanceCheck(
        name="whole devices",
        part=PREFLIGHT,
        outcome=Outcome.INCONCLUSIVE,
        measured=brief("; ".join(machine.partitions)),
        against="whole devices",
        limit="no part of a device",
        reason="a part of a device does not show what the whole device does",
        remedy=WHOLE_DEVICE,
    )


def _driver(facts: Facts) -> AcceptanceCheck:
    against, drivers = f"the stack {facts.stack}", facts.machine.drivers
    if facts.driver_floor is None:
        return not_known("driver", PREFLIGHT, against, "no image is used, or it states no oldest driver")
    if not drivers:
        return not_known("driver", PREFLIGHT, against, "no tool says the version of the driver")
    outcome, reason, remedy = Outcome.PASS, "", ""
    if older_drivers(drivers, facts.driver_floor):
        outcome = Outcome.FAIL
        reason = "the driver is older than the stack needs"
        remedy = f"install the driver {facts.driver_floor} or a newer one, or name an older stack with --case"
    return AcceptanceCheck(
        name="driver",
        part=PREFLIGHT,
        outcome=outcome,
        measured=", ".join(drivers),
        against=against,
        limit=f"{facts.driver_floor} or newer",
        reason=reason,
        remedy=remedy,
    )


def _undisturbed(machine: CertificateMachine) -> AcceptanceCheck:
    busy = [*machine.foreign, *machine.capped]
    if not busy and not machine.drivers:
        return not_known("undisturbed", PREFLIGHT, "an idle machine", "no tool says what else uses the devices")
    outcome, reason, remedy = Outcome.PASS, "", ""
    if busy:
        outcome, reason = Outcome.INCONCLUSIVE, "another process uses a device"
    if machine.capped:
        reason, remedy = "the power limit of a device is lowered", DEFAULT_POWER_LIMIT
    if machine.foreign and machine.capped:
        reason = "another process uses a device, and a power limit is lowered"
    return AcceptanceCheck(
        name="undisturbed",
        part=PREFLIGHT,
        outcome=outcome,
        measured=brief("; ".join(busy)) or "nothing",
        against="an idle machine",
        limit="no other process, full power",
        reason=reason,
        remedy=remedy,
    )
