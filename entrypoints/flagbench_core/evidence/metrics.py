"""Single metrics, each from integers of the evidence; the definitions are in rank/train_loop.py and infer_loop.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flagbench_core.evidence import stats
from flagbench_core.evidence.columns import MICRO
from flagbench_core.evidence.section import Stretch
from flagbench_core.stats.within import METHOD, within_run

GIB = 1024.0**3
LOSS_TAIL = 50
PUBLISHER = "as published: "
DEVICE = ("device",)
"""What p_core counts of a step."""
OWN = ("data_wait", "to_device", "host", "after")
"""What p_train counts of a step: a rank's time from one step to the next."""
PUBLISHED = ("data_wait", "to_device", "host")
"""What the publishers' p_train counts: their clocks stop when the host finishes the step."""
HOST = ("host",)
"""What the publishers' p_core counts."""


class Window(NamedTuple):
    """The steps that p_core is computed from, as its slowest rank took them."""

    stretch: Stretch
    rank: int
    micro: list[int]  # the device time of each block, microseconds

    @property
    def seconds(self) -> float:
        """Device time of the slowest rank."""
        return sum(self.micro) / MICRO


def window_of(stretch: Stretch) -> Window | None:
    """The steps of a stretch, timed by its slowest rank; None if it has no steps."""
    if not stretch.steps:
        return None
    rank = stretch.slowest(DEVICE)
    return Window(stretch, rank, stretch.time(DEVICE, rank))


def metric(name: str, value: float, unit: str, scope: str = "job", **more: Any) -> dict[str, Any]:
    """An entry of `metrics`; None values are omitted."""
    entry = {"name": name, "value": value, "unit": unit, "scope": scope}
    entry.update({key: item for key, item in more.items() if item is not None})
    return entry


def rate(
    name: str, unit: str, amounts: Sequence[float], micro: Sequence[int], steps: int, note: str
) -> dict[str, Any] | None:
    """Amounts over times of blocks as a metric, with its within-run interval or why it has none; None if they took
    no time."""
    if not sum(micro):
        return None
    seconds = [value / MICRO for value in micro]
    found = within_run(amounts, seconds, steps)
    timed = [index for index, value in enumerate(seconds) if value]
    return metric(
        name,
        math.fsum(amounts) * MICRO / sum(micro),
        unit + "/s",
        n=steps,
        stdev=stats.stdev([amounts[index] / seconds[index] for index in timed]),
        ci95=list(found.interval) if found.interval else None,
        ci_method=METHOD if found.interval else None,
        ci_reason=None if found.refusal is None else str(found.refusal),
        note=note,
    )


def entire(name: str, unit: str, amount: float, micro: int, note: str) -> dict[str, Any] | None:
    """The total amount over the total time, as a metric; None if it took no time."""
    return metric(name, amount * MICRO / micro, unit + "/s", n=1, note=note) if micro else None


def utilisation(steady: Window, devices: int, peak: float | None, ceiling: float | None) -> list[dict[str, Any]]:
    """mfu and hfu relative to the datasheet's peak, mfu_measured relative to this run's matrix product; fractions."""
    seconds = steady.seconds * devices
    if not seconds:
        return []
    achieved, recomputed = (steady.stretch.flops(name) / seconds for name in ("executed", "recomputed"))
    found = []
    if peak:
        recomputation = "including recomputation" if recomputed else "equal to mfu: nothing is recomputed"
        found.append(metric("mfu", achieved / peak, "fraction", note="executed model FLOPs, including padding"))
        found.append(metric("hfu", (achieved + recomputed) / peak, "fraction", note=recomputation))
        useful = steady.stretch.flops("useful") / seconds
        found.append(metric("mfu_useful", useful / peak, "fraction", note="without padding"))
    if ceiling:
        note = "relative to the matrix product measured in this run"
        found.append(metric("mfu_measured", achieved / ceiling, "fraction", note=note))
        if recomputed:
            found.append(metric("hfu_measured", (achieved + recomputed) / ceiling, "fraction", note=note))
    return found


def published_utilisation(
    found: Sequence[dict[str, Any]], formula: Mapping[str, Any] | None, devices: int, precision: str
) -> list[dict[str, Any]]:
    """mfu_published_formula: computed with the publisher's FLOPs per unit of work and the publisher's peak."""
    base = next((entry for entry in found if formula and entry["name"] == formula["metric"]), None)
    if formula is None or base is None:
        return []
    share = 1 if base["scope"] == "device" else devices
    peak = formula.get("peaks", {}).get(precision, formula["peak"])
    scale = formula["flops_per_unit"] / peak / share
    note = "{}: {} x {:g} FLOP / {:g} FLOP/s".format(
        formula["id"], formula["metric"], formula["flops_per_unit"], peak
    )
    interval = [bound * scale for bound in base["ci95"]] if "ci95" in base else None
    return [
        metric(
            "mfu_published_formula",
            base["value"] * scale,
            "fraction",
            n=base.get("n"),
            ci95=interval,
            ci_method=base.get("ci_method"),
            ci_reason=base.get("ci_reason"),
            note=note,
        )
    ]


def memory(by_rank: Mapping[str, Sequence[int | None]], kind: str) -> list[dict[str, Any]]:
    """mem_peak and allocator_peak, GiB, maximum over devices; `kind`: of device, cpu or cuda."""
    peaks = [peak for peak in by_rank.get("peak", ()) if peak]
    allocators = [peak for peak in by_rank.get("allocator_peak", ()) if peak]
    found = []
    if peaks:
        note = "resident set of the largest rank" if kind == "cpu" else "in use on the device when training ended"
        found.append(metric("mem_peak", max(peaks) / GIB, "GiB", "device", n=len(peaks), note=note))
    if allocators:
        note = "maximum sum of live tensors"
        found.append(metric("allocator_peak", max(allocators) / GIB, "GiB", "device", n=len(allocators), note=note))
    return found


def final_loss(tail: Sequence[float | None]) -> list[dict[str, Any]]:
    """The mean of the last losses of a run, at most LOSS_TAIL; nothing without losses or if one is not finite."""
    tail = tail[-LOSS_TAIL:]
    finite = [loss for loss in tail if loss is not None and math.isfinite(loss)]
    if not finite or len(finite) < len(tail):
        return []
    note = f"mean training loss of the last {len(tail)} steps"
    return [metric("loss", sum(finite) / len(tail), "nats", n=len(tail), note=note)]


def evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """acc, acc_as_published and the case's additional results, each from the last evaluation that has it."""
    after = [e for e in evaluations if e["epoch"] >= 0]
    found: dict[str, dict[str, Any]] = {}
    for evaluation in after:
        count = evaluation["counted"]
        if evaluation["accuracy"] is not None:
            note = f"each of {count} examples counted once"
            found["acc"] = metric("acc", evaluation["accuracy"], "fraction", n=count, note=note)
        if evaluation["published_accuracy"] is not None:
            found["acc_as_published"] = metric(
                "acc_as_published",
                evaluation["published_accuracy"],
                "fraction",
                n=count,
                note="evaluated and counted as by the publisher; see the quirks of the case",
            )
        for extra in evaluation["extra"]:
            found[extra["name"]] = metric(extra["name"], extra["value"], extra["unit"], note=extra["note"])
    return list(found.values())
