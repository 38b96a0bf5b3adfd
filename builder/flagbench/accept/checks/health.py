"""Checks the health of the devices: the errors that their drivers counted before and after the runs of an acceptance.

flagbench_core.health judges the readings; this module makes checks of its findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flagbench.accept.check import AcceptanceCheck, Outcome, not_known
from flagbench.accept.document import AcceptanceFacts
from flagbench.records.model import Record
from flagbench_core.health.judge import HealthFinding, HealthOutcome, judge_health, uncorrected_errors
from flagbench_core.health.reading import DeviceHealth

PART = "health"
"""The `part` of these checks."""
BEFORE = "the reading before the runs"
"""What they compare with."""
_OUTCOMES = {
    HealthOutcome.FAIL: Outcome.FAIL,
    HealthOutcome.FIX: Outcome.INCONCLUSIVE,
    HealthOutcome.INCONCLUSIVE: Outcome.INCONCLUSIVE,
    HealthOutcome.NOT_KNOWN: Outcome.NOT_KNOWN,
    HealthOutcome.LINE: Outcome.PASS,
}
"""The outcome of a check by that of its finding. `LINE` is a note without a consequence."""
GIGABYTES_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""The unidirectional rate of a PCIe lane, GB/s, by generation (PCI-SIG, PCI Express base specification: rate and
encoding)."""


@dataclass(frozen=True)
class _Finding:
    """A finding without its device: devices with the same finding share one check."""

    kind: str
    outcome: HealthOutcome
    reason: str
    remedy: str


def health_checks(facts: AcceptanceFacts, records: Mapping[str, Record]) -> Iterator[AcceptanceCheck]:
    """A check for each kind of finding, with the ranks of its devices; if nothing is wrong, one check that passes.

    No checks for a processor, and for certificates of versions that did not read the health.
    """
    health = facts.health
    if health is None or facts.device_kind == "cpu":
        return
    last = health.after or health.before
    if not health.before.devices and not last.devices:
        yield not_known("health", PART, BEFORE, last.problem or "the devices cannot be asked")
        return
    findings = judge_health(health.before.devices, last.devices, health.xids, _devices_with_errors(facts, records))
    ranks_by_finding: dict[_Finding, list[int]] = {}
    for finding in findings:
        ranks = ranks_by_finding.setdefault(_without_device(finding), [])
        if finding.index is not None:
            ranks.append(finding.index)
    for shared_finding, ranks in ranks_by_finding.items():
        yield _finding_check(shared_finding, ranks)
    count_read = sum(device.has_values for device in last.devices)
    harmless = (HealthOutcome.NOT_KNOWN, HealthOutcome.LINE)
    if count_read and all(finding.outcome in harmless for finding in findings):
        yield _healthy_check(count_read)


def _without_device(finding: HealthFinding) -> _Finding:
    return _Finding(finding.kind, finding.outcome, finding.reason, finding.remedy or "")


def _finding_check(finding: _Finding, ranks: Sequence[int]) -> AcceptanceCheck:
    """The check of a finding about the devices of `ranks`; of the whole machine, if there are none."""
    outcome = _OUTCOMES[finding.outcome]
    reason = finding.reason
    if outcome is Outcome.PASS:
        reason = ""
    remedy = ""
    if finding.outcome is HealthOutcome.FIX:
        remedy = finding.remedy
    return AcceptanceCheck(
        name=finding.kind,
        part=PART,
        outcome=outcome,
        measured=finding.reason,
        against=BEFORE,
        limit="no new error, no state that asks for repair",
        reason=reason,
        remedy=remedy,
        ranks=tuple(ranks),
    )


def _healthy_check(devices: int) -> AcceptanceCheck:
    """The check that passes, for the number of devices that could be read."""
    return AcceptanceCheck(
        name="health",
        part=PART,
        outcome=Outcome.PASS,
        measured=f"devices read: {devices}; nothing asks for repair",
        against=BEFORE,
        limit="no new error, no state that asks for repair",
    )


def _devices_with_errors(facts: AcceptanceFacts, records: Mapping[str, Record]) -> set[str]:
    """The UUIDs of devices that had uncorrected memory errors in an earlier run among the certificate's records."""
    uuids = set()
    for part in facts.parts:
        for name in part.history:
            record = records.get(name)
            if record is not None:
                uuids |= _devices_with_errors_in(record)
    return uuids


def _devices_with_errors_in(record: Record) -> set[str]:
    """The UUIDs of devices that had uncorrected memory errors in one run."""
    uuids: set[str] = set()
    if record.telemetry is None:
        return uuids
    for device in record.telemetry.devices:
        health = device.health
        if health is None or health.before is None or health.after is None:
            continue
        if uncorrected_errors(health.before, health.after) and health.after.uuid is not None:
            uuids.add(health.after.uuid)
    return uuids


def host_link_rate(device: DeviceHealth) -> float | None:
    """The unidirectional rate, GB/s, of the fastest link that device and system support; None if not reported."""
    lane = GIGABYTES_PER_LANE.get(device.pcie_generation_max or 0)
    if lane is None or not device.pcie_width_max:
        return None
    return lane * device.pcie_width_max


def loaded_link_text(device: DeviceHealth) -> str:
    """`PCIe 3 x8 under load`; empty if the link was not read under load."""
    if not device.pcie_generation_loaded or not device.pcie_width_loaded:
        return ""
    return f"PCIe {device.pcie_generation_loaded} x{device.pcie_width_loaded} under load"
