"""Accelerators that are drawn, and what `flagbench accept` concludes of them. Their records are a shipped one of an
H100 with the times that its repeats would take on them.

The spreads are assumptions, except the noise of repeats, which is that of the shipped run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from catalogs import CATALOG
from flagbench.accept.document import AcceptanceFacts
from flagbench.accept.judge import checks_of, conclude
from flagbench.accept.priors import spread_of
from flagbench.records.read import read_record
from flagbench.verdict.recompute import collect_facts as facts_of_record
from flagbench.verdict.stats.between import DEFAULT, history_prior
from flagbench_core.config import digest
from flagbench_core.evidence import derive
from flagbench_core.evidence.document import digest_of, read_evidence
from flagbench_core.evidence.roofs import amount

MEASURED = Path(__file__).parents[1] / "docs" / "measured"
SHIPPED = (MEASURED / "h100-roofs-mamf-bf16-2.json").read_text()
"""Its MAMF products are in the shape of MAMF's own row."""
SHAPE = [8192, 8192, 8192]
"""Of the other products: what `accept` asks for."""
HEATED_SECONDS = 30
RUN_NOISE = 0.003
"""Standard deviation of a measurement between runs of a machine."""
REPEAT_NOISE = 0.002
"""Standard deviation of a repeat, beside the shape of the shipped repeats, which all devices have in common."""
OTHER_THAN_PRODUCTS = 0.1
"""How much devices differ in copies, relative to how much they differ in products, which their power limits."""
REPEAT_SECONDS = 0.02
"""Of a repeat: as many operations as fit."""
PRODUCTS, MEMORY, LINK = ("matmul",), ("copy",), ("h2d", "d2h")
COLLECTIVES = ("all_reduce", "all_gather")
ALL = PRODUCTS + MEMORY + LINK + COLLECTIVES
A_NIGHT = 24 * 60


@dataclass(frozen=True)
class Model:
    """A device model, and what a sound device of it reaches."""

    name: str
    stack: str
    driver: str
    memory_gib: float
    power_w: float
    clock_mhz: float
    rates: Mapping[str, float]
    """FLOP/s or B/s of each measurement; one without a rate is not made."""
    vendor: str = "nvidia"


@dataclass(frozen=True)
class Machines:
    """Machines of one model, whose devices differ."""

    model: Model
    gpus: int = 1
    chips: float = 0.01
    """Standard deviation of the speed of devices in products."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a machine: some devices reach a share of their speed, or the look at it finds something."""

    share: float = 1.0
    operations: tuple[str, ...] = ALL
    rank: int | None = None
    """The device; None for all of them."""
    look: Mapping[str, object] = field(default_factory=dict)
    """What the look at the machine finds that it does not at an idle one."""
    telemetry: Mapping[str, object] = field(default_factory=dict)
    """Of every device, where it differs from that of a sound one."""
    health: Mapping[str, object] = field(default_factory=dict)
    """What is read of the device at `rank` after the runs, where it differs from before."""
    xid: int | None = None
    """The number of a line in the kernel log of the device at `rank`."""


NO_FAULT = Fault()


@dataclass(frozen=True)
class History:
    """Sound runs of the machine that are in the store."""

    runs: int = 0
    minutes_between: int = A_NIGHT


def conclusion(machines, fault, history, rng):
    """Draw a machine and its runs: what an acceptance of the last one concludes, its checks and its records."""
    chips = 1 + machines.chips * rng.standard_normal(machines.gpus)
    earlier = []
    for number in range(history.runs):
        earlier.append(roofs_record(machines, chips, NO_FAULT, rng, number * history.minutes_between))
    last = roofs_record(machines, chips, fault, rng, history.runs * history.minutes_between)
    records = {}
    for raw in (*earlier, last):
        records[raw["record_id"]] = read_record(json.dumps(raw).encode())
    facts = _facts(machines, fault, last, earlier)
    checks = checks_of(facts, records, CATALOG)
    return conclude(checks, facts, records), checks, records


