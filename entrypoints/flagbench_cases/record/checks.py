"""The checks that make a run's numbers meaningful: `quality.checks` of its record."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.order import in_order
from flagbench_cases.record.request import Request
from flagbench_cases.shared.config import schedule
from flagbench_core.evidence.derive import TRAIN
from flagbench_core.evidence.section import WINDOW, Section

# With fewer steps, comparing the first and the last tenth is not conclusive.
MIN_STEPS_TO_COMPARE = 50
# Of the measured steps, those that the loss scaler may skip: such a step does less work.
MAX_SKIPPED_SHARE = 0.1


class Subject(NamedTuple):
    """What is checked: the request, what the ranks left, the mean loss of each step, and the record's evidence."""

    request: Request
    evidence: Evidence
    curve: List[float]
    section: Section

    @property
    def config(self) -> Dict[str, Any]:
        """The resolved configuration."""
        return self.request.config or {}

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.request.layout.world

    @property
    def whole(self) -> bool:
        """Whether it is a full published run, rather than a window of steps."""
        return schedule(self.config)["window_steps"] is None

    @property
    def real(self) -> bool:
        """Whether the data are not synthetic."""
        return self.config["data"]["source"] != "synthetic"

    @property
    def evaluations(self) -> List[Dict[str, Any]]:
        """Rank 0's evaluations that followed a step."""
        return [e for e in self.evidence.of("evaluation") if e["rank"] == 0 and e["epoch"] >= 0]

    @property
    def sums(self) -> Dict[int, float]:
        """The checksum of each rank's parameters."""
        return {fact["rank"]: fact["parameters"] for fact in self.evidence.of("memory")}


# Whether the check passed, and a detail for the record; None without evidence.
Answer = Optional[Tuple[bool, str]]


class Check(NamedTuple):
    """A check: its name, whether it requires a finished run, whether it applies, and its function."""

    name: str
    needs_end: bool
    applies: Callable[[Subject], bool]
    make: Callable[[Subject], Answer]


def checks(subject: Subject, finished: bool) -> List[Dict[str, Any]]:
    """The results of the checks, as {name, ok, detail}.

    For a `finished` run, a check listed in the case's manifest also fails if it applies but there is no evidence, or
    if this kind of case has no such check.
    """
    named, known = subject.request.checks, CHECKS[subject.request.kind]
    found: List[Dict[str, Any]] = []
    for check in known:
        if not check.applies(subject) or (check.needs_end and not finished):
            continue
        answer = check.make(subject)
        if answer is None and finished and check.name in named:
            answer = False, "could not be made: there is no evidence"
        if answer is not None:
            found.append({"name": check.name, "ok": bool(answer[0]), "detail": answer[1]})
    for name in named if finished else ():
        if name not in {check.name for check in known}:
            found.append({"name": name, "ok": False, "detail": "listed in the manifest, but there is no such check"})
    return found


def _precision(subject: Subject) -> Answer:
    proofs = subject.evidence.of("precision")
    executed = sorted({proof["executed"] for proof in proofs})
    error = max((proof["relative_error"] for proof in proofs), default=float("nan"))
    asked = subject.config["precision"]
    words = "requested %s; a matrix product ran in %s, relative error %.1e"
    return executed == [asked], words % (asked, "/".join(executed), error)


def _loss_finite(subject: Subject) -> Answer:
    """All losses are finite, except in steps skipped by the loss scaler, which the ranks report."""
    skipped = {fact["step"] for fact in subject.evidence.of("skipped")}
    curve = subject.curve
    bad = next((i for i, loss in enumerate(curve) if not math.isfinite(loss) and i not in skipped), None)
    if not curve or bad is not None:
        return False, "not finite at step %d" % bad if curve else "no step"
    excused = sum(1 for loss in curve if not math.isfinite(loss))
    exceptions = " except %d skipped by the loss scaler" % excused if excused else ""
    return True, "all %d steps%s" % (len(curve), exceptions)


def _parameters_finite(subject: Subject) -> Answer:
    sums = subject.sums
    if len(sums) < subject.world:
        return None
    return all(math.isfinite(s) for s in sums.values()), "checksums of %d ranks" % len(sums)


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
    return ok, "parameter checksums differ by %.1e" % widest


def _rates_in_order(subject: Subject) -> Answer:
    """Over all steps, and over those that p_core uses."""
    section = subject.section
    stretches = [section.stretch(), section.stretch(TRAIN, WINDOW)]
    if stretches[0].steps == stretches[1].steps:
        stretches.pop()
    return in_order(stretches, section.durations.get(TRAIN, []))


