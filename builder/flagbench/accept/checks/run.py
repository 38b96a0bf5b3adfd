"""Checks one run according to its record alone: whether it ended well, computed correctly, and had full clocks.

Nothing here compares speeds with a reference; speed.py does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flagbench.accept.check import AcceptanceCheck, Outcome, not_known
from flagbench.accept.document import RunFacts
from flagbench.console.terminal import brief
from flagbench.machine.disturbance_limits import MEMORY_BEFORE
from flagbench.records.model import Check, Record
from flagbench.verdict import rules
from flagbench.verdict.disturbance import describe_others_on_devices, describe_others_on_processors, find_throttling
from flagbench.verdict.rules.comparison import HEATED
from flagbench.verdict.subject import Subject
from flagbench_core.exit_codes import ExitCode

WRONG = ("precision", "same_results", "loss_finite", "parameters_finite", "ranks_in_step")
"""The checks in a record that fail if a device computes wrongly."""
CEILING = 1.02
"""The most FLOP/s of a case relative to a matmul in its run: the tolerance of the verdict's rule `above-ceiling`."""
MOST_NAMED = 8
"""The most wrong operations that a reason names."""
MOST_INVALID = 2
"""The most contradictions in a record that a reason names."""
REASON_LENGTH = 300
"""The most characters of a reason that comes from a record."""


def check_ended(run_facts: RunFacts, subject: Subject) -> AcceptanceCheck:
    """The check `ran`: whether a run ended well, and its record is sound."""
    record = subject.record
    ending = _judge_ending(run_facts, subject)
    measured = run_facts.state
    if record.status.exit_code == ExitCode.TIMEOUT:
        measured = "timeout"
    elif len(record.laps) == 1:
        measured = f"{run_facts.state}, 1 lap"
    elif record.laps:
        measured = f"{run_facts.state}, {len(record.laps)} laps"
    ranks: tuple[int, ...] = ()
    if ending.outcome is Outcome.FAIL:
        ranks = _ranks_at_fault(record)
    return AcceptanceCheck(
        name="ran",
        part=run_facts.case,
        outcome=ending.outcome,
        measured=measured,
        against="its own checks",
        limit="it ends well, and its record follows from its evidence",
        reason=brief(ending.reason, REASON_LENGTH),
        remedy=_remedy(record),
        ranks=ranks,
    )


def _ranks_at_fault(record: Record) -> tuple[int, ...]:
    """The ranks of a run with a wrong result whose devices computed it, as far as the record says.

    A record says of its fixed operations which rank computed other bits. A loss that is not finite is of all ranks.
    """
    if _rank_count(record) == 1:
        return (0,)
    return tuple(sorted({result.rank for result in _wrong_results(record)}))


def _remedy(record: Record) -> str:
    """The remedy of a run that refused the machine before it began: another run would end in the same way."""
    if record.status.exit_code != ExitCode.WRONG_HARDWARE:
        return ""
    return record.status.remedy or ""


def _rank_count(record: Record) -> int:
    """The number of ranks of a run: one for each device."""
    return record.system.nodes * record.system.devices_per_node


class _Ending(NamedTuple):
    """How a run with a record ended."""

    outcome: Outcome
    reason: str = ""
    """Why it did not end well; empty if it did."""


def _judge_ending(run_facts: RunFacts, subject: Subject) -> _Ending:
    """Whether a run ended well: wrong results fail, and everything else that went wrong is inconclusive."""
    record = subject.record
    failed = [check for check in record.checks if not check.ok]
    wrong = [check for check in failed if _computes_wrongly(check)]
    if wrong:
        return _Ending(Outcome.FAIL, _details(wrong))
    if record.status.state != "ok":
        reason = _details(failed) or record.status.reason or run_facts.reason or "it left no record"
        return _Ending(Outcome.INCONCLUSIVE, reason)
    invalid = rules.check_record(subject)
    if invalid:
        messages = [finding.message for finding in invalid[:MOST_INVALID]]
        return _Ending(Outcome.INCONCLUSIVE, "; ".join(messages))
    return _Ending(Outcome.PASS)


