"""A summary of a record in a few lines, for a person who runs an image without the flagbench command.

node/main.py prints it on stderr when a run has ended.
"""

from __future__ import annotations

from typing import Any

from flagbench_core.exit_codes import ExitCode

NEXT = "next: save stdout as record.json (`> record.json`), then `flagbench verify record.json`"
"""The last line, which tells the reader what to do with the record."""
RESULTS = ("acc", "loss")
"""Metrics of what a model learned. The first one that a record has is printed."""


def lines(record: dict[str, Any], gate: str | None) -> list[str]:
    """Return the lines of the summary: the metric `gate`, the accuracy or loss, the checks, and the next command.

    The list is empty for a run that did not complete, because its error has been printed.
    """
    status = record["status"]
    quality = record["quality"]
    # A run whose checks failed is complete too, and has the exit code INVALID.
    complete = status["state"] == "ok" or status["exit_code"] == ExitCode.INVALID
    if not complete or quality is None:
        return []
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    summary = []
    if gate in metrics:
        summary.append(format_speed(metrics[gate]))
    for name in RESULTS:
        if name in metrics:
            summary.append(format_result(metrics[name]))
            break
    return [*summary, format_checks(quality["checks"]), NEXT]


def format_result(metric: dict[str, Any]) -> str:
    """Format an accuracy or loss, such as `loss 0.7142, mean training loss of the last 50 steps`."""
    text = f"{metric['name']} {metric['value']:.4g}"
    if metric.get("note"):
        text += f", {metric['note']}"
    return text


def format_speed(metric: dict[str, Any]) -> str:
    """Format a rate, such as `p_core 555.5 samples/s, 95 % interval 550.5 to 560.5`, or why it has no interval.

    A metric measured on several devices also has `(slowest device: rank 5, 389.9, 70.2 % of the others)`.
    """
    text = f"{metric['name']} {format_number(metric['value'])} {metric['unit']}"
    if "slowest_device" in metric:
        slowest = metric["slowest_device"]
        value = format_number(slowest["value"])
        percent = 100 * slowest["share"]
        text += f" (slowest device: rank {slowest['rank']}, {value}, {percent:.1f} % of the others)"
    if "ci95" in metric:
        low, high = metric["ci95"]
        return f"{text}, 95 % interval {format_number(low)} to {format_number(high)}"
    if "ci_reason" in metric:
        return f"{text}, without a 95 % interval: {metric['ci_reason']}"
    return text


def format_checks(outcomes: list[dict[str, Any]]) -> str:
    """Say how many of the run's own checks passed, and name those that failed.

    `outcomes`: the record's `quality.checks`, each with a `name` and `ok`.
    """
    count = len(outcomes)
    failed = [check["name"] for check in outcomes if not check["ok"]]
    if failed:
        names = ", ".join(failed)
        return f"{count - len(failed)} of {count} checks passed; failed: {names}"
    if count == 1:
        return "1 check passed"
    return f"all {count} checks passed"


def format_number(value: float) -> str:
    """Format a number with four digits, or all digits of a larger one: 0.9775, 555.5, 12,473."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
