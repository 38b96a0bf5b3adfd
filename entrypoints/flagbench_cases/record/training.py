"""What only records of training have: the loss of each step, facts of its end, the bubble of a pipeline."""

from typing import Any, Dict

from flagbench_cases.record import measured
from flagbench_cases.record.checks import Subject


def quality(subject: Subject, pipeline: Dict[str, Any]) -> Dict[str, Any]:
    """The fields of `quality` that training adds. `pipeline`: the bubbles of the job and of its stages."""
    evidence = subject.evidence
    resumed = evidence.first("resumed")
    return {
        "losses": measured.losses(subject.curve, resumed.get("step", 0)),
        "converged": evidence.first("timing").get("converged"),
        "resumed": resumed or None,
        "training": {**evidence.first("training"), **pipeline} or None,
    }