def _computes_wrongly(check: Check) -> bool:
    """Whether a failed check of a run is evidence against its device.

    A matmul in another precision than asked for is the choice of a library, such as fp32 for tf32 on AMD. Only a
    wrong result counts, which the check's detail says.
    """
    if check.name == "precision":
        return "wrong" in check.detail
    return check.name in WRONG


def _details(checks: list[Check]) -> str:
    """The failed checks with their details, as text."""
    return "; ".join(f"{check.name}: {check.detail}" for check in checks)


def check_same_bits(record: Record) -> AcceptanceCheck:
    """The check `same bits`: whether each device computes the same bits as before and as the other devices."""
    count = _rank_count(record)
    wrong = _wrong_results(record)
    measured = f"{len(record.results)} operations, twice on 1 device"
    against = "itself"
    if count > 1:
        measured = f"{len(record.results)} operations, twice on {count} devices"
        against = "itself and the other devices"
    outcome = Outcome.PASS
    reason = ""
    if not record.results:
        outcome = Outcome.INCONCLUSIVE
        measured = "nothing"
        reason = "it was not computed twice"
    elif wrong:
        outcome = Outcome.FAIL
        reason = "; ".join(f"{result.operation} on rank {result.rank}" for result in wrong[:MOST_NAMED])
    return AcceptanceCheck(
        name="same bits",
        part=record.case,
        outcome=outcome,
        measured=measured,
        against=against,
        limit="no bit differs",
        reason=reason,
        ranks=tuple(sorted({result.rank for result in wrong})),
    )


class _WrongResult(NamedTuple):
    """A fixed operation of which a rank computed other bits than before, or than the other devices."""

    operation: str
    rank: int


def _wrong_results(record: Record) -> list[_WrongResult]:
    """The fixed operations with wrong bits in a run."""
    wrong = []
    for result in record.results:
        for rank in dict.fromkeys((*result.changed, *result.apart)):
            wrong.append(_WrongResult(result.name, rank))
    return wrong


def check_quota(record: Record) -> AcceptanceCheck | None:
    """The check `quota`: whether the control group allows a processor for each rank; None if it has no limit."""
    if record.telemetry is None or record.telemetry.cpu.quota is None:
        return None
    count = _rank_count(record)
    allowed = record.telemetry.cpu.quota
    outcome = Outcome.PASS
    reason = ""
    remedy = ""
    if allowed < count:
        outcome = Outcome.FAIL
        reason = "the control group allows fewer processors than there are ranks"
        remedy = "give the control group a processor for each rank"
    return AcceptanceCheck(
        name="quota",
        part=record.case,
        outcome=outcome,
        measured=f"{allowed:g} processors",
        against="the control group",
        limit=f"{count} for {count} ranks",
        reason=reason,
        remedy=remedy,
    )


def describe_disturbance(record: Record) -> str:
    """Other uses of the machine during a run, and limits on its devices, in words; empty if there were none."""
    telemetry = record.telemetry
    if telemetry is None:
        return ""
    sentences = describe_others_on_devices(telemetry.devices)
    if record.software.cuda is None and record.software.hip is None:
        sentences += describe_others_on_processors(telemetry.cpu)
    return ", ".join(sentences)


def telemetry_checks(record: Record) -> Iterator[AcceptanceCheck]:
    """The checks `alone` and `throttled`; none if no monitor watched the devices."""
    if record.telemetry is None or not record.telemetry.devices:
        return
    yield _alone(record)
    yield _throttled(record)


def _alone(record: Record) -> AcceptanceCheck:
    """Whether the run was the only user of its devices."""
    disturbed_by = describe_disturbance(record)
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
    """Whether the devices kept their clocks."""
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


def check_flops(subject: Subject) -> AcceptanceCheck | None:
    """The check `flops`: whether a case reached no more FLOP/s than a matmul in its run.

    None if no matmul was measured.
    """
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


def check_heat(subject: Subject) -> AcceptanceCheck | None:
    """The check `heat`, which is not known if the window ended before the accelerator had its steady temperature.

    None if the window was long enough, and on a processor.
    """
    window = subject.record.window
    if window is None or not subject.on_accelerator:
        return None
    seconds = window.host_seconds or window.seconds
    if seconds >= HEATED:
        return None
    reason = f"a window of {seconds:.3g} s is too short to see heat"
    return not_known("heat", subject.case.name, f"{HEATED:g} s of steps", reason)
