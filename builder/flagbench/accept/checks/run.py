"""The checks of one run by its record alone: whether it ended well, ran alone and at full clocks, and its results."""

from __future__ import annotations

from collections.abc import Iterator

from flagbench.accept.check import AcceptanceCheck, Outcome, did_not_run, not_known
from flagbench.accept.document import RunPart
from flagbench.console.terminal import brief
from flagbench.machine.disturbance_limits import MEMORY_BEFORE
from flagbench.manifests.model import Case
from flagbench.records.model import Check, Record
from flagbench.verdict import rules
from flagbench.verdict.disturbance import describe_others_on_devices, describe_others_on_processors, find_throttling
from flagbench.verdict.recompute import recompute
from flagbench.verdict.rules.comparison import HEATED
from flagbench.verdict.subject import Subject
from flagbench_core.exit_codes import ExitCode

WRONG = ("precision", "same_results", "loss_finite", "parameters_finite", "ranks_in_step")
"""Checks of a run that fail where a device computes wrongly."""
CEILING = 1.02
"""The most FLOP/s of a case relative to a matrix product in its run: the tolerance of the rule `above-ceiling`."""
MOST_NAMED = 8
"""Most wrong operations that a reason names."""


def ran(part: RunPart, record: Record | None, case: Case) -> AcceptanceCheck:
    """Whether a run ended well, and its record is sound."""
    if record is None:
        return did_not_run(case.name, part.reason or "it left no record", part.state, part.remedy)
    outcome, reason = _ended(part, record, case)
    measured = part.state
    if record.laps:
        measured = f"{part.state}, {len(record.laps)} laps"
    if len(record.laps) == 1:
        measured = f"{part.state}, 1 lap"
    ranks: tuple[int, ...] = ()
    if outcome is Outcome.FAIL and _world(record) == 1:
        ranks = (0,)
    return AcceptanceCheck(
        name="ran",
        part=case.name,
        outcome=outcome,
        measured=measured,
        against="its own checks",
        limit="it ends well, and its record follows from its evidence",
        reason=brief(reason, 300),
        remedy=_remedy(record),
        ranks=ranks,
    )


def _remedy(record: Record) -> str:
    """The remedy of a run whose preflight refused the machine: another run would end in the same way."""
    if record.status.exit_code != ExitCode.WRONG_HARDWARE:
        return ""
    return record.status.remedy or ""


def _world(record: Record) -> int:
    return record.system.nodes * record.system.devices_per_node


def _ended(part: RunPart, record: Record, case: Case) -> tuple[Outcome, str]:
    """The outcome of a run with a record, and the reason if it did not end well."""
    failed = [check for check in record.checks if not check.ok]
    wrong = [check for check in failed if _computes_wrongly(check)]
    if wrong:
        return Outcome.FAIL, _details(wrong)
    if record.status.state != "ok":
        reason = _details(failed) or record.status.reason or part.reason or "it left no record"
        return Outcome.INCONCLUSIVE, reason
    invalid = rules.check_record(recompute(record, case))
    if invalid:
        return Outcome.INCONCLUSIVE, "; ".join(finding.message for finding in invalid[:2])
    return Outcome.PASS, ""


def _computes_wrongly(check: Check) -> bool:
    """Whether a failed check of a run is evidence against its device.

    A product in another precision than asked for is another library's choice, such as fp32 for tf32 on AMD.
    """
    if check.name == "precision":
        return "wrong" in check.detail
    return check.name in WRONG


def _details(checks: list[Check]) -> str:
    return "; ".join(f"{check.name}: {check.detail}" for check in checks)


def same_bits(record: Record) -> AcceptanceCheck:
    """Whether each device computes the same bits as before and as the others."""
    world = _world(record)
    wrong = []
    for result in record.results:
        for rank in dict.fromkeys((*result.changed, *result.apart)):
            wrong.append((result.name, rank))
    measured = f"{len(record.results)} operations, twice on 1 device"
    against = "itself"
    if world > 1:
        measured = f"{len(record.results)} operations, twice on {world} devices"
        against = "itself and the other devices"
    outcome = Outcome.PASS
    reason = ""
    if not record.results:
        outcome = Outcome.INCONCLUSIVE
        measured = "nothing"
        reason = "it was not computed twice"
    elif wrong:
        outcome = Outcome.FAIL
        reason = "; ".join(f"{name} on rank {rank}" for name, rank in wrong[:MOST_NAMED])
    return AcceptanceCheck(
        name="same bits",
        part=record.case,
        outcome=outcome,
        measured=measured,
        against=against,
        limit="no bit differs",
        reason=reason,
        ranks=tuple(sorted({rank for _, rank in wrong})),
    )


