"""What must hold for the numbers of a run to mean anything: the `quality.checks` of its record."""

import math
from typing import Any, Dict, List, Optional, Tuple

from flagbench_cases.evidence import Evidence


def checks(config: Dict[str, Any], evidence: Evidence, curve: List[float], finished: bool) -> List[Dict[str, Any]]:
    """What must hold for the numbers to mean anything."""
    found: List[Dict[str, Any]] = []

    def check(name: str, ok: bool, detail: str) -> None:
        found.append({"name": name, "ok": bool(ok), "detail": detail})

    proofs = evidence.of("precision")
    executed = sorted({proof["executed"] for proof in proofs})
    error = max((proof["relative_error"] for proof in proofs), default=float("nan"))
    check(
        "precision",
        executed == [config["precision"]],
        "asked for %s; a matrix product ran in %s, relative error %.1e"
        % (config["precision"], "/".join(executed), error),
    )
    bad = next((i for i, loss in enumerate(curve) if not math.isfinite(loss)), None)
    check(
        "loss_finite",
        bad is None,
        "all of %d steps" % len(curve) if bad is None else "not finite at step %d" % bad,
    )
    sums = [fact["parameters"] for fact in evidence.of("memory")]
    if len(sums) > 1:
        # max and min pass over a NaN that does not come first, so it is asked for by itself.
        finite = all(math.isfinite(s) for s in sums)
        spread = max(sums) - min(sums) if finite else float("nan")
        check(
            "ranks_in_step",
            finite and spread <= 1e-6 * max(1.0, abs(sums[0])),
            "parameter checksums differ by %.1e" % spread,
        )
    window_steps = config["train"]["window_steps"]
    if finished and window_steps is not None:
        wanted = window_steps + config["train"]["warmup_steps"]
        check("window", len(curve) == wanted, "%d of %d steps" % (len(curve), wanted))
    real = window_steps is None and config["data"]["source"] != "synthetic"
    # A resumed run has not seen the beginning that its end would be compared with.
    if finished and real and len(curve) >= 50 and not evidence.first("resumed"):
        tenth = len(curve) // 10
        early, late = sum(curve[:tenth]) / tenth, sum(curve[-tenth:]) / tenth
        check("learned", late < early, "mean loss of the first tenth %.4f, of the last %.4f" % (early, late))
    guessing = _above_chance(evidence) if finished and config["data"]["source"] != "synthetic" else None
    if guessing is not None:
        check("above_chance", *guessing)
    return found


def _above_chance(evidence: Evidence) -> Optional[Tuple[bool, str]]:
    """Whether the last accuracy is clearly above guessing, where the workload says what guessing gives: by more than
    three standard errors of as many guesses."""
    chance = evidence.first("workload").get("chance")
    asked = [e for e in evidence.of("evaluation") if e["epoch"] >= 0 and e["accuracy"] is not None]
    if chance is None or not asked:
        return None
    accuracy, count = asked[-1]["accuracy"], asked[-1]["counted"]
    bar = chance + 3 * math.sqrt(chance * (1 - chance) / count)
    return accuracy > bar, "acc %.4f of %d examples; guessing gives %.4f, at most %.4f" % (
        accuracy,
        count,
        chance,
        bar,
    )
