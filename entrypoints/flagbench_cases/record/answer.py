"""What a record says, in a few lines for a person who runs an image without the flagbench command."""

from typing import Any, Dict, List, Optional

from flagbench_core.exit_codes import ExitCode

NEXT = "next: save stdout as record.json (`> record.json`), then `flagbench verify record.json`"
RESULTS = ("acc", "loss")
"""Metrics of what a model learned: the first that a record has is shown."""


def lines(record: Dict[str, Any], gate: Optional[str]) -> List[str]:
    """The metric `gate`, the accuracy or loss, the checks, and what to type next.

    None for a run that measured nothing to the end: its error is its answer.
    """
    status, quality = record["status"], record["quality"]
    complete = status["state"] == "ok" or status["exit_code"] == ExitCode.INVALID
    if not complete or quality is None:
        return []
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    found = []
    if gate in metrics:
        found.append(speed(metrics[gate]))
    result = next((metrics[name] for name in RESULTS if name in metrics), None)
    if result is not None:
        found.append(learned(result))
    return [*found, checks(quality["checks"]), NEXT]


def learned(metric: Dict[str, Any]) -> str:
    """`loss 0.7142, mean training loss of the last 50 steps`."""
    text = "%s %.4g" % (metric["name"], metric["value"])
    return "%s, %s" % (text, metric["note"]) if metric.get("note") else text


def speed(metric: Dict[str, Any]) -> str:
    """`p_core 555.5 samples/s, 95 % interval 550.5 to 560.5`, or why it has no interval.

    Of a metric of several devices also `(slowest device: rank 5, 389.9, 70.2 % of the others)`.
    """
    text = "%s %s %s" % (metric["name"], number(metric["value"]), metric["unit"])
    if "slowest_device" in metric:
        slowest = metric["slowest_device"]
        text += " (slowest device: rank %d, %s, %.1f %% of the others)" % (
            slowest["rank"],
            number(slowest["value"]),
            100 * slowest["share"],
        )
    if "ci95" in metric:
        low, high = metric["ci95"]
        return "%s, 95 %% interval %s to %s" % (text, number(low), number(high))
    if "ci_reason" in metric:
        return "%s, without a 95 %% interval: %s" % (text, metric["ci_reason"])
    return text


def checks(made: List[Dict[str, Any]]) -> str:
    """How many of the run's own checks passed, and the names of the others."""
    failed = [check["name"] for check in made if not check["ok"]]
    if failed:
        return "%d of %d checks passed; failed: %s" % (len(made) - len(failed), len(made), ", ".join(failed))
    if len(made) == 1:
        return "1 check passed"
    return "all %d checks passed" % len(made)


def number(value: float) -> str:
    """Four digits, or all of a larger number: 0.9775, 555.5, 12,473."""
    return "{:,.0f}".format(value) if abs(value) >= 1000 else "%.4g" % value
