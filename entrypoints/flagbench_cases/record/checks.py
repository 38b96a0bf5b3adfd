"""The checks that make a run's numbers meaningful: `quality.checks` of its record."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from flagbench_cases.record import measured
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request
from flagbench_core import checks as core
from flagbench_core.config import schedule
from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.metrics import DEVICE, OWN
from flagbench_core.evidence.section import INFER, MEASURE, TRAIN, WINDOW, Section, Stretch
from flagbench_core.health.judge import ends_soak

CLOCK_DRIFT = 1e-4  # maximum drift of a device's clock relative to the host's


class Subject(NamedTuple):
    """What is checked: the request, what the ranks left, the mean loss of each step, and the record's evidence."""

    request: Request
    evidence: Evidence
    curve: list[float]
    section: Section

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self.request.config or {}

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.request.layout.world

    @property
    def facts(self) -> core.CheckFacts:
        """What decides which checks apply."""
        return core.facts_of(
            self.config,
            replicas=self.request.layout.dp,
            steps=len(self.curve),
            resumed=bool(self.evidence.first("resumed")),
            has_accuracy=any(entry["accuracy"] is not None for entry in self.evaluations),
        )

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Rank 0's evaluations that followed a step."""
        return [e for e in self.evidence.all("evaluation") if e["rank"] == 0 and e["epoch"] >= 0]

    @property
    def sums(self) -> dict[int, float]:
        """The checksum of each rank's parameters."""
        return {fact["rank"]: fact["parameters"] for fact in self.evidence.all("memory")}


# Whether the check passed, a detail for the record, and what it was decided by; None without evidence.
Answer = Optional[Tuple[bool, str, Dict[str, float]]]


class Check(NamedTuple):
    """A check: its name and its function. When it applies is core's."""

    name: str
    make: Callable[[Subject], Answer]
    needs_end: bool = True
    """Whether it requires a finished run."""
    kinds: tuple[str, ...] = (TRAIN, INFER)
    """The kinds of cases that have it."""


def checks(subject: Subject, finished: bool) -> list[dict[str, Any]]:
    """The results of the checks, as {name, ok, detail, values}.

    For a `finished` run, a check listed in the case's manifest also fails if it applies but there is no evidence, or
    if this kind of case has no such check.
    """
    named, known = subject.request.checks, [check for check in CHECKS if subject.request.kind in check.kinds]
    facts = subject.facts
    found: list[dict[str, Any]] = []
    for check in known:
        if not core.applies(check.name, facts) or (check.needs_end and not finished):
            continue
        answer = check.make(subject)
        if answer is None and finished and check.name in named:
            answer = False, "could not be made: there is no evidence", {}
        if answer is not None:
            ok, detail, values = answer
            found.append(
                {"name": check.name, "ok": bool(ok), "detail": detail, **({"values": values} if values else {})}
            )
    for name in named if finished else ():
        if name not in {check.name for check in known}:
            found.append({"name": name, "ok": False, "detail": "listed in the manifest, but there is no such check"})
    return found


def _precision(subject: Subject) -> Answer:
    proofs = subject.evidence.all("precision")
    executed = sorted({proof["executed"] for proof in proofs})
    error = max((proof["relative_error"] for proof in proofs), default=float("nan"))
    asked = subject.config["precision"]
    words = "requested %s; a matrix product ran in %s, relative error %.1e"
    return executed == [asked], words % (asked, "/".join(executed), error), {}


def _loss_finite(subject: Subject) -> Answer:
    """All losses are finite, except in steps skipped by the loss scaler, which the ranks report."""
    skipped = {fact["step"] for fact in subject.evidence.all("skipped")}
    curve = subject.curve
    bad = [step for step, loss in enumerate(curve) if not math.isfinite(loss)]
    ok, values = core.loss_finite(len(bad), sum(1 for step in bad if step in skipped))
    if not curve or not ok:
        first = next((step for step in bad if step not in skipped), 0)
        return False, f"not finite at step {first}" if curve else "no step", values
    exceptions = f" except {len(bad)} skipped by the loss scaler" if bad else ""
    return True, f"all {len(curve)} steps{exceptions}", values