def roofs_record(machines, chips, fault, rng, minutes):
    """The JSON of a run of `roofs`, with the numbers that follow from its evidence.

    Args:
        chips: the speed of each device in products, relative to its model's.
        minutes: when it was made, since the first of a month.
    """
    raw = json.loads(SHIPPED)
    model, gpus = machines.model, machines.gpus
    raw["evidence"] = _evidence(raw["evidence"], model, chips, fault, rng)
    day, hour, minute = 1 + minutes // A_NIGHT, minutes % A_NIGHT // 60, minutes % 60
    raw["created_at"] = f"2026-11-{day:02d}T{hour:02d}:{minute:02d}:00Z"
    raw["record_id"] = f"202611{day:02d}T{hour:02d}{minute:02d}00Z-roofs-{model.stack}-1x{gpus}-{minutes:08x}"
    raw["run_id"], raw["stack"] = f"run-{minutes}", model.stack
    raw["argv"] = ["roofs", "--nodes=1", f"--gpus={gpus}", "--precision=bf16", "--steps=20"]
    raw["config"].update(gpus=gpus, seed=0)
    raw["config"]["products"].update(zip("mnk", SHAPE))
    raw["config"]["measure"]["heat_seconds"] = HEATED_SECONDS
    shapes = {name.removeprefix("mamf_"): shape for name, shape in mamf_shapes(model).items()}
    if shapes:
        raw["config"]["products"]["mamf_shapes"] = shapes
    raw["layout"] = {"dp": gpus, "tp": 1, "pp": 1}
    raw["conditions"].update(device_model=model.name, devices=gpus, driver=model.driver, seed=0)
    raw["conditions"]["shape"] = " x ".join(map(str, SHAPE))
    if model.vendor == "amd":
        raw["software"].update(cuda=None, hip="6.3.42131", torch="2.9.1+rocm6.3")
        raw["conditions"].update(cuda=None, torch="2.9.1+rocm6.3")
    for result in raw["results"]:
        bits = next(iter(result["digests"]))
        result["digests"] = {bits: [*range(gpus)]}
    raw.pop("launch")
    _list_devices(raw, model, gpus, fault)
    return _with_derived(raw)


