"""How often `flagbench fleet` names planted faults and leaves sound nodes alone, by simulation of 64 nodes of eight
devices (`tests/drawn_fleets.py`), and once through records.

    python tests/bench/fleet_simulation.py [--fleets 100] [--no-records]

Each fault is a row with how often it was named at each spread. If a bound is missed, the exit code is 1.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from catalogs import CATALOG
from drawn_fleets import FAULTS, NODES, RECORD_FAULTS, SOUND, drawn_fleet, fleet_record, host_name, seeded
from flagbench.fleet.judge import judge_fleet
from flagbench.fleet.read import read_fleet
from flagbench.fleet.result import Action
from flagbench.records.store import open_store

SPREADS = (0.004, 0.01, 0.02)
"""Standard deviations between devices."""
NOT_SLOW = (
    "memory of one device 30 % slow",
    "link of one device at half",
    "throttles by 20 %, reported",
    "another driver",
    "another image",
    "another image, again",
    "7 of 8 devices",
    "one bit differs",
    "no record",
)
"""Faults that have to be named at any spread."""
LEAST = {
    **{("3 % slow", 0.004): 0.90, ("5 % slow", 0.004): 1.0, ("8 % slow", 0.01): 1.0, ("20 % slow", 0.02): 0.95},
    **{(name, spread): 1.0 for name in NOT_SLOW for spread in SPREADS},
}
"""The share of fleets in which a fault has to be named at a spread."""
MOST_NAMED = 0.01
"""The most sound fleets in which a node is named; none may be drained."""
THROUGH_RECORDS_SPREAD = 0.004


def judged(runs):
    """What to do with each node, by name."""
    fleet = judge_fleet(runs, CATALOG.fleet_limits)
    return {node.host: node.action for node in fleet.nodes}


def is_named(action, fault):
    """Whether a fault led to its action or to a more severe one."""
    return action.severity >= fault.least.severity


def simulate(spread, fleets, skewed):
    """Draw fleets with faults and sound ones; returns the number of missed bounds."""
    named, drained, false = Counter(), Counter(), Counter()
    for number in range(fleets):
        actions = judged(drawn_fleet(seeded("faults", number, spread, skewed), spread, FAULTS, skewed))
        for index, fault in enumerate(FAULTS):
            action = actions[host_name(index)]
            named[fault.name] += is_named(action, fault)
            drained[fault.name] += action is Action.DRAIN
        others = [actions[host_name(index)] for index in range(len(FAULTS), NODES)]
        false["named beside faults"] += any(action is not Action.NOTHING for action in others)
        false["drained beside faults"] += Action.DRAIN in others
        actions = judged(drawn_fleet(seeded("sound", number, spread, skewed), spread, (), skewed))
        false["named"] += any(action is not Action.NOTHING for action in actions.values())
        false["drained"] += Action.DRAIN in actions.values()
    tail = " with a tail of slow ones" if skewed else ""
    print(f"\n{NODES} nodes, devices differ by {spread:.1%}{tail}, {fleets} fleets")
    print("  sound nodes: " + ", ".join(f"{name} in {count}" for name, count in false.items()))
    missed = 0
    for fault in FAULTS:
        least = LEAST.get((fault.name, spread), 0.0) * (not skewed)
        met = named[fault.name] >= least * fleets
        missed += not met
        bound = f"at least {least:.0%}: {'met' if met else 'MISSED'}" if least else ""
        print(f"  {fault.name:32} named {named[fault.name]:4d} drained {drained[fault.name]:4d}  {bound}", flush=True)
    if not skewed and false["drained"] + false["drained beside faults"]:
        print("  a sound node was drained: MISSED")
        missed += 1
    return missed, false["named"]


def through_records():
    """Judge a fleet with each fault once, through records in a store; returns the number of missed faults."""
    faults = [fault for fault in FAULTS if fault.name in RECORD_FAULTS or fault.name in NOT_SLOW]
    expected = [host_name(index) for index in range(NODES)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        store, keys = open_store(folder), {}
        for index, host in enumerate(expected):
            fault = faults[index] if index < len(faults) else SOUND
            if not fault.missing:
                store.put(fleet_record(host, index, THROUGH_RECORDS_SPREAD, fault), stored_keys=keys)
        start = time.process_time()
        runs = read_fleet(store, CATALOG, hosts=expected)
        fleet = judge_fleet(runs, CATALOG.fleet_limits)
        seconds = time.process_time() - start
    nodes = {node.host: node for node in fleet.nodes}
    print(f"\n{NODES} nodes through records, devices differ by {THROUGH_RECORDS_SPREAD:.1%}, {seconds:.1f} s")
    for index, host in enumerate(expected):
        fault = faults[index] if index < len(faults) else SOUND
        met = is_named(nodes[host].action, fault)
        if fault is SOUND:
            met = nodes[host].action is Action.NOTHING
        missed += not met
        if fault is not SOUND or not met:
            print(
                f"  {fault.name:32} {nodes[host].action.value:8} {'met' if met else 'MISSED'}  {nodes[host].reason}"
            )
    return missed


def main():
    """Simulate all; exit 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fleets", type=int, default=100, help="fleets of each kind at each spread")
    parser.add_argument("--no-records", action="store_true", help="leave out the fleet of records")
    options = parser.parse_args()
    missed, named = 0, 0
    for skewed in (False, True):
        for spread in SPREADS:
            of_spread, named_sound = simulate(spread, options.fleets, skewed)
            missed += of_spread
            named += named_sound * (not skewed)
    sound_fleets = options.fleets * len(SPREADS)
    print(f"\nsound fleets with a node named: {named} of {sound_fleets}, at most {MOST_NAMED * sound_fleets:.0f}")
    missed += named > MOST_NAMED * sound_fleets
    if not options.no_records:
        missed += through_records()
    print(f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
