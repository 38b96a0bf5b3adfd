"""Assembles the record of a run from the evidence of its ranks, complete or not.

`assemble` is called by the parent process of node 0 when its ranks have ended, and `to_line` makes the line of JSON
that a run prints. The schema of a record is manifests/schema/record-v1.json; its evidence is what its ranks measured,
step by step, from which `flagbench verify` computes all metrics again.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import uuid
from typing import Any

from flagbench_cases.record import measured, ranks, sections, time_of_day
from flagbench_cases.record.evidence import Evidence, Outcome
from flagbench_cases.record.request import Request
from flagbench_cases.shared import system
from flagbench_core import DIVISION, __version__
from flagbench_core.config import stop_rule
from flagbench_core.evidence.document import digest_of
from flagbench_core.exit_codes import ExitCode

MAX_LINE_BYTES = 990_000
"""The largest size of a record, bytes. Readers accept 1,000,000, since a launcher may add fields."""
MAX_NAME_LENGTH = 64
"""The most characters of a name. A record's id contains the case's and the stack's, and has at most 160."""
CHECK_REMEDY = "the record contains the measurements; docs/read-a-record.md explains each check"


def slug(text: str) -> str:
    """Return a name that is valid in a record, made from any text, such as that of a wrong argument."""
    name = re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")
    return name[:MAX_NAME_LENGTH] or "unknown"


def new_record_id(request: Request, created: datetime.datetime | None = None) -> str:
    """Return a unique, readable id. Ids sort by the time `created`, which is now by default."""
    created = created or datetime.datetime.now(datetime.timezone.utc)
    time = created.strftime("%Y%m%dT%H%M%SZ")
    stack = slug(request.stack["name"])
    random = uuid.uuid4().hex[:8]
    return f"{time}-{slug(request.case)}-{stack}-{request.nodes}x{request.gpus}-{random}"


