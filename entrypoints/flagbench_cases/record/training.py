"""What only records of training have: the loss of each step, facts of its end, the bubble of a pipeline."""

from typing import Any, Dict

from flagbench_cases.record import measured, pipeline
from flagbench_cases.record.checks import Subject


def quality(record: Dict[str, Any], subject: Subject) -> Dict[str, Any]:
    """The fields of `quality` that training adds; adds each rank's bubble to its entry in the record."""
    request, evidence, curve = subject.request, subject.evidence, subject.curve
    resumed, warmup = evidence.first("resumed"), subject.config["train"]["warmup_steps"]
    bubbles = pipeline.bubbles(evidence.steps, warmup, len(curve), request.layout)
    for entry in record["ranks"]:
        if entry["rank"] in bubbles:
            entry["bubble"] = bubbles[entry["rank"]]
    return {
        "losses": measured.losses(curve, resumed.get("step", 0)),
        "converged": evidence.first("timing").get("converged"),
        "resumed": resumed or None,
        "training": {**evidence.first("training"), **pipeline.facts(bubbles, request.layout)} or None,
    }
