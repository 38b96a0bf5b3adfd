"""Fleets that are drawn: nodes of eight devices that differ, some with a planted fault, as runs or as records.

A drawn run has seven numbers, each that of the slowest of eight devices. Devices differ within a node as much as
between nodes. `records` has the same faults in records of `drawn_machines`.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from drawn_machines import A_NIGHT, COLLECTIVES, H100, LINK, MEMORY, NO_FAULT, PRODUCTS, Fault, Machines, roofs_record
from flagbench.fleet.judge import FleetRuns
from flagbench.fleet.node_run import NodeRun, NodeValue
from flagbench.fleet.own_checks import OwnChecks
from flagbench.fleet.result import Action, Finding, Source

NODES, DEVICES = 64, 8
NUMBERS = {
    "matmul_bf16": "product",
    "matmul_fp8_best": "product",
    "tokens_per_second_per_device": "case",
    "memory_bandwidth": "memory",
    "h2d_pinned": "host-link",
    "d2h_pinned": "host-link",
    "all_reduce": "collective",
}
LATE = ("matmul_fp8_best", "tokens_per_second_per_device")
"""Those that are measured after a minute of load."""
OF_NODE = ("tokens_per_second_per_device", "all_reduce")
"""Those that are of the whole node, and not of its slowest device."""
SPREADS = {"memory": 0.001, "host-link": 0.04, "collective": 0.005}
"""Standard deviation between devices, or of links between runs; that of products and of the case is a parameter."""
SESSION_NOISE, RUN_NOISE = 0.003, 0.0025
"""Standard deviations between the sessions of a node, and of each number in it: assumptions, as seen on one H100."""
IN_COMMON = (0.8, 0.6)
"""How much of a device's speed is the same in all its products, and how much is of one: squares add up to 1."""
DRIVER, OTHER_DRIVER = "580.159.04", "570.86.15"
IMAGE, OTHER_IMAGE = "sha256:" + 64 * "a", "sha256:" + 64 * "b"
THIS_WEEK, LAST_WEEK = "2026-11-27T00:00:00Z", "2026-11-20T00:00:00Z"


@dataclass(frozen=True)
class NodeFault:
    """What is wrong with a node."""

    name: str
    least: Action
    """What the fleet has to say at least; `look` is also met by `drain`."""
    share: float = 1.0
    """Of its speed, in the numbers below."""
    numbers: tuple[str, ...] = ()
    rank: int | None = None
    """The only device that is slow; None for all."""
    since_last_run: bool = False
    """Whether it was sound last week."""
    properties: Mapping[str, str] = field(default_factory=dict)
    disturbance: str = ""
    wrong_bit: bool = False
    missing: bool = False


SPEEDS = ("matmul_bf16", "matmul_fp8_best", "tokens_per_second_per_device")
FAULTS = (
    NodeFault("3 % slow", Action.LOOK, 0.97, SPEEDS),
    NodeFault("5 % slow", Action.LOOK, 0.95, SPEEDS),
    NodeFault("8 % slow", Action.LOOK, 0.92, SPEEDS),
    NodeFault("12 % slow", Action.LOOK, 0.88, SPEEDS),
    NodeFault("20 % slow", Action.DRAIN, 0.80, SPEEDS),
    NodeFault("one device 5 % slow", Action.LOOK, 0.95, SPEEDS, rank=5),
    NodeFault("4 % slower than its last run", Action.LOOK, 0.96, SPEEDS, since_last_run=True),
    NodeFault("memory of one device 30 % slow", Action.DRAIN, 0.7, ("memory_bandwidth",), rank=5),
    NodeFault("link of one device at half", Action.DRAIN, 0.5, ("h2d_pinned", "d2h_pinned"), rank=5),
    NodeFault("all-reduce 15 % slow", Action.LOOK, 0.85, ("all_reduce",)),
    NodeFault("throttles by 15 %, not reported", Action.LOOK, 0.85, LATE),
    NodeFault("throttles by 20 %, reported", Action.LOOK, 0.80, SPEEDS, disturbance="throttled"),
    NodeFault("another driver", Action.LOOK, properties={"driver": OTHER_DRIVER}),
    NodeFault("another image", Action.LOOK, 0.985, SPEEDS, properties={"image": OTHER_IMAGE}),
    NodeFault("another image, again", Action.LOOK, 0.985, SPEEDS, properties={"image": OTHER_IMAGE}),
    NodeFault("7 of 8 devices", Action.DRAIN, properties={"devices": "7"}),
    NodeFault("one bit differs", Action.DRAIN, wrong_bit=True),
    NodeFault("no record", Action.MISSING, missing=True),
)
SOUND = NodeFault("sound", Action.NOTHING)


def host_name(index):
    """The name of a node."""
    return f"gpu-{index + 1:03d}"


