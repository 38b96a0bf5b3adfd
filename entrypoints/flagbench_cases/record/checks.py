"""The checks that make a run's numbers meaningful: `quality.checks` of its record."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Sequence

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
            has_accuracy=any(evaluation["accuracy"] is not None for evaluation in self.evaluations),
        )

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Rank 0's evaluations that followed a step."""
        return [fact for fact in self.evidence.all("evaluation") if fact["rank"] == 0 and fact["epoch"] >= 0]

    @property
    def sums(self) -> dict[int, float]:
        """The checksum of each rank's parameters."""
        return {fact["rank"]: fact["parameters"] for fact in self.evidence.all("memory")}


class Answer(NamedTuple):
    """The answer of a check."""

    ok: bool
    detail: str
    """For the record: what was compared."""
    values: dict[str, float] = {}
    """The numbers that decided it."""


NO_EVIDENCE = Answer(False, "could not be made: there is no evidence")
NO_SUCH_CHECK = Answer(False, "listed in the manifest, but there is no such check")


class Check(NamedTuple):
    """A check: its name and its function. When it applies is core's."""

    name: str
    make: Callable[[Subject], Answer | None]
    """None without evidence."""
    needs_end: bool = True
    """Whether it requires a finished run."""
    kinds: tuple[str, ...] = (TRAIN, INFER)
    """The kinds of cases that have it."""


def checks(subject: Subject, finished: bool) -> list[dict[str, Any]]:
    """The results of the checks, as {name, ok, detail, values}.

    For a `finished` run, a check listed in the case's manifest also fails if it applies but there is no evidence, or
    if this kind of case has no such check.
    """
    listed = subject.request.checks
    checks_of_kind = [check for check in CHECKS if subject.request.kind in check.kinds]
    facts = subject.facts
    rows: list[dict[str, Any]] = []
    for check in checks_of_kind:
        if not core.applies(check.name, facts):
            continue
        if check.needs_end and not finished:
            continue
        answer = check.make(subject)
        if answer is None and finished and check.name in listed:
            answer = NO_EVIDENCE
        if answer is not None:
            rows.append(_row(check.name, answer))
    if finished:
        names = {check.name for check in checks_of_kind}
        rows += [_row(name, NO_SUCH_CHECK) for name in listed if name not in names]
    return rows


def _row(name: str, answer: Answer) -> dict[str, Any]:
    """A check as the record has it."""
    row: dict[str, Any] = {"name": name, "ok": bool(answer.ok), "detail": answer.detail}
    if answer.values:
        row["values"] = answer.values
    return row


def _precision(subject: Subject) -> Answer | None:
    proofs = subject.evidence.all("precision")
    executed = sorted({proof["executed"] for proof in proofs})
    error = max((proof["relative_error"] for proof in proofs), default=float("nan"))
    requested = subject.config["precision"]
    ran_in = "/".join(executed)
    detail = f"requested {requested}; a matrix product ran in {ran_in}, relative error {error:.1e}"
    return Answer(executed == [requested], detail)


def _loss_finite(subject: Subject) -> Answer | None:
    """All losses are finite, except in steps skipped by the loss scaler, which the ranks report."""
    skipped = {fact["step"] for fact in subject.evidence.all("skipped")}
    curve = subject.curve
    not_finite = [step for step, loss in enumerate(curve) if not math.isfinite(loss)]
    unexplained = [step for step in not_finite if step not in skipped]
    ok, values = core.loss_finite(len(not_finite), len(not_finite) - len(unexplained))
    if not curve:
        return Answer(False, "no step", values)
    if not ok:
        first = unexplained[0] if unexplained else 0
        return Answer(False, f"not finite at step {first}", values)
    detail = f"all {len(curve)} steps"
    if not_finite:
        detail += f" except {len(not_finite)} skipped by the loss scaler"
    return Answer(True, detail, values)


def _parameters_finite(subject: Subject) -> Answer | None:
    sums = subject.sums
    if len(sums) < subject.world:
        return None
    return Answer(all(map(math.isfinite, sums.values())), f"checksums of {len(sums)} ranks")


def _ranks_in_step(subject: Subject) -> Answer | None:
    """The ranks of a data-parallel group have the same parameters."""
    sums = subject.sums
    if len(sums) < subject.world:
        return None
    ok, widest = True, 0.0
    for group in subject.request.layout.groups("dp"):
        group_sums = [sums[rank] for rank in group]
        spread = max(group_sums) - min(group_sums)
        # max and min ignore a NaN that is not the first of them.
        if not all(map(math.isfinite, group_sums)):
            spread = float("nan")
        # Negated, so that a NaN counts as wide.
        if not spread <= 1e-6 * max(1.0, abs(group_sums[0])):
            ok = False
        if not spread <= widest:
            widest = spread
    return Answer(ok, f"parameter checksums differ by {widest:.1e}")


def _rates_in_order(subject: Subject) -> Answer | None:
    """Over all steps, and over those that p_core uses."""
    section = subject.section
    stretches = [section.stretch(), section.stretch(TRAIN, WINDOW)]
    if stretches[0].steps == stretches[1].steps:
        stretches.pop()
    ok, detail = in_order(stretches, section.durations.get(TRAIN, []))
    return Answer(ok, detail)


