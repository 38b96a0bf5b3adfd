"""How often verdicts are wrong, by simulation: steps and runs are drawn, and flagbench judges them.

The generator is numpy's and shares nothing with the code under test. Every criterion is a line with its measured
number and its limit; exit 1 if one misses. `--quick` draws a thirtieth and allows for three standard errors of that.
`--markdown` prints the table of docs/statistics.md.
"""

import argparse
import math
import sys
from collections import Counter

import numpy as np

from flagbench.records.model import Metric
from flagbench.verdict import Verdict
from flagbench.verdict.claim_limits import classify
from flagbench.verdict.interval import Estimate, compute_ratio, estimate
from flagbench.verdict.stats.between import DEFAULT, LEVEL, history_prior
from flagbench.verdict.stats.faster_or_slower import SessionRuns, classify_sides, compare_sides
from flagbench.verdict.stats.looks import look_levels
from flagbench_core.stats.within import within_run

SEED = 20260101
WINDOWS, RUNS = 1500, 10_000
"""Windows per process and length, and sides of runs per line; the standard error of 2.5 % of RUNS is 0.16 %."""
SPREADS = (0.0025, 0.005, 0.01, 0.02)
LOOKS = {"looks at 1 to 5 runs": (1, 2, 3, 4, 5), "looks at 1, 2, 3, 5 and 8 runs": (1, 2, 3, 5, 8)}
SAMPLES = 256
WITHIN_SESSION = 0.0025
DECIDED = set(Verdict) - {Verdict.INCONCLUSIVE}
CV = 0.02
"""Of step times, where a process does not say otherwise."""


def correlated(phi):
    """AR(1) steps: normal, with the autocorrelation phi**lag."""

    def draw(rng, n):
        steps = np.empty(n)
        value = rng.standard_normal()
        for k, shock in enumerate(rng.standard_normal(n) * math.sqrt(1 - phi * phi)):
            value = phi * value + shock
            steps[k] = value
        return 1 + CV * steps, 1.0

    return draw


def spikes(rng, n):
    """Every hundredth step takes five times as long, from a random one on."""
    times = 1 + CV * rng.standard_normal(n)
    times[rng.integers(100) :: 100] *= 5
    return times, 1.04