def assemble(
    request: Request, evidence: Evidence, outcome: Outcome, bundle: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the record in the schema record/v1.

    `bundle`: the value of its field `bundle`, which names the archive with the raw evidence of this node.
    """
    created = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    world = request.nodes * request.gpus
    count = measured.count_complete_steps(evidence.steps, world)
    software = _software(request.stack, evidence)
    record: dict[str, Any] = {
        "schema": "record/v1",
        "record_id": request.record_id or new_record_id(request, created),
        "run_id": request.run_id,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "flagbench": {"version": __version__, **system.commit()},
        "case": slug(request.case),
        "stack": request.stack["name"],
        "preset": request.preset,
        "division": DIVISION,
        "argv": request.argv,
        "config": request.config,
        "config_digest": request.config_digest,
        "layout": dict(request.layout._asdict()),
        "conditions": conditions(request, evidence, software),
        "system": _system(request, evidence),
        "software": software,
        "timing": {},
        "metrics": [],
        "window": None,
        "flops": None,
        "work": None,
        "quality": None,
        "telemetry": evidence.telemetry,
        "telemetry_reason": evidence.telemetry_reason,
        "ranks": ranks.entries(evidence),
        "bundle": bundle,
        "status": outcome.as_dict(),
    }
    laps = measured.collect_laps(evidence)
    if laps:
        record["laps"] = laps
    if request.config is None or not count:
        return _final(record, world, request.gpus)
    return _with_sections(record, request, evidence, count)


def _system(request: Request, evidence: Evidence) -> dict[str, Any]:
    """Return the record's `system`: this node, its devices, and what is common to all nodes."""
    machine = dict(system.machine(), driver=evidence.monitor.get("driver_version"))
    if evidence.monitor.get("versions"):
        machine["versions"] = evidence.monitor["versions"]
    networks: set[str] = set()
    for fact in evidence.all("network"):
        networks.update(fact["chosen"])
    if networks:
        machine["networks"] = sorted(networks)
    if request.begun:
        moved = time_of_day.set_by(request.begun)
        if moved is not None:
            machine["clock_set_seconds"] = moved
    devices = [fact["device"] for fact in evidence.all("rank") if fact["node"] == 0]
    return dict(machine, nodes=request.nodes, devices_per_node=request.gpus, devices=devices)


def _with_sections(record: dict[str, Any], request: Request, evidence: Evidence, count: int) -> dict[str, Any]:
    """Return the record with the sections that are computed from its first `count` steps.

    The evidence is as detailed as MAX_LINE_BYTES allows. These forms are tried until one fits: blocks of few steps,
    longer blocks, one block of all steps with packed lists by rank, the same without the times of collectives, and
    no evidence at all.
    """
    world = request.nodes * request.gpus
    block = measured.choose_block(count, world)
    packed = measured.must_be_packed(world)
    if packed:
        block = count
    while True:
        sections.fill(record, request, evidence, count, block, packed)
        final = _final(record, world, request.gpus)
        excess = _bytes(final) - MAX_LINE_BYTES
        if excess <= 0:
            return final
        if packed:
            break
        packed = block >= count
        block = _longer_block(block, _bytes(record["evidence"]), excess, count)
    final = _without_collectives(final)
    if _bytes(final) > MAX_LINE_BYTES:
        return _without_evidence(final)
    return final


def _final(record: dict[str, Any], world: int, per_node: int) -> dict[str, Any]:
    """Return the record with its final status, and with a bounded list of ranks."""
    final = with_final_status(record)
    return dict(final, **ranks.bounded(final["ranks"], world, per_node))


def _without_collectives(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the times of collectives, which no metric is computed from."""
    spans = []
    for span in record["evidence"]["spans"]:
        spans.append({name: column for name, column in span.items() if name != "collectives"})
    evidence = dict(record["evidence"], spans=spans)
    return dict(record, evidence=evidence, evidence_digest=digest_of(evidence))


def _without_evidence(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without evidence. It can be read, but `verify` cannot compute its metrics again."""
    reason = "the evidence of so many ranks is larger than a record may be; bundles have it"
    return dict(record, evidence=None, evidence_digest=None, evidence_reason=reason)


def _bytes(value: dict[str, Any]) -> int:
    """Return the size of a value as a line of JSON, bytes."""
    return len(to_line(value).encode("utf-8"))


def _longer_block(block: int, size: int, excess: int, count: int) -> int:
    """Return the steps of a block with which evidence of `size` bytes, `excess` of them too many, should fit.

    The size of evidence is roughly proportional to its number of blocks.
    """
    if size <= excess:
        return count
    steps = -(-block * size // (size - excess))  # rounded up
    return min(count, max(block + 1, steps))


def with_final_status(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with its final status: a completed run whose checks failed becomes `failed` (code 12)."""
    if record["status"]["state"] != "ok":
        return record
    reason = _failure_reason(record["quality"])
    if reason is None:
        return record
    outcome = Outcome("failed", "report", reason, CHECK_REMEDY, int(ExitCode.INVALID))
    return dict(record, status=outcome.as_dict())


def _failure_reason(quality: dict[str, Any] | None) -> str | None:
    """Return why a completed run is not valid, or None if it is valid."""
    if quality is None:
        return "the run ended before every rank had finished a step"
    failed = [check for check in quality["checks"] if not check["ok"]]
    if not failed:
        return None
    return "; ".join(f"the check {check['name']} failed: {check['detail']}" for check in failed)


def _software(stack: dict[str, Any], evidence: Evidence) -> dict[str, Any]:
    """Return the record's `software`: versions reported by the ranks, or by this process if no rank started."""
    software = evidence.first("software")
    if not software:
        return {
            "python": system.python_version(),
            "torch": None,
            "cuda": None,
            "packages": {},
            "precision": None,
            **system.lock(),
        }
    return dict(software, precision=evidence.first("precision") or None, stack_expects=stack["expects"])


def accelerator(stack: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the stack's entry for a device name reported by the driver, or None if the stack does not list it.

    The complete name must match: a part would also match slices of the device (MIG) and other boards of its family.
    """
    for device in stack["accelerators"]:
        if name in device["match"]:
            return device
    return None


def conditions(
    request: Request,
    evidence: Evidence,
    software: dict[str, Any],
) -> dict[str, Any]:
    """Return the record's `conditions`: facts that `verify` compares with those of a published row, None if unknown.

    They are empty if the configuration could not be resolved. The workload of a case adds its own.
    """
    if request.config is None:
        return {}
    facts = {
        "device_model": _device_model(request.stack, evidence),
        "devices": request.nodes * request.gpus,
        "nodes": request.nodes,
        "division": DIVISION,
        "precision": (software.get("precision") or {}).get("executed"),
        "seed": request.config["seed"],
        "stop_rule": stop_rule(request.config),
        "torch": software["torch"],
        "cuda": software.get("cuda"),
        "driver": " + ".join(_drivers(evidence)) or None,
    }
    if request.layout.ranks_per_replica > 1:
        facts["layout"] = str(request.layout)
    facts.update(evidence.first("workload").get("conditions", {}))
    return facts


def _device_model(stack: dict[str, Any], evidence: Evidence) -> str | None:
    """Return the model of the run's devices as the stack's manifest names it, or else as their driver does."""
    names = sorted({fact["device"]["name"] for fact in evidence.all("rank")})
    if len(names) == 1:
        device = accelerator(stack, names[0])
        if device is not None:
            return device["name"]
    return " + ".join(names) or None


def _drivers(evidence: Evidence) -> list[str]:
    """Return the driver versions reported by the ranks of every node, or only this node's if no rank started."""
    drivers = {fact["driver"] for fact in evidence.all("rank") if fact.get("driver")}
    if not drivers and evidence.monitor.get("driver_version"):
        drivers.add(evidence.monitor["driver_version"])
    return sorted(drivers)


def strict(value: Any) -> Any:
    """Return `value` with None for every number that JSON cannot represent, such as a NaN from a faulty device."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_line(record: dict[str, Any]) -> str:
    """Return the record as one line of strict JSON.

    Characters that UTF-8 cannot encode, from arguments that are not valid UTF-8, become `?`.
    """
    text = json.dumps(strict(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")