def in_order(stretches: Sequence[Stretch], durations: Sequence[int]) -> tuple[bool, str]:
    """Whether device time <= host time <= duration, each the maximum over ranks, within one step; and the times.

    `durations`: each rank's microseconds from start to end of the first stretch; empty if it did not end. Stretches
    without steps are ignored.
    """
    ok, parts = True, []
    for index, stretch in enumerate(stretches):
        if not stretch.steps:
            continue
        times = [stretch.rank_time(columns, stretch.slowest(columns)) / MICRO for columns in (DEVICE, OWN)]
        if durations and index == 0:
            times.append(max(durations) / MICRO)
        tolerance = 1 + 1 / stretch.steps + CLOCK_DRIFT
        for shorter, longer in zip(times, times[1:]):
            if not shorter <= longer * tolerance:
                ok = False
        comparison = " <= ".join(f"{seconds:.4f} s" for seconds in times)
        parts.append(f"steps {stretch.first} to {stretch.first + stretch.steps}: {comparison}")
    return ok, "device <= host <= end to end, each the maximum over ranks: " + "; ".join(parts)


def _passes_in_order(subject: Subject) -> Answer | None:
    """p_infer_core >= p_infer_whole, for every pass."""
    section = subject.section
    if not section.durations:
        return None
    ok, details = True, []
    for name, seconds in section.durations.items():
        pass_ok, detail = in_order([section.stretch(name)], seconds)
        ok = ok and pass_ok
        details.append(detail)
    return Answer(ok, "; ".join(details))


def _steps(subject: Subject) -> Answer | None:
    """Every rank has all steps of the plan; fewer only if the published target was reached."""
    length = schedule(subject.config)
    to_the_end = length["window_steps"] is None
    if to_the_end:
        planned = subject.evidence.first("plan").get("steps")
    else:
        planned = length["warmup_steps"] + length["window_steps"]
    counts = _step_counts(subject)
    if planned is None or not counts:
        return None
    least = planned
    if to_the_end and subject.evidence.first("timing").get("converged") is True:
        least = 1
    on_all_ranks = len(counts) == 1 and len(subject.evidence.steps) == subject.world
    detail = f"{_joined(counts)} of {planned} steps"
    return Answer(on_all_ranks and least <= len(subject.curve) <= planned, detail)


def _step_counts(subject: Subject) -> set[int]:
    """The numbers of steps that ranks have: one number if all have as many."""
    return {len(steps) for steps in subject.evidence.steps.values()}


def _joined(counts: set[int]) -> str:
    return "/".join(str(count) for count in sorted(counts))


def _measured(subject: Subject) -> Answer | None:
    """Every rank has all repeats of every measurement, and what was not measured has a reason."""
    planned = subject.evidence.first("plan").get("measurements")
    absent = len(subject.evidence.all("absent"))
    counts = _step_counts(subject)
    if planned is None or not counts:
        return None
    spans = [span for span in subject.section.spans if span.measured is not None]
    complete = counts == {sum(span.steps for span in spans)} and len(subject.evidence.steps) == subject.world
    detail = f"{len(spans)} of {planned} measured, {absent} not available; repeats {_joined(counts)}"
    return Answer(complete and len(spans) + absent == planned, detail)


def _same_results(subject: Subject) -> Answer | None:
    """Fixed operations give the same bits each time, and on all devices of one model with one driver."""
    if len(subject.evidence.all("results")) < subject.world:
        return None
    operations = measured.results(subject.evidence)
    wrong = []
    for operation in operations:
        for rank in dict.fromkeys((*operation["changed"], *operation["apart"])):
            wrong.append(f"{operation['name']} on rank {rank}")
    values: dict[str, float] = {"operations": len(operations), "other": len(wrong)}
    if not wrong:
        return Answer(True, f"{len(operations)} operations, the same bits each time", values)
    laps = measured.laps(subject.evidence)
    when = f" in lap {laps[-1]['lap']}" if laps else ""
    names = ", ".join(wrong[:8])
    return Answer(False, f"other bits{when}: {names}", values)


def _device_health(subject: Subject) -> Answer | None:
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
        return Answer(False, ", ".join(wrong[:8]), values)
    return Answer(True, f"no fault of a device in {len(laps)} laps", values)


def _updated(subject: Subject) -> Answer | None:
    """The measured steps updated the parameters, but for a few that the loss scaler skipped."""
    first = subject.config["train"]["warmup_steps"]
    count = len(subject.curve) - first
    if count <= 0:
        return None
    skipped = {fact["step"] for fact in subject.evidence.all("skipped") if fact["step"] >= first}
    ok, values = core.updated(len(skipped), count)
    return Answer(ok, f"the loss scaler skipped {len(skipped)} of {count} measured steps", values)


def _evaluated(subject: Subject) -> Answer | None:
    last = max((evaluation["steps"] for evaluation in subject.evaluations), default=None)
    if last is None:
        return None
    trained = len(subject.curve) + subject.evidence.first("resumed").get("step", 0)
    ok, values = core.evaluated(last, trained)
    return Answer(ok, f"the last evaluation followed step {last} of {trained}", values)


def _learned(subject: Subject) -> Answer | None:
    judged = core.learned(subject.curve)
    if judged is None:
        return None
    ok, values = judged
    first, last = values["first_tenth"], values["last_tenth"]
    return Answer(ok, f"mean loss of the first tenth {first:.4f}, of the last {last:.4f}", values)


def _above_chance(subject: Subject) -> Answer | None:
    """Of the last accuracy, if the workload reports that of guessing."""
    chance = subject.evidence.first("workload").get("chance")
    if chance is None:
        return None
    last = [evaluation for evaluation in subject.evaluations if evaluation["accuracy"] is not None][-1]
    ok, values = core.above_chance(last["accuracy"], last["counted"], chance)
    guessing = f"guessing gives {values['chance']:.4f}, at most {values['bar']:.4f}"
    return Answer(ok, f"acc {values['accuracy']:.4f} of {values['counted']:.0f} examples; {guessing}", values)


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