def drawn_fleet(rng, spread, faults=(), skewed=False, nodes=NODES):
    """Draw the runs of this week and of last week, on nodes of which the first ones have the faults.

    Args:
        rng: a random.Random.
        spread: the standard deviation of the speed of devices in products and in the case.
        skewed: whether devices have a tail of slow ones, instead of a normal distribution.
    """
    runs, earlier, own_checks = [], [], {}
    for index in range(nodes):
        host, fault = host_name(index), SOUND
        if index < len(faults):
            fault = faults[index]
        if fault.missing:
            continue
        chips = _chips(rng, spread, skewed)
        before = SOUND if fault.since_last_run else fault
        earlier.append(_run(rng, host, chips, before, LAST_WEEK))
        runs.append(_run(rng, host, chips, fault, THIS_WEEK))
        findings = []
        if fault.wrong_bit:
            findings.append(Finding(host, Action.DRAIN, Source.OWN_CHECKS, "same bits: matmul_bf16 on rank 3"))
        if fault.disturbance:
            findings.append(Finding(host, Action.LOOK, Source.OWN_CHECKS, fault.disturbance))
        own_checks[host] = OwnChecks(tuple(findings), disturbance=fault.disturbance)
    expected = [host_name(index) for index in range(nodes)]
    return FleetRuns(runs, earlier, own_checks, expected)


def _chips(rng, spread, skewed):
    """The speed of each device of a node, by number."""
    chips = []
    for _ in range(DEVICES):
        shared = _deviation(rng, skewed)
        speeds = {}
        for name, kind in NUMBERS.items():
            if kind in SPREADS:
                speeds[name] = 1 + SPREADS[kind] * rng.gauss(0, 1) * (kind == "memory")
            else:
                own = _deviation(rng, skewed)
                speeds[name] = 1 + spread * (IN_COMMON[0] * shared + IN_COMMON[1] * own)
        chips.append(speeds)
    return chips


def _deviation(rng, skewed):
    """A deviation with mean 0 and standard deviation 1."""
    if skewed:
        return (4 - rng.gammavariate(4, 1)) / 2
    return rng.gauss(0, 1)


def _run(rng, host, chips, fault, created_at):
    """A run of a node: each number is that of the slowest device."""
    session, values = SESSION_NOISE * rng.gauss(0, 1), {}
    for name, kind in NUMBERS.items():
        speeds = []
        for rank, chip in enumerate(chips):
            slow = name in fault.numbers and fault.rank in (None, rank)
            speeds.append(chip[name] * (fault.share if slow else 1.0))
        noise = RUN_NOISE * rng.gauss(0, 1)
        if kind in ("product", "case"):
            noise += session
        if kind in ("host-link", "collective"):
            noise += SPREADS[kind] * rng.gauss(0, 1)
        slowest = min(range(DEVICES), key=speeds.__getitem__)
        rank = None if name in OF_NODE else slowest
        values[name] = NodeValue(kind, speeds[slowest] * (1 + noise), rank)
    properties = {"devices": str(DEVICES), "driver": DRIVER, "image": IMAGE, "torch": "2.11.0", **fault.properties}
    configuration = f"of {properties['devices']} devices"
    return NodeRun(host, created_at, "lora:cuda13", H100.name, configuration, True, values, properties, host)


RECORD_FAULTS = {
    "3 % slow": Fault(0.97, PRODUCTS),
    "5 % slow": Fault(0.95, PRODUCTS),
    "8 % slow": Fault(0.92, PRODUCTS),
    "12 % slow": Fault(0.88, PRODUCTS),
    "20 % slow": Fault(0.80, PRODUCTS),
    "memory of one device 30 % slow": Fault(0.7, MEMORY, 5),
    "link of one device at half": Fault(0.5, LINK, 5),
    "all-reduce 15 % slow": Fault(0.85, COLLECTIVES),
    "throttles by 20 %, reported": Fault(
        0.80, PRODUCTS, telemetry={"throttle_seconds": {"hw_thermal_slowdown": 20.0}}
    ),
    "another image": Fault(0.985, PRODUCTS),
    "another image, again": Fault(0.985, PRODUCTS),
}
"""The faults that slow a device, in a record."""


def fleet_record(host, index, spread, fault=SOUND, gpus=DEVICES, day=0):
    """The content of a record of `roofs` on one node. `index` draws its devices, and with the day the noise."""
    if "devices" in fault.properties:
        gpus -= 1
    chips = 1 + spread * np.random.default_rng(index).standard_normal(gpus)
    rng = np.random.default_rng([index, day])
    raw = roofs_record(
        Machines(H100, gpus), chips, RECORD_FAULTS.get(fault.name, NO_FAULT), rng, day * A_NIGHT + index
    )
    raw["system"].update(host=host, image={"id": fault.properties.get("image", IMAGE)})
    raw["record_id"] = f"{raw['record_id'][:-8]}{1000 * day + index:08x}"
    for rank, device in zip(raw["ranks"], raw["system"]["devices"]):
        rank.update(host=host, uuid=f"{device['uuid']}-{host}")
        device["uuid"] = rank["uuid"]
    if "driver" in fault.properties:
        raw["system"]["driver"] = raw["conditions"]["driver"] = OTHER_DRIVER
    if fault.wrong_bit:
        raw["results"][0]["changed"] = [gpus - 1]
    return json.dumps(raw).encode()


def seeded(*seed):
    """A generator of random numbers for a seed of several parts."""
    return random.Random(" ".join(map(str, seed)))
