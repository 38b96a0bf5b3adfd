"""What must hold for the numbers of a run to mean anything: the `quality.checks` of its record."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from flagbench_cases.record import metrics
from flagbench_cases.record.evidence import Evidence

# With fewer steps, the first and the last tenth are not conclusive.
LEAST_TO_LEARN = 50


class Subject(NamedTuple):
    """What is checked: the configuration of a run, what its ranks left, and the mean loss of each step."""

    config: Dict[str, Any]
    evidence: Evidence
    curve: List[float]

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.config["nodes"] * self.config["gpus"]

    @property
    def whole(self) -> bool:
        """Whether it is the published run, rather than a window of steps."""
        return self.config["train"]["window_steps"] is None

    @property
    def real(self) -> bool:
        """Whether there was something to learn."""
        return self.config["data"]["source"] != "synthetic"

    @property
    def evaluations(self) -> List[Dict[str, Any]]:
        """Those of rank 0 that followed training."""
        return [e for e in self.evidence.of("evaluation") if e["rank"] == 0 and e["epoch"] >= 0]

    @property
    def sums(self) -> List[float]:
        """The parameters' checksum of each rank."""
        return [fact["parameters"] for fact in self.evidence.of("memory")]


# Whether it holds, and a detail for the record; None if the run left nothing to check.
Answer = Optional[Tuple[bool, str]]


class Check(NamedTuple):
    """One check: its name, whether it needs a run that ended well, what it applies to, and how it is made."""

    name: str
    needs_end: bool
    applies: Callable[[Subject], bool]
    make: Callable[[Subject], Answer]


def checks(
    config: Dict[str, Any], evidence: Evidence, curve: List[float], finished: bool, named: Sequence[str] = ()
) -> List[Dict[str, Any]]:
    """What must hold for the numbers to mean anything, as {name, ok, detail}.

    In a run that has `finished`, a check `named` by the case's manifest also fails if it applies and the run left
    nothing to check, or if there is no such check.
    """
    subject = Subject(config, evidence, curve)
    found: List[Dict[str, Any]] = []
    for check in CHECKS:
        if not check.applies(subject) or (check.needs_end and not finished):
            continue
        answer = check.make(subject)
        if answer is None and finished and check.name in named:
            answer = False, "could not be made: the run left nothing to check"
        if answer is not None:
            found.append({"name": check.name, "ok": bool(answer[0]), "detail": answer[1]})
    known = {check.name for check in CHECKS}
    for name in named if finished else ():
        if name not in known:
            found.append({"name": name, "ok": False, "detail": "the manifest names it, but there is no such check"})
    return found


def _precision(subject: Subject) -> Answer:
    proofs = subject.evidence.of("precision")
    executed = sorted({proof["executed"] for proof in proofs})
    error = max((proof["relative_error"] for proof in proofs), default=float("nan"))
    asked = subject.config["precision"]
    words = "asked for %s; a matrix product ran in %s, relative error %.1e"
    return executed == [asked], words % (asked, "/".join(executed), error)


def _loss_finite(subject: Subject) -> Answer:
    """The loss scaler leaves out the update of a step with such a loss; the steps are named by the ranks."""
    skipped = {fact["step"] for fact in subject.evidence.of("skipped")}
    curve = subject.curve
    bad = next((i for i, loss in enumerate(curve) if not math.isfinite(loss) and i not in skipped), None)
    if not curve or bad is not None:
        return False, "not finite at step %d" % bad if curve else "no step"
    left_out = ", %d of them left out by the loss scaler" % len(skipped) if skipped else ""
    return True, "all of %d steps%s" % (len(curve), left_out)


def _parameters_finite(subject: Subject) -> Answer:
    sums = subject.sums
    if len(sums) < subject.world:
        return None
    return all(math.isfinite(s) for s in sums), "checksums of %d ranks" % len(sums)


def _ranks_in_step(subject: Subject) -> Answer:
    sums = subject.sums
    if len(sums) < subject.world:
        return None
    # max and min ignore a NaN that is not first, so NaN is tested separately.
    finite = all(math.isfinite(s) for s in sums)
    spread = max(sums) - min(sums) if finite else float("nan")
    return finite and spread <= 1e-6 * max(1.0, abs(sums[0])), "parameter checksums differ by %.1e" % spread


def _rates_in_order(subject: Subject) -> Answer:
    times = metrics.train_seconds(subject.evidence.of("timing"))
    first = subject.config["train"]["warmup_steps"]
    return metrics.in_order(subject.evidence.steps, first, len(subject.curve), times) if subject.curve else None


def _steps(subject: Subject) -> Answer:
    """Every rank has every step of the plan; fewer only where the published target was reached."""
    train, counts = subject.config["train"], {len(steps) for steps in subject.evidence.steps.values()}
    planned = subject.evidence.first("plan").get("steps")
    if not subject.whole:
        planned = train["warmup_steps"] + train["window_steps"]
    if planned is None or not counts:
        return None
    least = 1 if subject.whole and subject.evidence.first("timing").get("converged") is True else planned
    everywhere = len(counts) == 1 and len(subject.evidence.steps) == subject.world
    shown = "/".join(str(count) for count in sorted(counts))
    return everywhere and least <= len(subject.curve) <= planned, "%s of %d steps" % (shown, planned)


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
    """Whether the last accuracy is clearly above guessing, where the workload says what guessing gives: by more than
    three standard errors of as many guesses."""
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


def _has_beginning_and_end(subject: Subject) -> bool:
    """A resumed run lacks the first steps that its last ones would be compared with."""
    long_enough = len(subject.curve) >= LEAST_TO_LEARN
    return subject.real and subject.whole and long_enough and not subject.evidence.first("resumed")


def _asked_for_accuracy(subject: Subject) -> bool:
    return subject.real and subject.whole and any(e["accuracy"] is not None for e in subject.evaluations)


CHECKS = (
    Check("precision", False, _always, _precision),
    Check("loss_finite", False, _always, _loss_finite),
    Check("parameters_finite", True, _always, _parameters_finite),
    Check("ranks_in_step", False, lambda subject: subject.world > 1, _ranks_in_step),
    Check("rates_in_order", False, _always, _rates_in_order),
    Check("steps", True, _always, _steps),
    Check("evaluated", True, lambda subject: subject.whole, _evaluated),
    Check("learned", True, _has_beginning_and_end, _learned),
    Check("above_chance", True, _asked_for_accuracy, _above_chance),
)
