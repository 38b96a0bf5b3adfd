"""Checks the facts about a machine before anything runs: its devices, its driver, and other processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flagbench.accept.check import PREFLIGHT, AcceptanceCheck, Outcome, not_known
from flagbench.accept.document import AcceptanceFacts, CertificateMachine
from flagbench.console.terminal import brief
from flagbench.machine.vendors import LOST_REMEDY, older_drivers
from flagbench.system.queries import Ending

_NOT_LISTED = (Ending.FAILED, Ending.NO_ANSWER)
"""The endings of a query to a vendor's tool after which nothing is known about the devices."""

# Remedies of the checks.
ASK_THE_TOOL = "run the vendor's tool by hand"
WHOLE_DEVICE = "turn MIG off (nvidia-smi -mig 0), or ask for a whole device"
DEFAULT_POWER_LIMIT = "set the default power limit again, such as with nvidia-smi -i UUID -pl WATTS"
ALL_VISIBLE = "unset CUDA_VISIBLE_DEVICES, or accept a part of the devices with --gpus"


def preflight_checks(facts: AcceptanceFacts) -> Iterator[AcceptanceCheck]:
    """The checks of a machine with accelerators; none for a processor."""
    if facts.device_kind == "cpu":
        return
    devices = _devices(facts)
    yield devices
    if facts.machine.partitions:
        yield _whole(facts.machine)
    if devices.outcome is Outcome.PASS or facts.machine.drivers:
        yield _driver(facts)
        yield _undisturbed(facts)


def _devices(facts: AcceptanceFacts) -> AcceptanceCheck:
    """The check `devices`: whether all devices that were asked for, or that the driver shows, can be used."""
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
    judgement = _judge_devices(machine, facts.gpus)
    if facts.off_node and judgement.outcome is Outcome.PASS:
        return not_known("devices", PREFLIGHT, against, "a record lists the devices of its run, and no others")
    return AcceptanceCheck(
        name="devices",
        part=PREFLIGHT,
        outcome=judgement.outcome,
        measured=measured,
        against=against,
        limit=f"{facts.gpus}",
        reason=judgement.reason,
        remedy=judgement.remedy,
        ranks=missing,
    )


class _Judgement(NamedTuple):
    """Whether the devices can be used."""

    outcome: Outcome
    reason: str = ""
    """Why they cannot; empty if they can."""
    remedy: str = ""
    """What makes them usable; empty if a device has to be replaced."""


def _judge_devices(machine: CertificateMachine, gpus: int) -> _Judgement:
    """Whether `gpus` devices can be used, and if not, the reason and the remedy."""
    if machine.lost:
        return _Judgement(Outcome.FAIL, "; ".join((*machine.lost, LOST_REMEDY)))
    if machine.problem and machine.tool in _NOT_LISTED:
        return _Judgement(Outcome.INCONCLUSIVE, machine.problem, machine.remedy or ASK_THE_TOOL)
    if machine.problem:
        return _Judgement(Outcome.FAIL, machine.problem)
    if machine.visible < gpus <= len(machine.devices):
        reason = f"CUDA_VISIBLE_DEVICES leaves {machine.visible} of {len(machine.devices)} devices"
        return _Judgement(Outcome.INCONCLUSIVE, reason, ALL_VISIBLE)
    if not machine.devices and machine.tool is Ending.MISSING:
        return _Judgement(Outcome.FAIL, "no device was found: no vendor's tool, such as nvidia-smi, is on PATH")
    if not machine.devices:
        return _Judgement(Outcome.FAIL, "no device was found")
    if machine.visible < gpus:
        return _Judgement(Outcome.FAIL, f"{gpus - machine.visible} of {gpus} devices are missing")
    return _Judgement(Outcome.PASS)


def _whole(machine: CertificateMachine) -> AcceptanceCheck:
    """The check `whole devices`, which is inconclusive because only parts of devices are visible."""
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


def _driver(facts: AcceptanceFacts) -> AcceptanceCheck:
    """The check `driver`: whether the driver is new enough for the image."""
    against = f"the stack {facts.stack}"
    drivers = facts.machine.drivers
    if facts.driver_floor is None:
        return not_known("driver", PREFLIGHT, against, "no image is used, or it states no oldest driver")
    if not drivers:
        return not_known("driver", PREFLIGHT, against, "no tool says the version of the driver")
    outcome = Outcome.PASS
    reason = ""
    remedy = ""
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


def _undisturbed(facts: AcceptanceFacts) -> AcceptanceCheck:
    """The check `undisturbed`: whether no other process uses a device, and no power limit is lowered."""
    machine = facts.machine
    problems = [*machine.foreign, *machine.capped]
    if not problems and facts.off_node:
        return not_known("undisturbed", PREFLIGHT, "an idle machine", "a record does not name other processes")
    if not problems and not machine.drivers:
        return not_known("undisturbed", PREFLIGHT, "an idle machine", "no tool says what else uses the devices")
    outcome = Outcome.PASS
    reason = ""
    remedy = ""
    if problems:
        outcome = Outcome.INCONCLUSIVE
        reason = "another process uses a device"
    if machine.capped:
        reason = "the power limit of a device is lowered"
        remedy = DEFAULT_POWER_LIMIT
    if machine.foreign and machine.capped:
        reason = "another process uses a device, and a power limit is lowered"
    return AcceptanceCheck(
        name="undisturbed",
        part=PREFLIGHT,
        outcome=outcome,
        measured=brief("; ".join(problems)) or "nothing",
        against="an idle machine",
        limit="no other process, full power",
        reason=reason,
        remedy=remedy,
    )
