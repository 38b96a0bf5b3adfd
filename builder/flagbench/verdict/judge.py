"""Fast enough? The verdict on a comparable speed, from its interval, and the numbers behind it."""

from __future__ import annotations

import math

from msgspec import Struct

from flagbench.manifests.model import MetricSpec
from flagbench.records.model import Metric, Record
from flagbench.verdict.interval import Ratio, half_widths, without_interval
from flagbench.verdict.result import Verdict
from flagbench.verdict.stats.between import DEFAULT, LEVEL, MOST_RUNS, RUNS_FOR_STUDENT, Prior, further_runs
from flagbench.verdict.stats.compare import WITHIN, Outcome, compare_sides, further_runs_each

LOW, HIGH = 0.95, 1.10
"""The ratios to the expected value between which it counts as reproduced, both ends included."""

_DECIDED_BY = {
    Outcome.SAME: "all of the interval counts as the same",
    Outcome.FASTER: "the interval lies above 1",
    Outcome.SLOWER: "the interval lies below 1",
    Outcome.INCONCLUSIVE: "the interval contains 1, and ratios that do not count as the same",
}

# A ratio that is 0.95 in decimal may miss it in the last bits of a division; no measurement resolves this.
_ROUNDING = 1e-9


class Terms(Struct, frozen=True):
    """What a verdict is made with."""

    level: float = LEVEL
    """Of the intervals; higher at the looks of a run that repeats until it is decided (`stats.looks`)."""
    within: float = WITHIN
    """Against a baseline: ratios that differ from 1 by no more are the same."""
    priors: dict[str, Prior] = {}
    """The spread between earlier runs, by metric; `DEFAULT` for others."""

    def prior(self, name: str) -> Prior:
        """What is assumed of the spread between runs of a metric."""
        return self.priors.get(name, DEFAULT)


class Sample(Struct, frozen=True):
    """One metric of the runs of one side."""

    records: tuple[Record, ...]
    metrics: tuple[Metric, ...]

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self.metrics)

    @property
    def rates(self) -> list[float]:
        """The value of each run."""
        return [float(metric.value) for metric in self.metrics]

    @property
    def unsettled(self) -> str | None:
        """Why fewer than five runs give no interval, None if they do."""
        places = [] if self.runs >= RUNS_FOR_STUDENT else without_interval(self.metrics)
        if not places:
            return None
        why = self.metrics[places[0]].ci_reason or "its record has none"
        if self.runs == 1:
            return f"one value, no interval: {why}"
        which = self.records[places[0]].record_id
        return (
            f"{len(places)} of {self.runs} runs have no interval ({which}: {why}), and {RUNS_FOR_STUDENT} runs would "
            "give one between them"
        )


def classify(value: Ratio) -> Verdict:
    """The verdict on a ratio to a claim (above 1 is better) from its interval; INCONCLUSIVE without one."""
    if value.ci95 is None:
        return Verdict.INCONCLUSIVE
    low, high = value.ci95
    if low > HIGH + _ROUNDING:
        return Verdict.ABOVE
    if high < LOW - _ROUNDING:
        return Verdict.BELOW
    if low >= LOW - _ROUNDING and high <= HIGH + _ROUNDING:
        return Verdict.REPRODUCED
    return Verdict.INCONCLUSIVE


def against_claim(value: Ratio, sample: Sample, terms: Terms) -> tuple[Verdict, str | None]:
    """The verdict on a ratio to a claim, and why it is inconclusive."""
    verdict = classify(value)
    if verdict is not Verdict.INCONCLUSIVE:
        return verdict, None
    if value.ci95 is None:
        return verdict, sample.unsettled or "a value is not positive, so there is no interval"
    more = further_runs(
        lambda low, high: classify(Ratio(value.value, (value.value * low, value.value * high))) is not verdict,
        sample.rates,
        half_widths(sample.metrics),
        terms.prior(sample.metrics[0].name),
        terms.level,
    )
    return verdict, f"the interval crosses a limit; {_further(more)}"


def against_baseline(
    here: Sample, there: Sample, spec: MetricSpec, terms: Terms
) -> tuple[Ratio | None, Verdict, str]:
    """The ratio to a baseline, the verdict on it, and why it is inconclusive or what it was decided by."""
    mine, others = here.rates, there.rates
    if not all(0 < value < math.inf for value in (*mine, *others)):
        return None, Verdict.INCONCLUSIVE, "no ratio, a value is not positive"
    if spec.better == "lower":
        mine, others = others, mine
    least = math.hypot(*(_least(sample) for sample in (here, there)))
    prior = terms.prior(here.metrics[0].name)
    found = compare_sides(mine, others, least=least, within=terms.within, prior=prior, level=terms.level)
    for side, sample in (("", here), ("the baseline: ", there)):
        if why := sample.unsettled:
            return Ratio(found.ratio), Verdict.INCONCLUSIVE, f"{side}{why}"
    verdict = Verdict[found.outcome.name]
    limits = f"{1 - terms.within:g} to {1 + terms.within:g} counts as the same"
    why = _DECIDED_BY[found.outcome]
    if found.outcome is Outcome.INCONCLUSIVE:
        more = further_runs_each(mine, others, within=terms.within, prior=prior, level=terms.level)
        why = f"{why}; {_further(more, ' on each side')}"
    return Ratio(found.ratio, found.interval, found.method), verdict, f"{limits}; {why}"


def _least(sample: Sample) -> float:
    """The half-width, relative, that the windows of the runs give their mean."""
    widths = [width / metric.value for width, metric in zip(half_widths(sample.metrics), sample.metrics, strict=True)]
    return math.hypot(*widths) / sample.runs


def _further(runs: int | None, where: str = "") -> str:
    if runs is None:
        return f"{MOST_RUNS} runs{where} would probably not decide it"
    return f"about {runs} more run{'s' if runs > 1 else ''}{where} would decide"