def clocks(dwell, noise):
    """Two clocks 8 % apart, each kept for a random number of steps, exponential with the mean `dwell`."""

    def draw(rng, n):
        changes = np.cumsum(rng.exponential(dwell, 20 + 4 * n // dwell))
        state = (np.searchsorted(changes, np.arange(n)) + rng.integers(2)) % 2
        return 1 + 0.08 * state + noise * rng.standard_normal(n), 1.04

    return draw


def heating(change, steps):
    """Steps get slower until they settle, with that time constant: the settled speed counts."""

    def draw(rng, n):
        return 1 + change * (1 - np.exp(-np.arange(n) / steps)) + CV * rng.standard_normal(n), 1 + change

    return draw


def wander(steps):
    """The speed of steps moves by 2 %, correlated over that many steps, beside the usual noise."""
    slow = correlated(math.exp(-1 / steps))

    def draw(rng, n):
        times, truth = slow(rng, n)
        return times + CV * rng.standard_normal(n), truth

    return draw


def warming(slower, steps):
    """The first steps are slower, less and less."""

    def draw(rng, n):
        return 1 + slower * np.exp(-np.arange(n) / steps) + 0.01 * rng.standard_normal(n), 1.0

    return draw


PROCESSES = {
    "iid": lambda rng, n: (1 + CV * rng.standard_normal(n), 1.0),
    "AR(1) 0.3": correlated(0.3),
    "AR(1) 0.5": correlated(0.5),
    "AR(1) 0.6": correlated(0.6),
    "AR(1) 0.8": correlated(0.8),
    "heavy tails, t(3)": lambda rng, n: (1 + CV * rng.standard_t(3, n), 1.0),
    "heavy tails, lognormal 0.5": lambda rng, n: (rng.lognormal(-0.125, 0.5, n), 1.0),
    "heavy tails, Pareto 2.5": lambda rng, n: (0.6 * (1 + rng.pareto(2.5, n)), 1.0),
    "a spike every 100 steps": spikes,
    "two clocks, dwell 20": clocks(20, 0.005),
    "two clocks, dwell 20, noise": clocks(20, 0.02),
    "warming 30 %, 10 steps": warming(0.3, 10),
    "warming 5 %, 40 steps": warming(0.05, 40),
}
SLOW = {
    "two clocks, dwell 100": clocks(100, 0.005),
    "two clocks, dwell 100, noise": clocks(100, 0.02),
    "warming 1 %, 300 steps": heating(0.01, 300),
    "warming 1 %, 1000 steps": heating(0.01, 1000),
    "warming 3 %, 300 steps": heating(0.03, 300),
    "warming 3 %, 1000 steps": heating(0.03, 1000),
    "wander, 100 steps": wander(100),
    "wander, 500 steps": wander(500),
}
"""What changes more slowly than a window: no interval within one covers it, and that of a verdict has to."""
FEW_REFUSALS = ("iid", "AR(1) 0.3", "AR(1) 0.5", "AR(1) 0.6")


class Report:
    """Prints each criterion, or a table of the worst of each kind, and knows how many have missed."""

    def __init__(self, quick=False, markdown=False):
        self.quick, self.markdown, self.failed = quick, markdown, 0
        self.worst = {}

    def line(self, what, where, value, limit, draws, least=False, note=""):
        """A share, its limit, and of how many draws it is; `least` where the limit is a lower one."""
        error = 3 * math.sqrt(limit * (1 - limit) / max(draws, 1)) if self.quick else 0.0
        missed = value < limit - error if least else value > limit + error
        self.failed += missed
        sign = "at least" if least else "at most"
        before = self.worst.get(what, (value,))[0]
        if value == before or (value < before) == least:
            self.worst[what] = (value, where, f"{sign} {limit:g}")
        if not self.markdown:
            end = " MISSED" if missed else ""
            print(f"verdicts: {what}, {where}: {value:.4f}{note} ({sign} {limit:g}){end}", flush=True)

    def table(self):
        """The worst of each kind of line, in Markdown."""
        rows = "".join(
            f"| {what} | {value:.3f} | {where} | {limit} |\n" for what, (value, where, limit) in self.worst.items()
        )
        return f"| simulated | worst | at | limit |\n|---|---|---|---|\n{rows}"


def within_runs(report, rng, windows):
    """The interval within a run, or of a verdict on what is slow: covers the true rate, or the window is refused."""
    for name, draw in {**PROCESSES, **SLOW}.items():
        for n in (200, 1000) if name in SLOW else (50, 200, 1000):
            accepted = covered = inside = 0
            total = windows if n > 50 else windows // 10
            for _ in range(total):
                times, truth = draw(rng, n)
                run = window(np.maximum(times, 1e-3))
                if run.ci95 is not None:
                    low, high = estimate([run]).ci95 if name in SLOW else run.ci95
                    accepted += 1
                    covered += low <= SAMPLES / truth <= high
                    inside += run.ci95[0] <= SAMPLES / truth <= run.ci95[1]
            refused = 1 - accepted / total
            # Of the few windows that the gate overlooks, those it should have refused are many.
            share = covered / accepted if accepted > 0.05 * total else 1 - (accepted - covered) / total
            note, what, least = f", refused {refused:.1%}", f"coverage, {name}", 0.90
            if name in SLOW:
                what, least = f"coverage of a verdict on one run, {name}", 0.95
                note += f", within the window {inside / max(accepted, 1):.2f}"
            report.line(what, f"{n} steps", share, least, max(accepted, total // 20), True, note)
            if name in FEW_REFUSALS and n >= 200:
                report.line("windows refused", f"{name}, {n} steps", refused, 0.05, total)


def window(times):
    """A run of these step times."""
    found = within_run([SAMPLES] * len(times), times.tolist())
    why = None if found.refusal is None else str(found.refusal)
    return Metric(
        "p_core", SAMPLES * len(times) / float(times.sum()), "samples/s", "job", ci95=found.interval, ci_reason=why
    )


def verdict(rates, level=LEVEL, prior=DEFAULT):
    """The verdict of `flagbench verify` on runs of one session, of these rates, against a claim of 1."""
    return on(
        [Metric("p_core", rate, "samples/s", "job", ci95=(rate * 0.999, rate * 1.001)) for rate in rates],
        level,
        prior,
    )


def on(metrics, level=LEVEL, prior=DEFAULT, claim=1.0):
    """The verdict on runs against a claim."""
    return classify(compute_ratio(estimate(metrics, prior, level), Estimate(claim, 0), "higher"))


def with_looks(rates, looks):
    """The first definite verdict of a run that is repeated until it is decided."""
    for runs, level in look_levels(looks).items():
        found = verdict(rates[:runs], level)
        if found is not Verdict.INCONCLUSIVE:
            break
    return found


def against_claims(report, rng, draws):
    """Verdicts on one to five runs, with and without looks, at a true ratio that is below and at one that is not."""
    wrong = {Verdict.REPRODUCED, Verdict.ABOVE}

    def share(true, spread, runs, judge, of):
        sides = true * np.exp(spread * rng.standard_normal((draws, runs)))
        return sum(judge(side) in of for side in sides.tolist()) / draws

    for spread in SPREADS:
        for runs in (1, 2, 3, 4, 5):
            found = share(0.945, spread, runs, verdict, wrong)
            report.line(f"wrong verdicts at 0.945, {_runs(runs)}", f"spread {spread:.2%}", found, 0.025, draws)
        for name, looks in LOOKS.items():
            found = share(0.945, spread, looks[-1], lambda side, looks=looks: with_looks(side, looks), wrong)
            report.line(f"wrong verdicts at 0.945, {name}", f"spread {spread:.2%}", found, 0.025, draws)
        for earlier in (5, 20):
            found = share(0.945, spread, 1 + earlier, _with_history, wrong)
            what = f"wrong verdicts at 0.945, 1 run, {earlier} earlier ones in the store"
            report.line(what, f"spread {spread:.2%}", found, 0.025, draws)
    for runs in (1, 2, 3, 4, 5):
        found = share(1.0, 0.005, runs, verdict, DECIDED)
        report.line(f"decided at 1.00, {_runs(runs)}", "spread 0.50%", found, 0.90, draws, True)
        found = sum(_of_windows(rng, runs) in DECIDED for _ in range(draws // 10)) / (draws // 10)
        least = 0.88 if runs == 1 else 0.97
        report.line(f"decided at 1.00, {_runs(runs)} of 200 steps", "spread 0.50%", found, least, draws // 10, True)
    for name, looks in LOOKS.items():
        found = share(1.0, 0.005, looks[-1], lambda side, looks=looks: with_looks(side, looks), DECIDED)
        report.line(f"decided at 1.00, {name}", "spread 0.50%", found, 0.90, draws, True)


def _with_history(rates):
    return verdict(rates[:1], prior=history_prior([rates[1:]]))


def _of_windows(rng, runs):
    """The verdict on runs whose steps are drawn, and of which some windows are refused."""
    spread = np.exp(0.005 * rng.standard_normal(runs))
    return on([window((1 + CV * rng.standard_normal(200)) * factor) for factor in spread], claim=SAMPLES)


def of_sessions(report, rng, draws):
    """Verdicts on runs of one session that differ by 0.25 %, where sessions differ by more."""

    def sessions(true, between, count, runs):
        means = between * rng.standard_normal((draws, count, 1))
        return true * np.exp(means + WITHIN_SESSION * rng.standard_normal((draws, count, runs)))

    def share(judged, of):
        return sum(each in of for each in judged) / draws

    wrong = {Verdict.REPRODUCED, Verdict.ABOVE}
    for between, limit in ((0.01, 0.025), (0.02, 0.12)):
        where = f"{between:.0%} between sessions"
        for runs in (1, 2, 3, 4, 5, 20):
            found = share(map(verdict, sessions(0.945, between, 1, runs)[:, 0].tolist()), wrong)
            report.line(f"wrong verdicts at 0.945, one session of {_runs(runs)}", where, found, limit, draws)
        for name, looks in LOOKS.items():
            judged = (with_looks(side, looks) for side in sessions(0.945, between, 1, looks[-1])[:, 0].tolist())
            report.line(f"wrong verdicts at 0.945, one session, {name}", where, share(judged, wrong), limit, draws)
        earlier = sessions(0.945, between, 2, 20).tolist()
        judged = (verdict(now[:1], prior=history_prior([before])) for now, before in earlier)
        what = "wrong verdicts at 0.945, 1 run, a session of 20 in the store"
        report.line(what, where, share(judged, wrong), limit, draws)
        for count, runs in ((5, 1), (5, 5), (10, 5)):
            found = sessions(0.945, between, 1 + count, runs).tolist()
            judged = (verdict(now, prior=history_prior(before, before)) for now, *before in found)
            what = f"wrong verdicts at 0.945, {_runs(runs)}, {count} sessions in the store"
            report.line(what, where, share(judged, wrong), 0.025, draws)
    for runs in (4, 5, 20):
        found = share(map(verdict, sessions(0.98, 0.01, 1, runs)[:, 0].tolist()), DECIDED)
        what = f"decided at 0.98, one session of {_runs(runs)}"
        report.line(what, "1% between sessions", found, 0.80, draws, True)


def against_baselines(report, rng, draws):
    """Runs against runs: false alarms between identical machines, and the power to find 2 % and 5 %."""

    def outcomes(factor, spread, here, there):
        found = Counter()
        for _ in range(draws):
            a, b = (np.exp(spread * rng.standard_normal(count)) for count in (here, there))
            compared = compare_sides([SessionRuns((factor * a).tolist(), b.tolist())])
            found[classify_sides(compared.interval).value] += 1
        return {name: count / draws for name, count in found.items()}

    for here, there in ((1, 1), (5, 1), (1, 5), (5, 5), (2, 2), (3, 3), (5, 2)):
        for spread in SPREADS:
            found = outcomes(1.0, spread, here, there)
            alarms = found.get("FASTER", 0) + found.get("SLOWER", 0)
            report.line(f"false alarms, {here} v {there}", f"spread {spread:.2%}", alarms, 0.05, draws)

    def alarms(runs, between, sessions=0, earlier=0):
        """The share of FASTER and SLOWER of runs of two sessions, with so many earlier sessions and runs of each."""
        found = 0
        for _ in range(draws):
            means = between * rng.standard_normal((2 + sessions, 1))
            here, there = np.exp(means[:2] + WITHIN_SESSION * rng.standard_normal((2, runs))).tolist()
            store = np.exp(means[2:] + WITHIN_SESSION * rng.standard_normal((sessions, earlier))).tolist()
            sides = [SessionRuns(here, ()), SessionRuns((), there)]
            compared = compare_sides(sides, prior=history_prior(store, store))
            found += classify_sides(compared.interval).value in ("FASTER", "SLOWER")
        return found / draws

    what = "false alarms, 1 v 1 of two sessions, a session of 20 in the store"
    report.line(what, "1% between sessions", alarms(1, 0.01, 1, 20), 0.05, draws)
    for runs in (2, 3, 5):
        what = f"false alarms, {runs} v {runs} of two sessions"
        for between, limit in ((0.01, 0.05), (0.02, 0.35)):
            report.line(what, f"{between:.0%} between sessions", alarms(runs, between), limit, draws)
        found = alarms(runs, 0.02, 5, 5)
        report.line(f"{what}, 5 sessions in the store", "2% between sessions", found, 0.05, draws)
    found = outcomes(0.98, 0.005, 5, 5)
    report.line("2 % slower found, 5 v 5", "spread 0.50%", found.get("SLOWER", 0), 0.90, draws, True)
    report.line("2 % slower called the same, 5 v 5", "spread 0.50%", found.get("SAME", 0), 0.05, draws)

    def of_five_sessions(factor, between):
        """The shares of FASTER and of SLOWER of five sessions of three runs on each side."""
        found = Counter()
        for _ in range(draws):
            means = between * rng.standard_normal((2, 5, 1))
            rates = np.exp(means + WITHIN_SESSION * rng.standard_normal((2, 5, 3)))
            here = [SessionRuns(runs, ()) for runs in (factor * rates[0]).tolist()]
            there = [SessionRuns((), runs) for runs in rates[1].tolist()]
            found[classify_sides(compare_sides([*here, *there]).interval).value] += 1
        return found["FASTER"] / draws, found["SLOWER"] / draws

    what = "5 v 5 sessions of 3 runs"
    report.line(f"false alarms, {what}", "2% between sessions", sum(of_five_sessions(1.0, 0.02)), 0.05, draws)
    _, slower = of_five_sessions(0.95, 0.01)
    report.line(f"5 % slower found, {what}", "1% between sessions", slower, 0.95, draws, True)


def _runs(count):
    return "1 run" if count == 1 else f"{count} runs"


def main():
    """Simulate all; exit 1 if a criterion misses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a thirtieth of the draws")
    parser.add_argument("--markdown", action="store_true", help="print a table of the worst of each kind")
    options = parser.parse_args()
    rng, report = np.random.default_rng(SEED), Report(options.quick, options.markdown)
    share = 30 if options.quick else 1
    within_runs(report, rng, WINDOWS // share)
    against_claims(report, rng, RUNS // share)
    of_sessions(report, rng, RUNS // share)
    against_baselines(report, rng, RUNS // share)
    if options.markdown:
        print(report.table(), end="")
    return int(report.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
