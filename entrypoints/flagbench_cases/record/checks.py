"""Makes the checks without which a run's numbers would mean nothing: `quality.checks` of its record.

Each check is one function of a Subject, listed in CHECKS. flagbench_core.checks decides which checks apply to a run,
because `flagbench verify` makes the same checks again from the record. A run with a failed check is invalid.
"""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Sequence

from flagbench_cases.record import measured
from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request
from flagbench_core import checks as core
from flagbench_core.case_kinds import INFER, MEASURE, TRAIN
from flagbench_core.config import schedule
from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.document import WINDOW, RecordEvidence, StepRange
from flagbench_core.evidence.metrics import DEVICE, OWN
from flagbench_core.health.judge import ends_soak

CLOCK_DRIFT = 1e-4
"""Maximum drift of a device's clock relative to the host's, as a fraction."""
CHECKSUM_TOLERANCE = 1e-6
"""Relative difference up to which the parameters of two ranks count as equal.

A checksum is a sum over all parameters, which different devices may round differently.
"""
MAX_NAMED = 8
"""Most faults that the detail of a check names."""


class Subject(NamedTuple):
    """A run to check."""

    request: Request
    evidence: Evidence
    """The steps and facts that the ranks wrote."""
    curve: list[float]
    """The loss of each step, averaged over replicas."""
    record_evidence: RecordEvidence
    """The record's evidence, from which metrics are computed."""

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
        """The facts of the run that decide which checks apply."""
        return core.facts_of(
            self.config,
            replicas=self.request.layout.dp,
            steps=len(self.curve),
            resumed=bool(self.evidence.first("resumed")),
            has_accuracy=any(evaluation["accuracy"] is not None for evaluation in self.evaluations),
        )

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations by rank 0 that followed a step, as written by the rank."""
        return [fact for fact in self.evidence.all("evaluation") if fact["rank"] == 0 and fact["epoch"] >= 0]

    @property
    def checksums(self) -> dict[int, float]:
        """The checksum of each rank's parameters, by rank.

        A rank writes it at its end, in the fact `memory` (`rank.run`), so ranks that did not finish have none.
        """
        return {fact["rank"]: fact["parameters"] for fact in self.evidence.all("memory")}


class Answer(NamedTuple):
    """The answer of a check."""

    ok: bool
    detail: str
    """A sentence for the record that says what was compared."""
    values: dict[str, float] = {}
    """The numbers that decided the check."""


NO_EVIDENCE = Answer(False, "could not be made: there is no evidence")
NO_SUCH_CHECK = Answer(False, "listed in the manifest, but there is no such check")


class Check(NamedTuple):
    """A check of a run."""

    name: str
    make: Callable[[Subject], Answer | None]
    """Makes the check. Returns None if the run has no evidence for it; `make_checks` decides what that means."""
    needs_end: bool = True
    """Whether it requires a finished run."""
    kinds: tuple[str, ...] = (TRAIN, INFER)
    """The kinds of cases that have this check."""


def make_checks(subject: Subject, finished: bool) -> list[dict[str, Any]]:
    """Return the results of the checks that apply, as {name, ok, detail, values}.

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
    """Return the entry of a check in the record."""
    row: dict[str, Any] = {"name": name, "ok": bool(answer.ok), "detail": answer.detail}
    if answer.values:
        row["values"] = answer.values
    return row


def _check_precision(subject: Subject) -> Answer | None:
    """Check that matrix products ran in the requested precision.

    Each rank finds out by their rounding error in which precision they run, and writes the fact `precision` before
    its first step. If no rank has written it, the check fails, and does not wait for the end of the run.
    """
    proofs = subject.evidence.all("precision")
    executed = sorted({proof["executed"] for proof in proofs})
    error = max((proof["relative_error"] for proof in proofs), default=float("nan"))
    requested = subject.config["precision"]
    ran_in = "/".join(executed)
    detail = f"requested {requested}; a matrix product ran in {ran_in}, relative error {error:.1e}"
    return Answer(executed == [requested], detail)


def _check_loss_finite(subject: Subject) -> Answer | None:
    """Check that all losses are finite, except in steps skipped by the loss scaler, which the ranks report."""
    skipped = {fact["step"] for fact in subject.evidence.all("skipped")}
    curve = subject.curve
    not_finite = [step for step, loss in enumerate(curve) if not math.isfinite(loss)]
    unexplained = [step for step in not_finite if step not in skipped]
    judgement = core.loss_finite(len(not_finite), len(not_finite) - len(unexplained))
    if not curve:
        return Answer(False, "no step", judgement.values)
    if not judgement.holds:
        return Answer(False, f"not finite at step {unexplained[0]}", judgement.values)
    detail = f"all {len(curve)} steps"
    if not_finite:
        detail += f" except {len(not_finite)} skipped by the loss scaler"
    return Answer(True, detail, judgement.values)


