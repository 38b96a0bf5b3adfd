"""What a row has to say for anybody to repeat it, and settings that contradict each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from flagbench.claims.rows import LintFinding, Row

_ELSEWHERE = frozenset(
    ("device_model", "devices", "nodes", "precision", "division", "model", "optimizer", "batch_size", "choices")
)
"""Conditions of a gate that are asked for by rules of their own, or that the case's name settles."""
_LAYOUT = re.compile(r"(?<![A-Za-z])(dp|tp|pp)(\d{1,7})", re.IGNORECASE)
_MEANS = {"fp32": ("fp32", "tf32"), "amp": ("fp16", "bf16")}
"""What a label may stand for: on Ampere and later `fp32` is commonly TF32."""


def conditions(row: Row) -> Iterator[LintFinding]:
    """Every condition that the case's gate depends on is stated: its device, number of devices, precision and batch.

    A condition without a column is that of the case's reference preset. A blank cell in a column says nothing, and so
    does a device's name that fits several with different peaks.
    """
    yield from _device(row)
    if row.devices is None:
        yield _missing(row, "devices", "write the nodes, and the devices of each")
    elif row.nodes is None and row.devices > 1:
        yield _missing(row, "nodes", f"write how many nodes the {row.devices} devices are in")
    if not row.precision and not row.executed:
        yield _missing(
            row, "precision", "write in which precision the matrix products were executed, such as tf32 or bf16"
        )
    needed = _needed(row)
    if "batch_size" in needed and not {"batch_size", "global_batch_size"} & row.conditions.keys():
        yield _missing(row, "batch_size", f"{row.case.gate} depends on it; write the batch of each device")
    work = row.work
    if work is not None and work.most > 1:
        yield _missing(row, "choices", f"a sample is 1 to {work.most} sequences; write the mean number")
    silent = needed - row.conditions.keys() if row.complete else needed & (row.unstated | row.blank)
    for name in sorted(silent - _ELSEWHERE):
        yield _missing(row, name, f"{row.case.gate} depends on it; write what the run had")


def stated(row: Row) -> Iterator[LintFinding]:
    """A condition that no gate depends on, but of which the row says that it was not published."""
    known = {name for names in row.case.condition_groups.values() for name in names}
    for name in sorted((row.unstated & known) - _needed(row) - _ELSEWHERE):
        if name != "cuda" or any(card.name.startswith("NVIDIA") for card in row.cards):
            yield row.finding(name, "not-published", "the value is withheld; write what the run had")


def gate(row: Row) -> Iterator[LintFinding]:
    """A row has the metric that decides whether its case is reproduced."""
    if row.metrics and row.gate is None:
        others = ", ".join(name for name in row.metrics if name != "mem_peak") or "only memory"
        yield row.finding(
            row.case.gate,
            "gate-missing",
            f"there is no {row.case.gate}, and a verdict on {row.case.name} needs it ({others})",
        )


def utilisation_blank(rows: Sequence[Row]) -> Iterator[LintFinding]:
    """A row has an MFU if another of its case and device has one, and if it has the speed."""
    having = {(row.case.name, row.device.lower()) for row in rows if "mfu" in row.metrics}
    for row in rows:
        if row.gate and "mfu" not in row.metrics and (row.case.name, row.device.lower()) in having:
            yield row.finding(
                "mfu", "mfu-blank", "other rows of this case and device have an MFU; publish it here, too"
            )


def _device(row: Row) -> Iterator[LintFinding]:
    if not row.device:
        yield _missing(row, "device_model", "write the accelerator's full name, such as NVIDIA A100-SXM4-40GB")
    elif len({tuple(sorted(card.flops.items())) for card in row.cards}) > 1:
        names = " or ".join(card.name for card in row.cards)
        yield row.finding(
            "device_model", "form-factor", f"this may be {names}, whose peaks differ; write the full name"
        )


def _needed(row: Row) -> set[str]:
    """The conditions that the gate of the row's case depends on."""
    spec = row.case.metric(row.case.gate)
    return set(spec.depends_on) if spec else set()


def _missing(row: Row, field: str, advice: str) -> LintFinding:
    return row.finding(field, "missing-condition", f"it is not stated; {advice}")


def precision_label(row: Row) -> Iterator[LintFinding]:
    """What was executed is what the label says, or what it commonly stands for."""
    if row.precision and row.executed and row.executed not in _MEANS.get(row.precision, (row.precision,)):
        yield row.finding(
            "precision",
            "precision-label",
            f"labelled {row.precision}, executed in {row.executed}; label it {row.executed}",
        )


def devices(row: Row) -> Iterator[LintFinding]:
    """A claim's conditions and its run have the same number of devices."""
    if row.devices is not None and row.run_devices not in (None, row.devices):
        yield row.finding(
            "devices",
            "contradiction",
            f"{row.devices} devices, and the run has {row.run_devices}; correct one of them",
        )


def layout(row: Row) -> Iterator[LintFinding]:
    """dp x tp x pp = devices; without dp, tp x pp divides them."""
    degrees = _layout(row)
    if not degrees or row.devices is None:
        return
    product = math.prod(degrees.values())
    if product == 0 or (row.devices != product if "dp" in degrees else row.devices % product):
        yield row.finding(
            "layout",
            "contradiction",
            f"{row.conditions['layout']} needs {product} devices, and the row has {row.devices}; correct one of them",
        )


def global_batch(row: Row) -> Iterator[LintFinding]:
    """global batch = batch x devices / (tp x pp) x accumulation, of a row that states all of them."""
    names = ("global_batch_size", "batch_size", "gradient_accumulation_steps")
    if row.devices is None or any(name not in row.conditions for name in names):
        return
    whole, batch, steps = (row.number_of(name) for name in names)
    degrees = _layout(row)
    replicas = row.devices / (degrees.get("tp", 1) * degrees.get("pp", 1) or 1)
    if whole and batch and steps and whole != batch * steps * replicas:
        yield row.finding(
            "global_batch_size",
            "contradiction",
            f"{whole:g} is not {batch:g} x {steps:g} accumulated x {replicas:g} replicas; correct one of them",
        )


def _layout(row: Row) -> dict[str, int]:
    """`dp1 tp4 pp8` as degrees by name."""
    found = _LAYOUT.findall(row.conditions.get("layout", ""))
    return {name.lower(): int(degree) for name, degree in found}
