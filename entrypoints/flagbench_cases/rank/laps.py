"""The loop of a soak: the devices are measured again and again, in laps, to find faults that appear under load.

After each lap, the results of fixed operations are compared bit by bit, and the health of the devices is read.
rank/run.py creates the loop if the configuration asks for laps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flagbench_cases.contract import MeasureWorkload
from flagbench_cases.rank.lap_health import LapHealth, LapReading, join_readings
from flagbench_cases.rank.measure_loop import MeasureLoop, MeasurePlan
from flagbench_cases.rank.repeats import MIN_SECONDS, Repeater, Times
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.evidence.roofs import COLLECTIVES, MOST_LISTED, amount, compare_results
from flagbench_core.health.judge import ends_soak
from flagbench_core.stats.summary import median


class RankLap(NamedTuple):
    """The measurements of one rank in a lap, which all ranks exchange."""

    rates: dict[str, float]
    """FLOP/s or B/s by name of the measurement."""
    last_results: dict[str, str]
    """The digests of the results of the fixed operations after this lap, by name of the operation."""
    first_results: dict[str, str]
    """The same before the first lap."""
    device_type: Any
    """A value that is equal for devices that compute the same bits."""
    health: LapReading | None
    """The health of the devices of a node, from its first rank; None from every other rank."""


class LapLoop(MeasureLoop):
    """Measures in laps on one rank, in step with the other ranks.

    The first lap is the same as a run without laps: its repeats are the steps of the spool. Later laps leave out the
    measurements that look for the fastest of several operations. For each other measurement, every lap writes the
    median rate.
    """

    def __init__(
        self,
        workload: MeasureWorkload,
        plan: MeasurePlan,
        spool: RankSpool,
        repeater: Repeater,
        laps: int,
        first_results: dict[str, str],
        device_type: Any,
        health: LapHealth | None = None,
    ) -> None:
        """Prepare the laps.

        Args:
            workload: the measurements and the fixed operations.
            plan: how long to measure in each lap.
            spool: receives repeats and facts.
            repeater: repeats the operations.
            laps: the number of laps.
            first_results: the results of the workload's fixed operations before the laps.
            device_type: a value that is equal for devices of one model with one driver, which compute the same bits.
            health: reads the health of a node's devices; given to the first rank of the node only.
        """
        super().__init__(workload, plan, spool, repeater)
        self.workload = workload
        self.laps = laps
        self.first_results = first_results
        self.last_results = first_results
        """The results of the fixed operations after the last lap."""
        self.device_type = device_type
        self.health = health
        self.lap = 1
        self.repeated = [measurement for measurement in self.measurements if len(measurement.candidates) == 1]
        """The measurements that every lap makes."""
        self._rates: dict[str, float] = {}
        """FLOP/s or B/s in the current lap by name of the measurement."""
        self._collectives: list[str] = []
        """The names of the measurements of the current lap in which all ranks take part together."""

    def run(self) -> dict[str, Any]:
        """Measure until the last lap, or until a device is faulty. Returns the duration as `measure`, seconds."""
        self.spool.phase("measure", self.laps, of_steps=False)
        start = now()
        with torch.no_grad():
            while self._measure_lap() and self.lap < self.laps:
                self.lap += 1
        return {"measure": now() - start}

    def _measure_lap(self) -> bool:
        """Measure one lap, and write the fact `lap`.

        Returns whether all devices are sound: they compute the same bits, and nothing in their health ends a soak.
        """
        start = now()
        self._rates = {}
        self._collectives = []
        if self.lap == 1:
            self._measure_all(self.measurements)
        else:
            self._measure_all(self.repeated)
        # Measurements that cannot be made are tried first, so that the others share the whole next lap.
        self.repeated.sort(key=lambda measurement: measurement.name in self._rates)
        self.last_results = self.workload.results()
        seconds = now() - start
        reading = None
        if self.health is not None:
            reading = self.health.read()
        lap_of_this_rank = RankLap(self._rates, self.last_results, self.first_results, self.device_type, reading)
        ranks: list[RankLap] = self.repeater.all_gather(lap_of_this_rank)
        other_bits = find_other_bits(ranks)
        health = join_readings([rank_lap.health for rank_lap in ranks])
        if self.spool.rank == 0:
            rates = self._rates_of_devices([rank_lap.rates for rank_lap in ranks])
            self.spool.fact("lap", lap=self.lap, seconds=seconds, rates=rates, other_bits=other_bits, **health)
        self.spool.progress(self.lap, self.laps)
        if other_bits:
            return False
        findings = health["health"] or []  # None if no health was read
        return not any(ends_soak(finding["outcome"]) for finding in findings)

    def _rates_of_devices(self, ranks: list[dict[str, float]]) -> dict[str, list[float]]:
        """The rates of this lap by name of the measurement.

        They are a list with the rate of each rank, or for a collective with the rate of the slowest rank alone. Empty
        for more ranks than a record lists.
        """
        if len(ranks) > MOST_LISTED:
            return {}
        rates = {}
        for name in ranks[0]:
            rates_by_rank = [rates_of_rank[name] for rates_of_rank in ranks]
            if name in self._collectives:
                rates_by_rank = [min(rates_by_rank)]
            rates[name] = rates_by_rank
        return rates

    def _note_absent(self, name: str, reason: str) -> None:
        """Write the reason in the first lap only."""
        if self.lap == 1:
            super()._note_absent(name, reason)

    def _show_progress(self, done: int, count: int) -> None:
        """Show that the rank is alive: progress is counted in laps."""
        self.spool.beat()

    def _write(self, name: str, times: list[Times], operations: int, measured: dict[str, Any], keep: int) -> None:
        """Note the median rate of all repeats, if every lap makes this measurement. In lap 1, write the repeats."""
        if self.lap == 1:
            super()._write(name, times, operations, measured, keep)
        if "tried" in measured:  # the fastest of several candidates, which only the first lap looks for
            return
        seconds = median([repeat.device for repeat in times])
        self._rates[name] = round(operations * amount(measured) / max(seconds, MIN_SECONDS))
        if measured["operation"] in COLLECTIVES:
            self._collectives.append(name)


def find_other_bits(ranks: list[RankLap]) -> list[dict[str, Any]]:
    """The fixed operations that gave other bits, each as `name` and `rank`.

    The bits of a rank are compared with those before the laps, and with those of devices that compute the same.
    """
    results_of_ranks = {}
    for rank, rank_lap in enumerate(ranks):
        results_of_ranks[rank] = {
            "first": rank_lap.first_results,
            "second": rank_lap.last_results,
            "alike": rank_lap.device_type,
        }
    wrong = []
    for operation in compare_results(results_of_ranks):
        for rank in sorted({*operation["changed"], *operation["apart"]}):
            wrong.append({"name": operation["name"], "rank": rank})
    return wrong