def _check_parameters_finite(subject: Subject) -> Answer | None:
    """Check that the parameters of all ranks are finite: the checksum of an infinity or NaN is not finite."""
    checksums = subject.checksums
    if len(checksums) < subject.world:
        return None
    return Answer(all(map(math.isfinite, checksums.values())), f"checksums of {len(checksums)} ranks")


def _check_ranks_in_step(subject: Subject) -> Answer | None:
    """Check that the ranks of each data-parallel group have the same parameters."""
    checksums = subject.checksums
    if len(checksums) < subject.world:
        return None
    ok = True
    widest = 0.0
    for group in subject.request.layout.groups("dp"):
        group_sums = [checksums[rank] for rank in group]
        if not all(map(math.isfinite, group_sums)):
            return Answer(False, "a parameter checksum is not finite")
        spread = max(group_sums) - min(group_sums)
        if spread > CHECKSUM_TOLERANCE * max(1.0, abs(group_sums[0])):
            ok = False
        widest = max(widest, spread)
    return Answer(ok, f"parameter checksums differ by {widest:.1e}")


def _check_training_times(subject: Subject) -> Answer | None:
    """Compare the times of training over all steps, and over the steps after the warm-up, which p_core is made of.

    p_core is the speed by the device's clock, in samples or tokens per second.
    """
    record_evidence = subject.record_evidence
    all_steps = record_evidence.step_range()
    window = record_evidence.step_range(TRAIN, WINDOW)
    timed = [TimedSteps(all_steps, record_evidence.durations.get(TRAIN, []))]
    if window.steps != all_steps.steps:
        timed.append(TimedSteps(window, []))
    return compare_times(timed)


class TimedSteps(NamedTuple):
    """Consecutive steps, and how long they took from the first one's start to the last one's end."""

    step_range: StepRange
    durations: Sequence[int]
    """Each rank's duration of the steps, microseconds; empty if it was not measured or the steps did not end."""


def compare_times(timed_steps: Sequence[TimedSteps]) -> Answer:
    """Check that device time <= host time <= duration, each the maximum over ranks, with a tolerance of one step.

    Speeds by these times are then in the opposite order, hence the check's name, rates_in_order. If they are not, a
    clock is wrong, or steps were timed that had not ended. Stretches without steps are ignored.
    """
    ok = True
    parts = []
    for step_range, durations in timed_steps:
        if not step_range.steps:
            continue
        times = [step_range.rank_time(columns, step_range.slowest(columns)) / MICRO for columns in (DEVICE, OWN)]
        if durations:
            times.append(max(durations) / MICRO)
        tolerance = 1 + 1 / step_range.steps + CLOCK_DRIFT
        for shorter, longer in zip(times, times[1:]):
            if shorter > longer * tolerance:
                ok = False
        comparison = " <= ".join(f"{seconds:.4f} s" for seconds in times)
        parts.append(f"steps {step_range.first} to {step_range.first + step_range.steps}: {comparison}")
    detail = "device <= host <= end to end, each the maximum over ranks: " + "; ".join(parts)
    return Answer(ok, detail)


def _check_pass_times(subject: Subject) -> Answer | None:
    """Compare the times of every pass of inference.

    So p_infer_core, the speed of the steps by the device's clock, is at least p_infer_whole, that of whole passes.
    """
    record_evidence = subject.record_evidence
    if not record_evidence.durations:
        return None
    ok = True
    details = []
    for name, microseconds in record_evidence.durations.items():
        answer = compare_times([TimedSteps(record_evidence.step_range(name), microseconds)])
        ok = ok and answer.ok
        details.append(answer.detail)
    return Answer(ok, "; ".join(details))


