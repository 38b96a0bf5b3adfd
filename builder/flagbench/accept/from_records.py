"""Judges a machine from its records alone, off the machine: makes the facts of an acceptance from the records.

`judge.checks_of` and `conclude` are computed from facts and records, so a node can be judged where its records are. A
record does not know everything that `accept` finds out on the machine: it has the number of other processes on the
devices, not their names, and no devices beyond those of its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import msgspec

from flagbench.accept.document import (
    AcceptanceFacts,
    Asked,
    CertificateMachine,
    DeviceReadings,
    HealthFacts,
    MachineDevice,
    RunFacts,
)
from flagbench.accept.limits import limits_of
from flagbench.accept.plan import SERVING, SERVING_GPUS
from flagbench.accept.run import AcceptanceResults, add_history
from flagbench.console.output import print_note
from flagbench.errors import FlagbenchError
from flagbench.machine.disturbance_limits import is_capped
from flagbench.manifests.model import Catalog
from flagbench.manifests.stack import Stack
from flagbench.records.index import host_of
from flagbench.records.model import DeviceTelemetry, Record
from flagbench.records.store import ReadRecord, Store
from flagbench.system.clock import format_utc, parse_utc
from flagbench.verdict.samples import start_of
from flagbench.verdict.series import CLOCK_SKEW
from flagbench_core.case_kinds import MEASURE
from flagbench_core.exit_codes import ExitCode
from flagbench_core.health.reading import DeviceHealth

_ASKED_MINUTES = 10.0
"""The minutes of an acceptance unless others are asked for; a record does not say how many were."""
JUDGED_DAYS = 6
"""The days before the newest record of a machine, or of a fleet, from which records are judged together.