def _passes_in_order(subject: Subject) -> Answer:
    """p_infer_core >= p_infer_whole, for every pass."""
    section = subject.section
    answers = [in_order([section.stretch(name)], seconds) for name, seconds in section.durations.items()]
    return (all(ok for ok, _ in answers), "; ".join(words for _, words in answers)) if answers else None


def _steps(subject: Subject) -> Answer:
    """Every rank has all steps of the plan; fewer only if the published target was reached."""
    length, counts = schedule(subject.config), {len(steps) for steps in subject.evidence.steps.values()}
    planned = subject.evidence.first("plan").get("steps")
    if not subject.whole:
        planned = length["warmup_steps"] + length["window_steps"]
    if planned is None or not counts:
        return None
    least = 1 if subject.whole and subject.evidence.first("timing").get("converged") is True else planned
    everywhere = len(counts) == 1 and len(subject.evidence.steps) == subject.world
    shown = "/".join(str(count) for count in sorted(counts))
    return everywhere and least <= len(subject.curve) <= planned, "%s of %d steps" % (shown, planned)


def _updated(subject: Subject) -> Answer:
    """The measured steps updated the parameters, but for a few that the loss scaler skipped."""
    first, count = subject.config["train"]["warmup_steps"], len(subject.curve)
    if count <= first:
        return None
    skipped = {fact["step"] for fact in subject.evidence.of("skipped") if fact["step"] >= first}
    words = "the loss scaler skipped %d of %d measured steps" % (len(skipped), count - first)
    return len(skipped) <= MAX_SKIPPED_SHARE * (count - first), words


def _evaluated(subject: Subject) -> Answer:
    last = max((e["steps"] for e in subject.evaluations), default=None)
    if last is None:
        return None
    trained = len(subject.curve) + subject.evidence.first("resumed").get("step", 0)
    return last == trained, "the last evaluation followed step %d of %d" % (last, trained)


def _learned(subject: Subject) -> Answer:
    curve = [loss for loss in subject.curve if math.isfinite(loss)]
    tenth = len(curve) // 10
    if not tenth:
        return None
    early, late = sum(curve[:tenth]) / tenth, sum(curve[-tenth:]) / tenth
    return late < early, "mean loss of the first tenth %.4f, of the last %.4f" % (early, late)


def _above_chance(subject: Subject) -> Answer:
    """Whether the last accuracy exceeds that of guessing by more than three standard errors, if the workload reports
    the latter."""
    chance = subject.evidence.first("workload").get("chance")
    if chance is None:
        return None
    last = [e for e in subject.evaluations if e["accuracy"] is not None][-1]
    accuracy, count = last["accuracy"], last["counted"]
    bar = chance + 3 * math.sqrt(chance * (1 - chance) / count)
    words = "acc %.4f of %d examples; guessing gives %.4f, at most %.4f"
    return accuracy > bar, words % (accuracy, count, chance, bar)


def _always(subject: Subject) -> bool:
    return True


def _has_loss_scaler(subject: Subject) -> bool:
    return bool(subject.config["precision"] == "fp16")


def _has_beginning_and_end(subject: Subject) -> bool:
    """A resumed run lacks the first steps to compare with."""
    long_enough = len(subject.curve) >= MIN_STEPS_TO_COMPARE
    return subject.real and subject.whole and long_enough and not subject.evidence.first("resumed")


def _measures_accuracy(subject: Subject) -> bool:
    return subject.real and subject.whole and any(e["accuracy"] is not None for e in subject.evaluations)


_PRECISION = Check("precision", False, _always, _precision)
_PARAMETERS_FINITE = Check("parameters_finite", True, _always, _parameters_finite)
_RANKS_IN_STEP = Check("ranks_in_step", False, lambda subject: subject.request.layout.dp > 1, _ranks_in_step)
_STEPS = Check("steps", True, _always, _steps)
_EVALUATED = Check("evaluated", True, lambda subject: subject.whole, _evaluated)
_ABOVE_CHANCE = Check("above_chance", True, _measures_accuracy, _above_chance)

CHECKS = {
    "train": (
        _PRECISION,
        Check("loss_finite", False, _always, _loss_finite),
        _PARAMETERS_FINITE,
        _RANKS_IN_STEP,
        Check("rates_in_order", False, _always, _rates_in_order),
        _STEPS,
        Check("updated", True, _has_loss_scaler, _updated),
        _EVALUATED,
        Check("learned", True, _has_beginning_and_end, _learned),
        _ABOVE_CHANCE,
    ),
    "infer": (
        _PRECISION,
        _PARAMETERS_FINITE,
        _RANKS_IN_STEP,
        Check("rates_in_order", True, _always, _passes_in_order),
        _STEPS,
        _EVALUATED,
        _ABOVE_CHANCE,
    ),
}
"""The checks of each kind of case, in the order of the record."""