def _parameters_finite(subject: Subject) -> Answer:
    sums = subject.sums
    if len(sums) < subject.world:
        return None
    return all(math.isfinite(s) for s in sums.values()), f"checksums of {len(sums)} ranks", {}


def _ranks_in_step(subject: Subject) -> Answer:
    """The ranks of a data-parallel group have the same parameters."""
    sums = subject.sums
    if len(sums) < subject.world:
        return None
    ok, widest = True, 0.0
    for group in subject.request.layout.groups("dp"):
        mine = [sums[rank] for rank in group]
        # max and min ignore a NaN that is not the first item, so NaN is tested separately.
        spread = max(mine) - min(mine) if all(math.isfinite(s) for s in mine) else float("nan")
        ok = ok and spread <= 1e-6 * max(1.0, abs(mine[0]))
        widest = spread if not spread <= widest else widest
    return ok, f"parameter checksums differ by {widest:.1e}", {}


def _rates_in_order(subject: Subject) -> Answer:
    """Over all steps, and over those that p_core uses."""
    section = subject.section
    stretches = [section.stretch(), section.stretch(TRAIN, WINDOW)]
    if stretches[0].steps == stretches[1].steps:
        stretches.pop()
    return (*in_order(stretches, section.durations.get(TRAIN, [])), {})


def in_order(stretches: Sequence[Stretch], durations: Sequence[int]) -> tuple[bool, str]:
    """Whether device time <= host time <= duration, each the maximum over ranks, within one step; and the times.

    `durations`: each rank's microseconds from start to end of the first stretch; empty if it did not end. Stretches
    without steps are ignored.
    """
    ok, shown = True, []
    for index, stretch in enumerate(stretches):
        if not stretch.steps:
            continue
        times = [stretch.rank_time(parts, stretch.slowest(parts)) / MICRO for parts in (DEVICE, OWN)]
        if durations and index == 0:
            times.append(max(durations) / MICRO)
        allowed = 1 + 1 / stretch.steps + CLOCK_DRIFT
        ok = ok and all(times[i] <= times[i + 1] * allowed for i in range(len(times) - 1))
        words = " <= ".join(f"{seconds:.4f} s" for seconds in times)
        shown.append(f"steps {stretch.first} to {stretch.first + stretch.steps}: {words}")
    return ok, "device <= host <= end to end, each the maximum over ranks: " + "; ".join(shown)


def _passes_in_order(subject: Subject) -> Answer:
    """p_infer_core >= p_infer_whole, for every pass."""
    section = subject.section
    answers = [in_order([section.stretch(name)], seconds) for name, seconds in section.durations.items()]
    return (all(ok for ok, _ in answers), "; ".join(words for _, words in answers), {}) if answers else None


def _steps(subject: Subject) -> Answer:
    """Every rank has all steps of the plan; fewer only if the published target was reached."""
    length, counts = schedule(subject.config), {len(steps) for steps in subject.evidence.steps.values()}
    planned, whole = subject.evidence.first("plan").get("steps"), length["window_steps"] is None
    if not whole:
        planned = length["warmup_steps"] + length["window_steps"]
    if planned is None or not counts:
        return None
    least = 1 if whole and subject.evidence.first("timing").get("converged") is True else planned
    everywhere = len(counts) == 1 and len(subject.evidence.steps) == subject.world
    shown = "/".join(str(count) for count in sorted(counts))
    return everywhere and least <= len(subject.curve) <= planned, f"{shown} of {planned} steps", {}


def _measured(subject: Subject) -> Answer:
    """Every rank has all repeats of every measurement, and what was not measured has a reason."""
    planned, absent = subject.evidence.first("plan").get("measurements"), len(subject.evidence.all("absent"))
    counts = {len(steps) for steps in subject.evidence.steps.values()}
    if planned is None or not counts:
        return None
    found = [span for span in subject.section.spans if span.measured is not None]
    complete = counts == {sum(span.steps for span in found)} and len(subject.evidence.steps) == subject.world
    words = "%d of %d measured, %d not available; repeats %s"
    shown = "/".join(str(count) for count in sorted(counts))
    return complete and len(found) + absent == planned, words % (len(found), planned, absent, shown), {}