def _evidence(evidence, model, chips, fault, rng):
    """The shipped evidence, where every repeat takes the time that it would on each device."""
    gpus, memory = len(chips), int(model.memory_gib * 2**30)
    shapes = mamf_shapes(model)
    spans = []
    for span in evidence["spans"]:
        if span["phase"] in model.rates and (span["phase"] in shapes or not span["phase"].startswith("mamf")):
            spans.append(span)
    if gpus > 1:
        copies = next(span for span in spans if span["phase"] == "memory_bandwidth")
        for name in COLLECTIVES:
            measured = {"operation": name, "bytes": 2**32}
            spans.append({**copies, "phase": name, "measured": measured, "columns": dict(copies["columns"])})
    first_step, durations = 0, {}
    for span in spans:
        name, steps, columns, measured = span["phase"], span["steps"], span["columns"], span["measured"]
        if measured["operation"] == "matmul" and not name.startswith("mamf"):
            measured["shape"] = SHAPE
        if name in shapes:
            span["phase"] = name.replace("mamf", "mamf_published")
            measured.update(shape=shapes[name], heated_seconds=HEATED_SECONDS)
        rate = model.rates[name] * (1 + RUN_NOISE * rng.standard_normal())
        count = 1  # MAMF times products one by one
        if not name.startswith("mamf"):
            count = max(1, round(REPEAT_SECONDS * model.rates[name] / amount(measured)))
        shipped = np.array(columns["device"][0], float)
        microseconds = 1e6 * count * amount(measured) / rate * shipped / np.median(shipped)
        device = _times_of_devices(microseconds, measured["operation"], chips, fault, rng)
        span["first_step"] = first_step
        columns.update(host=[[30] * steps] * gpus, device=device, after=device)
        columns.update(samples=count, samples_published=count)
        durations[span["phase"]] = [sum(times) + 30 * steps + 1000 for times in device]
        first_step += steps
    total = sum(max(of_ranks) for of_ranks in durations.values())
    init = evidence["timing"]["init"]
    peak = {"peak": [memory // 3] * gpus, "allocator_peak": [memory // 8] * gpus, "capacity": [memory] * gpus}
    return {
        **evidence,
        "ranks": gpus,
        "spans": spans,
        "timing": {"init": init, "measure": total, "e2e": init + total},
        "durations": durations,
        "memory": peak,
        "ceilings": [model.rates["matmul_bf16"]] * gpus,
    }


def mamf_shapes(model):
    """The shapes of MAMF's rows of a model, by metric."""
    shapes = {}
    for claim in CATALOG.claims.values():
        name = claim.metrics[0].name
        if name.startswith("mamf") and claim.conditions["device_model"] == model.name:
            shapes[name] = [claim.run.set[size] for size in "mnk"]
    return shapes


def _times_of_devices(microseconds, operation, chips, fault, rng):
    """The whole microseconds of each repeat on each device."""
    times = []
    for rank, chip in enumerate(chips):
        speed = chip if operation in PRODUCTS else 1 + OTHER_THAN_PRODUCTS * (chip - 1)
        if operation in fault.operations and fault.rank in (None, rank):
            speed *= fault.share
        times.append(microseconds / speed * (1 + REPEAT_NOISE * rng.standard_normal(len(microseconds))))
    if operation in COLLECTIVES:  # all devices wait for the last one
        times = [np.max(times, axis=0)] * len(chips)
    return [[max(1, round(time)) for time in own] for own in times]


def _list_devices(raw, model, gpus, fault):
    """Give a record its devices, ranks and telemetry."""
    memory, seconds = int(model.memory_gib * 2**30), raw["evidence"]["timing"]["measure"] / 1e6
    rank, monitored = raw["ranks"][0], raw["telemetry"]["devices"][0]
    power, clock = model.power_w / monitored["power_limit_w"], model.clock_mhz / monitored["sm_clock_max_mhz"]
    for name, value in monitored.items():
        if name.startswith("power_"):
            monitored[name] = value * power
        if name.startswith("sm_clock_"):
            monitored[name] = value * clock
    monitored.update(name=model.name, mem_used_max_bytes=memory // 3, energy_seconds=seconds)
    monitored["energy_j"] = monitored["power_mean_w"] * seconds
    if model.vendor == "amd":  # amd-smi has no times of throttling
        monitored.update(throttle_seconds={}, power_limit_default_w=None)
    raw["system"].update(devices_per_node=gpus, devices=[], driver=model.driver)
    raw["ranks"], raw["telemetry"]["devices"] = [], []
    raw["telemetry"]["samples"] = int(seconds)
    for index in range(gpus):
        uuid = f"GPU-{index}"
        raw["system"]["devices"].append({"index": index, "memory_bytes": memory, "name": model.name, "uuid": uuid})
        raw["ranks"].append({**rank, "rank": index, "local_rank": index, "pid": 1000 + index, "uuid": uuid})
        raw["telemetry"]["devices"].append({**monitored, "index": index, **fault.telemetry})


def _with_derived(raw):
    """A record with the numbers and digests that follow from its evidence and configuration."""
    raw["evidence_digest"], raw["config_digest"] = digest_of(raw["evidence"]), digest(raw["config"])
    record, evidence = read_record(json.dumps(raw).encode()), read_evidence(raw["evidence"])
    found = derive(evidence, facts_of_record(record, CATALOG.cases["roofs"], evidence))
    for name in ("metrics", "window", "work", "timing", "measurements", "slow_devices"):
        raw[name] = getattr(found, name)
    for rank in raw["ranks"]:
        rank.update(found.ranks[rank["rank"]], steps=evidence.steps)
    return raw


def _facts(machines, fault, raw, earlier):
    """The facts of an acceptance that made this record after the earlier ones."""
    model, gpus = machines.model, machines.gpus
    priors = {}
    for metric in raw["metrics"]:
        name = metric["name"]
        values = [[other["value"]] for run in earlier for other in run["metrics"] if other["name"] == name]
        prior = history_prior(values, values)  # each run is a session
        if prior != DEFAULT:
            priors[name] = spread_of(prior)
    part = {"case": "roofs", "target": f"roofs:{model.stack}", "why": "", "record_id": raw["record_id"]}
    part.update(state="ok", reason=None, history=[run["record_id"] for run in earlier], priors=priors)
    look = {
        "host": "here",
        "visible": gpus,
        "problem": None,
        "tool": "answered",
        "lost": (),
        "devices": [{"index": index, "name": model.name, "uuid": f"GPU-{index}"} for index in range(gpus)],
        "drivers": [model.driver] if model.vendor == "nvidia" else [],
        "foreign": [],
        "partitions": [],
        "capped": [],
    }
    facts = {
        "asked": {"minutes": 10.0, "gpus": gpus, "case": None, "price_per_hour": None},
        "gpus": gpus,
        "stack": model.stack,
        "device_kind": "cuda",
        "driver_floor": CATALOG.stacks[model.stack].device.driver_floor,
        "machine": {**look, **fault.look},
        "planned": ["roofs"],
        "without_case": None,
        "ending": "done",
        "parts": [part],
        "health": _health(model, gpus, fault) if model.vendor == "nvidia" else None,
    }
    return msgspec.convert(facts, AcceptanceFacts)


HEALTHY = {
    **{"ecc_uncorrected": 0, "ecc_corrected": 0, "row_remap_pending": False, "row_remap_failed": False},
    **{"recovery_action": 0, "fabric_state": 3, "fabric_status": 0, "fabric_health": 1},
    **{"pcie_generation_max": 5, "pcie_width_max": 16, "nvlinks_up": [*range(18)], "nvlinks_down": []},
}
"""What NVML says of a sound H100."""


def _health(model, gpus, fault):
    """The facts of an acceptance about the health of its devices."""
    devices = []
    for rank in range(gpus):
        identity = {
            "index": rank,
            "uuid": f"GPU-{rank}",
            "name": model.name,
            "pci_address": f"0000:{rank + 1:02x}:00.0",
        }
        devices.append({**identity, **HEALTHY})
    faulty = fault.rank or 0
    after = [dict(device) for device in devices]
    after[faulty].update(fault.health)
    xids = []
    if fault.xid is not None:
        text = f"NVRM: Xid (PCI:0000:{faulty + 1:02x}:00): {fault.xid}"
        xids.append(
            {"code": fault.xid, "pci_address": f"0000:{faulty + 1:02x}:00", "count": 1, "sequence": 8, "text": text}
        )
    return {
        "before": {"devices": devices, "source": "nvml"},
        "after": {"devices": after, "source": "nvml"},
        "xids": {"xids": xids, "last": 7},
    }


def _rates_of_h100():
    """Those of the shipped records: the products in SHAPE are of the one that ran it."""
    rates = {each["name"]: each["rate"] for each in json.loads(SHIPPED)["measurements"]}
    for each in json.loads((MEASURED / "h100-roofs.json").read_text())["measurements"]:
        if each.get("shape") == SHAPE:
            rates[each["name"]] = each["rate"]
    return {**rates, "all_reduce": 240e9, "all_gather": 250e9}  # assumptions: a bus bandwidth of 420 GB/s


H100 = Model("NVIDIA H100 80GB HBM3", "cuda13", "580.159.04", 79.18, 700.0, 1980.0, _rates_of_h100())


def made_up_rates(products, memory, pinned, pageable, all_reduce):
    """The rates of a model that no record was shipped of; a product is as fast in any shape."""
    rates = {"memory_bandwidth": memory, "all_reduce": all_reduce, "all_gather": all_reduce}
    for precision, rate in products.items():
        for name in (f"matmul_{precision}", f"matmul_{precision}_best", f"mamf_{precision}"):
            rates[name] = rate
    for direction in LINK:
        rates[f"{direction}_pinned"], rates[f"{direction}_pageable"] = pinned, pageable
    return rates
