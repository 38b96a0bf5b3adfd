"""How often `flagbench accept` is right about sound and about faulty accelerators, by simulation: machines are drawn
(`tests/drawn_machines.py`), and flagbench checks their records and concludes.

    python tests/bench/accept_simulation.py [--sound 200] [--faults 40] [--only WORDS]

Each scenario is a row: how its draws ended, and its limit. If one misses its limit, the exit code is 1.
"""

import argparse
import os
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from drawn_machines import (
    COLLECTIVES,
    H100,
    LINK,
    MEMORY,
    NO_FAULT,
    PRODUCTS,
    Fault,
    History,
    Machines,
    Model,
    conclusion,
    made_up_rates,
)
from flagbench.accept.check import Outcome

SEED = 20260101

DRIVER = "580.159.04"
SLICE = {name: 3 / 7 * rate for name, rate in H100.rates.items()}
MIG = Model("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "cuda13", DRIVER, 39.5, 700.0, 1980.0, SLICE)
# The published rows of A100 and A800 in manifests/claims/roofs.yaml, of the all-reduce half its bus bandwidth counted
# twice; pinned memory is an assumption. fp32 is 3 % below its row, so that no drawn device is above its peak.
A100_PRODUCTS = {"fp64": 17.8e12, "fp32": 18.5e12, "tf32": 123.7e12, "fp16": 251.5e12, "bf16": 259.2e12}
A100_RATES = made_up_rates(A100_PRODUCTS, 1328e9, 24e9, 7.2e9, 133.7e9)
A100 = Model("NVIDIA A100-SXM4-40GB", "a100-cuda11.8", DRIVER, 39.4, 400.0, 1410.0, A100_RATES)
# An assumption: without TunableOp, with which MAMF's row was made, bf16 reaches 0.70 of it.
UNTUNED = made_up_rates({"fp32": 90e12, "fp16": 468e12, "bf16": 468e12}, 4.0e12, 54e9, 9e9, 170e9)
MI300X = Model("AMD Instinct MI300X", "rocm", "6.10.5", 191.7, 750.0, 2100.0, UNTUNED, "amd")
# Products at half of the peaks of manifests/devices/rtx-4090.yaml.
HALF = made_up_rates({"fp32": 41.3e12, "fp16": 82.6e12, "bf16": 82.6e12, "fp8": 165.1e12}, 920e9, 26e9, 9e9, 10e9)
RTX_4090 = Model("NVIDIA GeForce RTX 4090", "cuda13", DRIVER, 23.6, 450.0, 2520.0, HALF)

ONE, EIGHT = Machines(H100), Machines(H100, 8)
FIRST_RUN, NIGHTS = History(), History(5)
SLOW_READS = Fault(48.5 / 55.0, ("h2d",))
"""Of pinned memory, in GB/s: a sound H100 reached both, four minutes apart."""
POWER_CAP = Fault(
    0.75,
    PRODUCTS,
    look={"capped": ["GPU-0 is limited to 400 W of 700"]},
    telemetry={"power_limit_w": 400.0, "power_max_w": 401.0, "throttle_seconds": {"sw_power_cap": 40.0}},
)
HEAT = Fault(telemetry={"throttle_seconds": {"hw_thermal_slowdown": 8.0}})
FOREIGN = Fault(
    0.7,
    look={"foreign": ["python (pid 4711)"]},
    telemetry={"foreign_processes": 1, "mem_used_before_bytes": 20 * 2**30},
)


@dataclass(frozen=True)
class Scenario:
    """Machines that are drawn, what is wrong with them, and what an acceptance should say."""

    name: str
    machines: Machines
    fault: Fault = NO_FAULT
    history: History = FIRST_RUN
    wanted: str | None = None
    """What to do, in `least` of the draws. A `drain` also names the device, by rank and UUID."""
    least: float = 0.95
    never: str | None = None
    """What it must not say, but in `most` of the draws."""
    most: float = 0.0

    @property
    def sound(self):
        """Whether nothing is wrong with the machine: then there are more draws."""
        return self.wanted == "use" or self.fault is NO_FAULT


def sound(name, machines, fault=NO_FAULT, history=FIRST_RUN, least=0.95, most=0.0):
    """A sound machine, which is never drained."""
    return Scenario(name, machines, fault, history, "use", least, "drain", most)


def faulty(name, machines, fault, history=FIRST_RUN):
    """A machine with a fault, which is never used."""
    return Scenario(name, machines, fault, history, never="use")


def drained(name, machines, fault, history=FIRST_RUN):
    """A machine with a device that is clearly slow."""
    return Scenario(name, machines, fault, history, "drain", 0.95, "use")


def kept(name, machines, fault=NO_FAULT, history=FIRST_RUN):
    """A machine that is limited or disturbed, which is no evidence against it."""
    return Scenario(name, machines, fault, history, never="drain")


SCENARIOS = (
    sound("H100 sound", ONE),
    sound("H100 sound, after five nights", ONE, history=NIGHTS),
    sound("H100 sound, reads 55.0, then 48.5 GB/s", ONE, SLOW_READS, History(1, 4)),
    sound("H100 sound, reads 55.0 five nights, then 48.5", ONE, SLOW_READS, NIGHTS),
    sound("A100 sound", Machines(A100)),
    sound("8 A100 sound, chips 1 %", Machines(A100, 8)),
    sound("8 H100 sound, chips 1 %", EIGHT),
    sound("8 H100 sound, chips 2 %", Machines(H100, 8, 0.02), least=0.85),
    Scenario("8 H100 sound, chips 3 %", Machines(H100, 8, 0.03), never="drain", most=0.005),
    faulty("H100 products 12 % slow", ONE, Fault(0.88, PRODUCTS)),
    faulty("H100 memory 12 % slow", ONE, Fault(0.88, MEMORY)),
    drained("H100 memory 80 % slow", ONE, Fault(0.2, MEMORY, 0)),
    drained("H100 products 16 % slow", ONE, Fault(0.84, PRODUCTS, 0)),
    drained("H100 memory 16 % slow", ONE, Fault(0.84, MEMORY, 0)),
    faulty("H100 products 8 % slower than five nights", ONE, Fault(0.92, PRODUCTS), NIGHTS),
    faulty("H100 memory 8 % slower than five nights", ONE, Fault(0.92, MEMORY), NIGHTS),
    faulty("8 H100 collectives 60 % slow", EIGHT, Fault(0.4, COLLECTIVES)),
    faulty("8 H100 link of one at a tenth", EIGHT, Fault(0.1, LINK, 5)),
    drained("8 H100 memory of one at a tenth", EIGHT, Fault(0.1, MEMORY, 5)),
    drained("8 H100 products of one 20 % slow", EIGHT, Fault(0.8, PRODUCTS, 5)),
    drained("8 H100 memory of one 20 % slow", EIGHT, Fault(0.8, MEMORY, 5)),
    faulty("H100 slowed by heat for 8 s", ONE, HEAT),
    drained("8 H100, Xid 79 of one", EIGHT, Fault(rank=5, xid=79)),
    drained("8 H100, one is lost", EIGHT, Fault(rank=5, health={"unanswered": "GPU is lost"})),
    faulty("8 H100, Xid 74 of one", EIGHT, Fault(rank=5, xid=74)),
    kept("8 H100, contained errors of one", EIGHT, Fault(rank=5, health={"ecc_uncorrected": 1}, xid=94)),
    kept("H100 at a power limit of 400 W", ONE, POWER_CAP),
    kept("H100 beside another process, 30 % slow", ONE, FOREIGN),
    kept("H100, a slice by MIG", Machines(MIG), Fault(look={"partitions": ["MIG-0 is a part of a device"]})),
    kept("H100, nvidia-smi too slow to say its state", ONE, Fault(look={"drivers": []})),
    kept("MI300X untuned", Machines(MI300X)),
    faulty("RTX 4090 at half its peak", Machines(RTX_4090), NO_FAULT),
    faulty("RTX 4090 at half its peak, again", Machines(RTX_4090), NO_FAULT, History(1)),
)


@dataclass
class Row:
    """How the draws of a scenario ended."""

    scenario: Scenario
    draws: int
    outcomes: Counter
    actions: Counter
    checks: Counter
    """Those that did not pass, by name."""
    right: int = 0
    """Draws that ended as is wanted, with the device named."""

    @property
    def met(self):
        """Whether the row keeps its limits."""
        scenario = self.scenario
        enough = scenario.wanted is None or self.right >= scenario.least * self.draws
        return enough and self.actions[scenario.never] <= scenario.most * self.draws

    @property
    def limit(self):
        """`use in 95 %, never drain`."""
        words = []
        if self.scenario.wanted is not None:
            words.append(f"{self.scenario.wanted} in {self.scenario.least:.0%}")
        if self.scenario.never is not None:
            most = f", but {self.scenario.most:.1%}" if self.scenario.most else ""
            words.append(f"never {self.scenario.never}{most}")
        return ", ".join(words)

    def line(self):
        """The row of the table."""
        counts = " ".join(f"{self.outcomes[outcome.value]:4d}" for outcome in OUTCOMES)
        actions = ", ".join(f"{action} {count}" for action, count in self.actions.most_common())
        checks = ", ".join(f"{name} {count}" for name, count in self.checks.most_common(3))
        state = "met" if self.met else "MISSED"
        start = f"{self.scenario.name:45} {self.draws:5d} {counts} {state:6}"
        return f"{start} {self.limit}; {actions}; by {checks or 'none'}"


OUTCOMES = (Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL)
HEADER = f"{'scenario':45} draws PASS INCO FAIL"


def simulate(scenario, draws):
    """The row of a scenario. Exits where a drawn record contradicts itself."""
    row = Row(scenario, draws, Counter(), Counter(), Counter())
    named = () if scenario.fault.rank is None else (scenario.fault.rank,)
    for number in range(draws):
        rng = np.random.default_rng([SEED, number, *scenario.name.encode()])
        concluded, checks, _ = conclusion(scenario.machines, scenario.fault, scenario.history, rng)
        for check in checks:
            if check.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE):
                row.checks[check.name] += 1
            if check.name == "ran" and check.outcome is not Outcome.PASS:
                sys.exit(f"a drawn record of {scenario.name} is not valid: {check.reason}")
        action = concluded.action
        row.outcomes[concluded.outcome.value] += 1
        row.actions[action.do] += 1
        uuids = tuple(f"GPU-{rank}" for rank in named)
        if action.do == scenario.wanted and (action.ranks, action.devices) == (named, uuids):
            row.right += 1
    return row


def main():
    """Simulate all; exit 1 if a row misses its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sound", type=int, default=200, help="draws of a scenario of sound machines")
    parser.add_argument("--faults", type=int, default=40, help="draws of every other scenario")
    parser.add_argument("--only", default="", help="scenarios whose names have these words")
    options = parser.parse_args()
    print(HEADER)
    missed = 0
    for scenario in SCENARIOS:
        if options.only in scenario.name:
            row = simulate(scenario, options.sound if scenario.sound else options.faults)
            missed += not row.met
            print(row.line(), flush=True)
    print(f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