def _same_results(subject: Subject) -> Answer:
    """Fixed operations give the same bits each time, and on all devices of one model with one driver."""
    found = measured.results(subject.evidence)
    if len(subject.evidence.all("results")) < subject.world:
        return None
    wrong = []
    for result in found:
        for rank in dict.fromkeys((*result["changed"], *result["apart"])):
            wrong.append(f"{result['name']} on rank {rank}")
    values: dict[str, float] = {"operations": len(found), "other": len(wrong)}
    if not wrong:
        return True, f"{len(found)} operations, the same bits each time", values
    laps = measured.laps(subject.evidence)
    when = f" in lap {laps[-1]['lap']}" if laps else ""
    return False, f"other bits{when}: {', '.join(wrong[:8])}", values


def _device_health(subject: Subject) -> Answer:
    """Nothing in the health of a device ended a soak. None where it was not read."""
    laps = [lap for lap in measured.laps(subject.evidence) if lap["health"] is not None]
    if not laps:
        return None
    wrong = []
    for lap in laps:
        for finding in lap["health"]:
            if ends_soak(finding["outcome"]):
                where = f"rank {finding['rank']} in lap {lap['lap']}"
                wrong.append(f"{finding['kind']} on {where}: {finding['reason']}")
    values: dict[str, float] = {"laps": len(laps), "faults": len(wrong)}
    if wrong:
        return False, ", ".join(wrong[:8]), values
    return True, f"no fault of a device in {len(laps)} laps", values


def _updated(subject: Subject) -> Answer:
    """The measured steps updated the parameters, but for a few that the loss scaler skipped."""
    first, count = subject.config["train"]["warmup_steps"], len(subject.curve)
    if count <= first:
        return None
    skipped = {fact["step"] for fact in subject.evidence.all("skipped") if fact["step"] >= first}
    ok, values = core.updated(len(skipped), count - first)
    return ok, f"the loss scaler skipped {len(skipped)} of {count - first} measured steps", values


def _evaluated(subject: Subject) -> Answer:
    last = max((e["steps"] for e in subject.evaluations), default=None)
    if last is None:
        return None
    trained = len(subject.curve) + subject.evidence.first("resumed").get("step", 0)
    ok, values = core.evaluated(last, trained)
    return ok, f"the last evaluation followed step {last} of {trained}", values


def _learned(subject: Subject) -> Answer:
    answer = core.learned(subject.curve)
    if answer is None:
        return None
    words = "mean loss of the first tenth %(first_tenth).4f, of the last %(last_tenth).4f"
    return answer[0], words % answer[1], answer[1]


def _above_chance(subject: Subject) -> Answer:
    """Of the last accuracy, if the workload reports that of guessing."""
    chance = subject.evidence.first("workload").get("chance")
    if chance is None:
        return None
    last = [e for e in subject.evaluations if e["accuracy"] is not None][-1]
    ok, values = core.above_chance(last["accuracy"], last["counted"], chance)
    words = "acc %(accuracy).4f of %(counted)d examples; guessing gives %(chance).4f, at most %(bar).4f"
    return ok, words % values, values


CHECKS = (
    Check("precision", _precision, needs_end=False, kinds=(TRAIN, INFER, MEASURE)),
    Check("loss_finite", _loss_finite, needs_end=False, kinds=(TRAIN,)),
    Check("parameters_finite", _parameters_finite),
    Check("ranks_in_step", _ranks_in_step, needs_end=False),
    Check("rates_in_order", _rates_in_order, needs_end=False, kinds=(TRAIN,)),
    Check("rates_in_order", _passes_in_order, kinds=(INFER,)),
    Check("steps", _steps),
    Check("steps", _measured, kinds=(MEASURE,)),
    Check("same_results", _same_results, kinds=(MEASURE,)),
    Check("device_health", _device_health, kinds=(MEASURE,)),
    Check("updated", _updated, kinds=(TRAIN,)),
    Check("evaluated", _evaluated),
    Check("learned", _learned, kinds=(TRAIN,)),
    Check("above_chance", _above_chance),
)
"""In the order of the record."""