def _check_steps(subject: Subject) -> Answer | None:
    """Check that every rank has all planned steps; a full run may have fewer if it reached the published target."""
    length = schedule(subject.config)
    is_full_run = length["window_steps"] is None
    if is_full_run:
        planned = subject.evidence.first("plan").get("steps")
    else:
        planned = length["warmup_steps"] + length["window_steps"]
    counts = _step_counts(subject)
    if planned is None or not counts:
        return None
    least = planned
    if is_full_run and subject.evidence.first("timing").get("converged") is True:
        least = 1
    on_all_ranks = len(counts) == 1 and len(subject.evidence.steps) == subject.world
    detail = f"{_join_counts(counts)} of {planned} steps"
    return Answer(on_all_ranks and least <= len(subject.curve) <= planned, detail)


def _step_counts(subject: Subject) -> set[int]:
    """Return the different numbers of steps that ranks have: only one if all ranks have the same number."""
    return {len(steps) for steps in subject.evidence.steps.values()}


def _join_counts(counts: set[int]) -> str:
    return "/".join(str(count) for count in sorted(counts))


def _check_measurements(subject: Subject) -> Answer | None:
    """Check that every rank has all repeats of every measurement, and that the other measurements have a reason."""
    planned = subject.evidence.first("plan").get("measurements")
    absent = len(subject.evidence.all("absent"))
    counts = _step_counts(subject)
    if planned is None or not counts:
        return None
    spans = [span for span in subject.record_evidence.spans if span.measured is not None]
    repeats = sum(span.steps for span in spans)
    on_all_ranks = counts == {repeats} and len(subject.evidence.steps) == subject.world
    detail = f"{len(spans)} of {planned} measured, {absent} not available; repeats {_join_counts(counts)}"
    return Answer(on_all_ranks and len(spans) + absent == planned, detail)


def _check_same_results(subject: Subject) -> Answer | None:
    """Check that fixed operations give the same bits each time, and on all devices of one model with one driver."""
    if len(subject.evidence.all("results")) < subject.world:
        return None
    operations = measured.compare_results(subject.evidence)
    faults = []
    for operation in operations:
        # Ranks whose result changed from time to time, and those whose result differs from the other devices'.
        for rank in dict.fromkeys((*operation["changed"], *operation["apart"])):
            faults.append(f"{operation['name']} on rank {rank}")
    values: dict[str, float] = {"operations": len(operations), "other": len(faults)}
    if not faults:
        return Answer(True, f"{len(operations)} operations, the same bits each time", values)
    laps = measured.collect_laps(subject.evidence)
    last_lap = f" in lap {laps[-1]['lap']}" if laps else ""
    names = ", ".join(faults[:MAX_NAMED])
    return Answer(False, f"other bits{last_lap}: {names}", values)


def _check_requests_complete(subject: Subject) -> Answer | None:
    """Check that every request got as many tokens as it asked for."""
    return _check_served(subject, "other_lengths", "requests have another number of tokens")


def _check_no_cached_tokens(subject: Subject) -> Answer | None:
    """Check that no token of a prompt was taken from the cache of an earlier request, which would skip its work."""
    return _check_served(subject, "cached_tokens", "tokens of prompts were taken from a cache")


def _check_no_preemption(subject: Subject) -> Answer | None:
    """Check that the engine interrupted no request, which repeats work when the request is resumed."""
    return _check_served(subject, "preemptions", "interruptions of requests")


def _check_served(subject: Subject, name: str, words: str) -> Answer | None:
    """Check that a count of what the engine did is 0 on every rank. `words`: what is counted, in the plural."""
    facts = _engine_facts(subject)
    if facts is None:
        return None
    count = max(fact["served"][name] for fact in facts)
    requests = min(fact["served"]["requests"] for fact in facts)
    values: dict[str, float] = {"requests": requests, name: count}
    return Answer(requests > 0 and count == 0, f"{count} {words}, of {requests} requests", values)


def _check_engine_settings(subject: Subject) -> Answer | None:
    """Check that the engine uses the settings of the configuration, which it may change for a device."""
    facts = _engine_facts(subject)
    if facts is None:
        return None
    differences = []
    for fact in facts:
        asked = subject.config[fact["engine"]]
        for name, value in asked.items():
            used = fact["settings"][name]
            if used != value:
                differences.append(f"{name} is {used} instead of {value} on rank {fact['rank']}")
    if differences:
        return Answer(False, ", ".join(differences[:MAX_NAMED]))
    return Answer(True, f"{len(facts[0]['settings'])} settings")


def _engine_facts(subject: Subject) -> list[dict[str, Any]] | None:
    """The facts that every rank wrote about its inference engine; None if a rank has none."""
    facts = [fact for fact in subject.evidence.all("inference") if "engine" in fact]
    if len(facts) < subject.world:
        return None
    return facts