Fewer than a week, so that the records of the last weekly run are earlier ones, whatever the order of the nodes.
"""
_PARTITION = "MIG-"
"""How the UUID of a part of a device begins."""


class StoredAcceptance(NamedTuple):
    """The acceptance of a machine that its records in a store amount to."""

    accepted: AcceptanceResults
    created_at: str
    """The time of its newest record, UTC."""
    seconds: float
    """The time from the start of the first run to the end of the last."""


def accept_from_store(store: Store, host: str, catalog: Catalog) -> StoredAcceptance:
    """Make an acceptance of the newest record of each case of a machine, with earlier records as history.

    Args:
        host: the name of the machine in its records.

    Raises FlagbenchError (DATA) if the store has no usable record of a run on this machine alone, and FlagbenchError
    if the store cannot be read.
    """
    newest = _newest_records(store, host, catalog)
    if not newest:
        raise FlagbenchError(
            f"there is no record of a single-node run on {host!r} in {store.url}",
            remedy="`flagbench results ls --json` shows the host of each record",
            code=ExitCode.DATA,
        )
    by_case = _choose_acceptance(newest, catalog)
    records = sorted((read.record for read in by_case.values()), key=lambda record: record.created_at)
    contents = {read.record.record_id: read.content for read in by_case.values()}
    accepted = AcceptanceResults(facts_of_records(records, catalog), contents)
    for run in accepted.facts.parts:
        add_history(by_case[run.case].record, run, accepted, store)
    end = records[-1].created_at
    return StoredAcceptance(accepted, end, (parse_utc(end) - start_of(records[0])).total_seconds())


def _newest_records(store: Store, host: str, catalog: Catalog) -> list[ReadRecord]:
    """The records of a machine within JUDGED_DAYS, the newest first: of each case, stack and settings the newest.

    Newer records that cannot be judged are left out, and so are damaged ones, whose machine is not known: a note on
    stderr names each. Raises FlagbenchError if the store cannot be read.
    """
    newest: list[ReadRecord] = []
    chosen: set[tuple[str | None, ...]] = set()
    left_out: list[str] = []
    latest = latest_credible_time()
    first = ""
    for entry in store.list_records():
        if entry.created_at < first:
            break
        summary = entry.summary
        if summary is None:
            left_out.append(f"{entry.location}, which may be of this machine: {entry.error}")
            continue
        settings = (entry.case, entry.stack, summary.history_digest)
        if summary.host != host or summary.nodes != 1 or settings in chosen:
            continue
        if summary.created_at > latest:  # it would make all others too old to be judged with it
            continue
        read = store.read_one(entry)
        problem = _find_problem(read.record, catalog)
        if problem is not None:
            left_out.append(f"{entry.location}: {problem.message}")
            continue
        if read.record.laps:
            continue
        chosen.add(settings)
        newest.append(read)
        first = first or first_judged(summary.created_at)
    for text in left_out:
        print_note(f"flagbench: accept: left out {text}")
    return newest


def _choose_acceptance(newest: Sequence[ReadRecord], catalog: Catalog) -> dict[str, ReadRecord]:
    """Choose the records of one acceptance, by case: those that belong to the newest roofs.

    Without roofs, to the newest record. `newest` is what `_newest_records` returns, one record or more.
    """
    basis = newest[0].record
    for read in newest:
        if catalog.cases[read.record.case].kind == MEASURE:
            basis = read.record
            break
    by_case: dict[str, ReadRecord] = {}
    for read in newest:
        if _belongs_to(basis, read.record):
            by_case.setdefault(read.record.case, read)
    return by_case


def _belongs_to(basis: Record, record: Record) -> bool:
    """Whether a record can be of one acceptance with `basis`: of its stack and devices, or of `--serving`."""
    devices = record.system.devices_per_node
    if record.case == SERVING:  # on one device and a stack of its own
        return devices == SERVING_GPUS
    return record.stack == basis.stack and devices == basis.system.devices_per_node


def latest_credible_time() -> str:
    """The latest time that a sound record can have, UTC: one of a later time has the date of a wrong clock."""
    return format_utc(datetime.now(timezone.utc) + CLOCK_SKEW)


def first_judged(newest: str) -> str:
    """The time from which records are judged together with the newest one, which is of the time `newest`."""
    return format_utc(parse_utc(newest) - timedelta(days=JUDGED_DAYS))


def _find_problem(record: Record, catalog: Catalog) -> FlagbenchError | None:
    """Why a record cannot be judged, such as a case of a newer flagbench; None if it can."""
    try:
        facts_of_records([record], catalog)
    except FlagbenchError as error:
        return error
    return None


def facts_of_records(records: Sequence[Record], catalog: Catalog) -> AcceptanceFacts:
    """Return the facts of an acceptance whose runs left these records.

    Args:
        records: the record of each case that ran on one machine, each of one node.

    Raises FlagbenchError (DATA) if this flagbench does not know the stack or a case of the records, or if a record
    states more than a machine can have.
    """
    for record in records:
        if record.case not in catalog.cases:
            raise _unknown_error("case", record.case)
    in_order = sorted(records, key=lambda record: catalog.cases[record.case].kind != MEASURE)
    stack = _stack_of(in_order[0], catalog)
    gpus = max(_asked_devices(record) for record in records)
    missing = 0
    for record in records:
        missing = max(missing, _asked_devices(record) - record.system.devices_per_node)
    driver_floor = None
    if any(_has_image(record) for record in records):
        driver_floor = stack.device.driver_floor
    machine = _machine_facts(in_order, gpus - missing)
    device_names = [device.name for device in machine.devices]
    serving = [record for record in in_order if record.case == SERVING]
    of_all_devices = [record for record in in_order if record not in serving]
    facts = AcceptanceFacts(
        asked=Asked(minutes=_ASKED_MINUTES, gpus=gpus, case=None, price_per_hour=None, serving=bool(serving)),
        gpus=gpus,
        stack=stack.name,
        device_kind=stack.device_kind,
        driver_floor=driver_floor,
        machine=machine,
        without_case=None,
        ending="done",
        parts=[_run_facts(record) for record in in_order],
        limits=limits_of(catalog, device_names, processor=stack.device_kind == "cpu"),
        health=_health_facts(of_all_devices or serving),
        off_node=True,
    )
    try:
        return msgspec.convert(msgspec.to_builtins(facts), AcceptanceFacts)
    except msgspec.ValidationError as error:
        raise FlagbenchError(
            f"its records cannot be judged: {error}", remedy="run it again", code=ExitCode.DATA
        ) from error


def _unknown_error(kind: str, name: str) -> FlagbenchError:
    return FlagbenchError(
        f"this flagbench does not know the {kind} '{name}'", remedy="upgrade flagbench", code=ExitCode.DATA
    )


def _stack_of(record: Record, catalog: Catalog) -> Stack:
    for stack in catalog.stacks.values():
        if record.stack in stack.names:
            return stack
    raise _unknown_error("stack", record.stack)


def _asked_devices(record: Record) -> int:
    """The number of devices that a run was asked to use."""
    gpus = (record.config or {}).get("gpus")
    if isinstance(gpus, int) and gpus > 0:
        return gpus
    return record.system.devices_per_node


def _has_image(record: Record) -> bool:
    """Whether a run was in a container; only an image states the oldest driver that it runs on."""
    image = record.system.image
    return any((image.id, image.digest, image.context_digest))


def _machine_facts(records: Sequence[Record], visible: int) -> CertificateMachine:
    """The machine as its records show it.

    `visible`: the number of devices that runs could use, if none was asked to use fewer.
    """
    devices = []
    most_devices = max(records, key=lambda record: len(record.system.devices))
    for device in most_devices.system.devices:
        devices.append(MachineDevice(device.index, device.name, device.uuid or ""))
    refused = [record for record in records if record.status.exit_code == ExitCode.WRONG_HARDWARE]
    problem = None
    remedy = ""
    if refused:
        problem = refused[0].status.reason
        remedy = refused[0].status.remedy or ""
    drivers = {record.system.driver for record in records if record.system.driver}
    return CertificateMachine(
        host=host_of(records[0]) or "",
        visible=visible,
        problem=problem,
        remedy=remedy,
        devices=tuple(devices),
        drivers=tuple(sorted(drivers)),
        foreign=tuple(_foreign_processes(records)),
        partitions=tuple(device.uuid for device in devices if device.uuid.startswith(_PARTITION)),
        capped=tuple(_power_caps(records)),
    )


def _telemetry_devices(record: Record) -> Sequence[DeviceTelemetry]:
    if record.telemetry is None:
        return ()
    return record.telemetry.devices


def _foreign_processes(records: Sequence[Record]) -> list[str]:
    """A clause with the most other processes that a device had in a run; empty if there were none."""
    most = 0
    for record in records:
        for device in _telemetry_devices(record):
            most = max(most, device.foreign_processes)
    if not most:
        return []
    return [f"{most} other processes on a device"]


def _power_caps(records: Sequence[Record]) -> list[str]:
    """A clause for each device whose power limit was below its default in the last run that monitored it."""
    clauses: dict[int, str] = {}
    for record in records:
        for rank, device in enumerate(_telemetry_devices(record)):
            clauses.pop(rank, None)
            if is_capped(device.power_limit_w, device.power_limit_default_w):
                watts = f"{device.power_limit_w:.0f} of {device.power_limit_default_w:.0f} W"
                clauses[rank] = f"rank {rank} is limited to {watts}"
    return [clauses[rank] for rank in sorted(clauses)]


def _run_facts(record: Record) -> RunFacts:
    """The facts of one run."""
    return RunFacts(
        case=record.case,
        target=f"{record.case}:{record.stack}",
        why="its record is in the store",
        record_id=record.record_id,
        state=record.status.state,
        reason=record.status.reason,
        history=(),
        priors={},
    )


def _health_facts(records: Sequence[Record]) -> HealthFacts | None:
    """The health of the devices before the first run and after the last.

    None if no run read it. The lines of the kernel log are not in a record.
    """
    before: list[DeviceHealth] = []
    after: list[DeviceHealth] = []
    for record in records:
        readings = [device.health for device in _telemetry_devices(record) if device.health is not None]
        if not before:
            before = [reading.before for reading in readings if reading.before is not None]
        of_run = [reading.after for reading in readings if reading.after is not None]
        after = of_run or after
    if not before and not after:
        return None
    return HealthFacts(before=DeviceReadings(tuple(before)), after=DeviceReadings(tuple(after)))
