"""A soak: a device is measured in laps, and after each lap fixed operations are compared bit by bit."""

from __future__ import annotations

from typing import Any

import torch

from flagbench_cases.contract import MeasureWorkload
from flagbench_cases.rank.lap_health import LapHealth, of_all_ranks
from flagbench_cases.rank.measure_loop import MeasureLoop, MeasurePlan
from flagbench_cases.rank.repeats import Repeater, Times
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.evidence.roofs import COLLECTIVES, MOST_LISTED, amount, compare_results
from flagbench_core.health.judge import ends_soak
from flagbench_core.stats.summary import median


class LapLoop(MeasureLoop):
    """Measures in laps on one rank, in step with the others.

    The first lap is a run without laps: its repeats are the steps of the spool. The others measure again what is one
    operation, and not the fastest of several; of these, each lap keeps a median.
    """

    def __init__(
        self,
        workload: MeasureWorkload,
        plan: MeasurePlan,
        spool: RankSpool,
        repeater: Repeater,
        laps: int,
        first_results: dict[str, str],
        alike: Any,
        health: LapHealth | None = None,
    ) -> None:
        """`first_results`: those of the workload before the laps. `alike`: equal for devices of one model with one
        driver, which compute the same bits. `health`: of the first rank of a node, that of its devices."""
        super().__init__(workload, plan, spool, repeater)
        self.workload = workload
        self.laps = laps
        self.first_results = first_results
        self.last_results = first_results
        """Those after the last lap."""
        self.alike = alike
        self.health = health
        self.lap = 1
        self.repeated = [measurement for measurement in self.measurements if len(measurement.candidates) == 1]
        self._rates: dict[str, float] = {}
        self._collectives: list[str] = []

    def run(self) -> dict[str, Any]:
        """Measure until the last lap, or until a device is faulty. Returns the duration, seconds."""
        self.spool.phase("measure", self.laps, of_steps=False)
        start = now()
        with torch.no_grad():
            while self._measure_lap() and self.lap < self.laps:
                self.lap += 1
        return {"measure": now() - start}

    def _measure_lap(self) -> bool:
        """Measure once, and write the fact `lap`. Returns whether all devices are still sound: they compute the same
        bits, and nothing in their health ends a soak."""
        start = now()
        self._rates, self._collectives = {}, []
        if self.lap == 1:
            self._measure_all(self.measurements)
        else:
            self._measure_all(self.repeated)
        # What cannot be measured is tried first, so that the others have all of the next lap.
        self.repeated.sort(key=lambda measurement: measurement.name in self._rates)
        self.last_results = self.workload.results()
        seconds = now() - start
        reading = None if self.health is None else self.health.read()
        ranks = self.repeater.all_gather((self._rates, self.last_results, self.first_results, self.alike, reading))
        other_bits = self._other_bits(ranks)
        health = of_all_ranks([reading for *_, reading in ranks])
        if self.spool.rank == 0:
            rates = self._rates_of_devices([rates for rates, *_ in ranks])
            self.spool.fact("lap", lap=self.lap, seconds=seconds, rates=rates, other_bits=other_bits, **health)
        self.spool.progress(self.lap, self.laps)
        faults = [finding for finding in health["health"] or () if ends_soak(finding["outcome"])]
        return not other_bits and not faults

    def _other_bits(self, ranks: list[Any]) -> list[dict[str, Any]]:
        """Each fixed operation and rank whose bits are not those of before the laps, or of the devices alike."""
        results_of_ranks = {}
        for rank, (_, last, first, alike, _) in enumerate(ranks):
            results_of_ranks[rank] = {"first": first, "second": last, "alike": alike}
        wrong = []
        for operation in compare_results(results_of_ranks):
            for rank in sorted({*operation["changed"], *operation["apart"]}):
                wrong.append({"name": operation["name"], "rank": rank})
        return wrong

    def _rates_of_devices(self, ranks: list[dict[str, float]]) -> dict[str, list[float]]:
        """The rates of this lap by measurement: those of all ranks; of a collective that of the slowest alone.

        Empty for more ranks than a record lists."""
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
        """Write it once: in the first lap."""
        if self.lap == 1:
            super()._note_absent(name, reason)

    def _show_progress(self, done: int, count: int) -> None:
        """Progress is the laps that are done."""
        self.spool.beat()

    def _write(self, name: str, times: list[Times], operations: int, measured: dict[str, Any], keep: int) -> None:
        """Keep the median rate of what every lap measures, over all repeats; write the last ones of lap 1."""
        if self.lap == 1:
            super()._write(name, times, operations, measured, keep)
        if "tried" in measured:
            return
        seconds = median([repeat.device for repeat in times])
        self._rates[name] = round(operations * amount(measured) / max(seconds, 1e-9))
        if measured["operation"] in COLLECTIVES:
            self._collectives.append(name)