def _check_device_health(subject: Subject) -> Answer | None:
    """Check that no fault of a device ended a soak, which repeats all measurements in laps for a given time."""
    laps = [lap for lap in measured.collect_laps(subject.evidence) if lap["health"] is not None]
    if not laps:
        return None
    faults = []
    for lap in laps:
        for finding in lap["health"]:
            if ends_soak(finding["outcome"]):
                place = f"rank {finding['rank']} in lap {lap['lap']}"
                faults.append(f"{finding['kind']} on {place}: {finding['reason']}")
    values: dict[str, float] = {"laps": len(laps), "faults": len(faults)}
    if faults:
        return Answer(False, ", ".join(faults[:MAX_NAMED]), values)
    return Answer(True, f"no fault of a device in {len(laps)} laps", values)


def _check_updated(subject: Subject) -> Answer | None:
    """Check that the measured steps updated the parameters, except for a few that the loss scaler skipped."""
    first_measured = subject.config["train"]["warmup_steps"]
    count = len(subject.curve) - first_measured
    if count <= 0:
        return None
    skipped = {fact["step"] for fact in subject.evidence.all("skipped") if fact["step"] >= first_measured}
    judgement = core.updated(len(skipped), count)
    detail = f"the loss scaler skipped {len(skipped)} of {count} measured steps"
    return Answer(judgement.holds, detail, judgement.values)


def _check_evaluated(subject: Subject) -> Answer | None:
    """Check that an evaluation followed the last step."""
    last_evaluated = max((evaluation["steps"] for evaluation in subject.evaluations), default=None)
    if last_evaluated is None:
        return None
    trained = len(subject.curve) + subject.evidence.first("resumed").get("step", 0)
    judgement = core.evaluated(last_evaluated, trained)
    detail = f"the last evaluation followed step {last_evaluated} of {trained}"
    return Answer(judgement.holds, detail, judgement.values)


def _check_learned(subject: Subject) -> Answer | None:
    """Check that the loss fell from the first tenth of the steps to the last."""
    judgement = core.learned(subject.curve)
    if judgement is None:
        return None
    values = judgement.values
    detail = f"mean loss of the first tenth {values['first_tenth']:.4f}, of the last {values['last_tenth']:.4f}"
    return Answer(judgement.holds, detail, values)


def _check_above_chance(subject: Subject) -> Answer | None:
    """Check that the last accuracy is above that of guessing, if the workload reports the latter."""
    chance = subject.evidence.first("workload").get("chance")
    if chance is None:
        return None
    # There is at least one: the check applies only to a run with an accuracy (`CheckFacts.has_accuracy`).
    last = [evaluation for evaluation in subject.evaluations if evaluation["accuracy"] is not None][-1]
    judgement = core.above_chance(last["accuracy"], last["counted"], chance)
    values = judgement.values
    guessing = f"guessing gives {values['chance']:.4f}, at most {values['bar']:.4f}"
    detail = f"acc {values['accuracy']:.4f} of {values['counted']:.0f} examples; {guessing}"
    return Answer(judgement.holds, detail, values)


CHECKS = (
    Check("precision", _check_precision, needs_end=False, kinds=(TRAIN, INFER, MEASURE)),
    Check("loss_finite", _check_loss_finite, needs_end=False, kinds=(TRAIN,)),
    Check("parameters_finite", _check_parameters_finite),
    Check("ranks_in_step", _check_ranks_in_step, needs_end=False),
    Check("rates_in_order", _check_training_times, needs_end=False, kinds=(TRAIN,)),
    Check("rates_in_order", _check_pass_times, kinds=(INFER,)),
    Check("steps", _check_steps),
    Check("steps", _check_measurements, kinds=(MEASURE,)),
    Check("same_results", _check_same_results, kinds=(INFER, MEASURE)),
    Check("requests_complete", _check_requests_complete, kinds=(INFER,)),
    Check("no_cached_tokens", _check_no_cached_tokens, kinds=(INFER,)),
    Check("no_preemption", _check_no_preemption, kinds=(INFER,)),
    Check("engine_settings", _check_engine_settings, kinds=(INFER,)),
    Check("device_health", _check_device_health, kinds=(MEASURE,)),
    Check("updated", _check_updated, kinds=(TRAIN,)),
    Check("evaluated", _check_evaluated),
    Check("learned", _check_learned, kinds=(TRAIN,)),
    Check("above_chance", _check_above_chance),
)
"""All checks, in the order in which a record lists them."""
