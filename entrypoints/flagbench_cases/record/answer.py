"""A summary of a record in a few lines, for a person who runs an image without the flagbench command."""

from __future__ import annotations

from typing import Any

from flagbench_core.exit_codes import ExitCode

NEXT = "next: save stdout as record.json (`> record.json`), then `flagbench verify record.json`"
RESULTS = ("acc", "loss")
"""Metrics of what a model learned. The first one that a record has is printed."""


def lines(record: dict[str, Any], gate: str | None) -> list[str]:
    """The metric `gate`, the accuracy or loss, the checks, and what to type next.

    Empty for a run that did not complete: its error has been printed.
    """
    status, quality = record["status"], record["quality"]
    complete = status["state"] == "ok" or status["exit_code"] == ExitCode.INVALID
    if not complete or quality is None:
        return []
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    summary = []
    if gate in metrics:
        summary.append(speed(metrics[gate]))
    for name in RESULTS:
        if name in metrics:
            summary.append(learned(metrics[name]))
            break
    return [*summary, checks(quality["checks"]), NEXT]


def learned(metric: dict[str, Any]) -> str:
    """`loss 0.7142, mean training loss of the last 50 steps`."""
    text = f"{metric['name']} {metric['value']:.4g}"
    if metric.get("note"):
        text += f", {metric['note']}"
    return text


def speed(metric: dict[str, Any]) -> str:
    """`p_core 555.5 samples/s, 95 % interval 550.5 to 560.5`, or why it has no interval.

    Of a metric of several devices also `(slowest device: rank 5, 389.9, 70.2 % of the others)`.
    """
    text = f"{metric['name']} {number(metric['value'])} {metric['unit']}"
    if "slowest_device" in metric:
        slowest = metric["slowest_device"]
        percent = 100 * slowest["share"]
        text += (
            f" (slowest device: rank {slowest['rank']}, {number(slowest['value'])}, {percent:.1f} % of the others)"
        )
    if "ci95" in metric:
        low, high = metric["ci95"]
        return f"{text}, 95 % interval {number(low)} to {number(high)}"
    if "ci_reason" in metric:
        return f"{text}, without a 95 % interval: {metric['ci_reason']}"
    return text


def checks(outcomes: list[dict[str, Any]]) -> str:
    """How many of the run's own checks passed, and the names of the others."""
    count = len(outcomes)
    failed = [check["name"] for check in outcomes if not check["ok"]]
    if failed:
        names = ", ".join(failed)
        return f"{count - len(failed)} of {count} checks passed; failed: {names}"
    if count == 1:
        return "1 check passed"
    return f"all {count} checks passed"


def number(value: float) -> str:
    """Four digits, or all of a larger number: 0.9775, 555.5, 12,473."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