def quota(record: Record) -> AcceptanceCheck | None:
    """Whether a control group allows a processor for each rank; None without one."""
    if record.telemetry is None or record.telemetry.cpu.quota is None:
        return None
    world = _world(record)
    allowed = record.telemetry.cpu.quota
    outcome = Outcome.PASS
    reason = ""
    remedy = ""
    if allowed < world:
        outcome = Outcome.FAIL
        reason = "the control group allows fewer processors than there are ranks"
        remedy = "give the control group a processor for each rank"
    return AcceptanceCheck(
        name="quota",
        part=record.case,
        outcome=outcome,
        measured=f"{allowed:g} processors",
        against="the control group",
        limit=f"{world} for {world} ranks",
        reason=reason,
        remedy=remedy,
    )


def disturbance(record: Record) -> str:
    """What else used the machine during a run, or limited its devices; empty if nothing did."""
    telemetry = record.telemetry
    if telemetry is None:
        return ""
    sentences = describe_others_on_devices(telemetry.devices)
    if record.software.cuda is None and record.software.hip is None:
        sentences += describe_others_on_processors(telemetry.cpu)
    return ", ".join(sentences)


def telemetry_checks(record: Record) -> Iterator[AcceptanceCheck]:
    """Whether a device was used by the run alone, and kept its clocks."""
    if record.telemetry is None or not record.telemetry.devices:
        return
    yield _alone(record)
    yield _throttled(record)


def _alone(record: Record) -> AcceptanceCheck:
    disturbed_by = disturbance(record)
    outcome = Outcome.PASS
    reason = ""
    if disturbed_by:
        outcome = Outcome.INCONCLUSIVE
        reason = "another process uses a device"
    return AcceptanceCheck(
        name="alone",
        part=record.case,
        outcome=outcome,
        measured=disturbed_by or "nothing else",
        against="a device of its own",
        limit=f"no other process, at most {MEMORY_BEFORE / 2**30:g} GiB in use before",
        reason=reason,
    )


def _throttled(record: Record) -> AcceptanceCheck:
    assert record.telemetry is not None
    devices = record.telemetry.devices
    if not any(device.throttle_seconds or device.power_limit_default_w for device in devices):
        return not_known("throttled", record.case, "its own clocks", "the monitor does not say it")
    slowed = find_throttling(devices)
    measured = ", ".join(f"{reason} {seconds:.0f} s" for reason, seconds in slowed.items())
    outcome = Outcome.PASS
    reason = ""
    if slowed:
        outcome = Outcome.INCONCLUSIVE
        reason = "a device was slowed by heat or by its supply"
    return AcceptanceCheck(
        name="throttled",
        part=record.case,
        outcome=outcome,
        measured=measured or "no",
        against="its own clocks",
        limit="by nothing but its own power limit",
        reason=reason,
    )


def flops_in_range(subject: Subject) -> AcceptanceCheck | None:
    """Whether a case reached no more FLOP/s than a matrix product in its run; None if no product was measured."""
    flops = subject.record.flops
    if flops is None or flops.measured_ceiling is None:
        return None
    ceiling = flops.measured_ceiling
    share = None
    if subject.achieved_flops and ceiling.flops:
        share = subject.achieved_flops / ceiling.flops
    measured = "unknown"
    if share is not None:
        measured = f"{share:.0%} of a matrix product"
    outcome = Outcome.PASS
    reason = ""
    if share is None or share > CEILING:
        outcome = Outcome.INCONCLUSIVE
        reason = "a clock or a count is wrong"
    return AcceptanceCheck(
        name="flops",
        part=subject.case.name,
        outcome=outcome,
        measured=measured,
        against=f"a matrix product in {ceiling.precision} in the same run",
        limit=f"at most {CEILING:.0%}",
        reason=reason,
    )


def heat_seen(subject: Subject) -> AcceptanceCheck | None:
    """The check `not known` for a window that ended before the accelerator had its steady temperature; else None."""
    window = subject.record.window
    if window is None or not subject.on_accelerator:
        return None
    seconds = window.host_seconds or window.seconds
    if seconds >= HEATED:
        return None
    reason = f"a window of {seconds:.3g} s is too short to see heat"
    return not_known("heat", subject.case.name, f"{HEATED:g} s of steps", reason)
