"""What a row has to say for anybody to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flagbench.claims.finding import Finding
from flagbench.claims.rows import Row

_ELSEWHERE = frozenset(
    ("device_model", "devices", "nodes", "precision", "division", "model", "optimizer", "batch_size", "choices")
)
"""Conditions of a gate that are asked for by rules of their own, or that the case's name settles."""


def conditions(row: Row) -> Iterator[Finding]:
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


def stated(row: Row) -> Iterator[Finding]:
    """A condition that no gate depends on, but of which the row says that it was not published."""
    known = {name for names in row.case.condition_groups.values() for name in names}
    for name in sorted((row.unstated & known) - _needed(row) - _ELSEWHERE):
        if name != "cuda" or any(card.name.startswith("NVIDIA") for card in row.cards):
            yield row.finding(name, "not-published", "the value is withheld; write what the run had")


def gate(row: Row) -> Iterator[Finding]:
    """A row has the metric that decides whether its case is reproduced."""
    if row.metrics and row.gate is None:
        others = ", ".join(name for name in row.metrics if name != "mem_peak") or "only memory"
        yield row.finding(
            row.case.gate,
            "gate-missing",
            f"there is no {row.case.gate}, and a verdict on {row.case.name} needs it ({others})",
        )


def utilisation_blank(rows: Sequence[Row]) -> Iterator[Finding]:
    """A row has an MFU if another of its case and device has one, and if it has the speed."""
    having = {(row.case.name, row.device.lower()) for row in rows if "mfu" in row.metrics}
    for row in rows:
        if row.gate and "mfu" not in row.metrics and (row.case.name, row.device.lower()) in having:
            yield row.finding(
                "mfu", "mfu-blank", "other rows of this case and device have an MFU; publish it here, too"
            )


def _device(row: Row) -> Iterator[Finding]:
    if not row.device:
        yield _missing(row, "device_model", "write the accelerator's full name, such as NVIDIA A100-SXM4-40GB")
    elif len(row.cards) > 1:
        precisions = row.precisions or ("fp32", "tf32", "fp16", "bf16")
        peaks = {tuple(card.peaks.get(name) for name in precisions) for card in row.cards}
        if len({tuple(sorted(card.peaks.items())) for card in row.cards}) > 1 or len(peaks) > 1:
            names = " or ".join(card.name for card in row.cards)
            yield row.finding(
                "device_model", "form-factor", f"this may be {names}, whose peaks differ; write the full name"
            )


def _needed(row: Row) -> set[str]:
    """The conditions that the gate of the row's case depends on."""
    spec = row.case.metric(row.case.gate)
    return set(spec.depends_on) if spec else set()


def _missing(row: Row, field: str, advice: str) -> Finding:
    return row.finding(field, "missing-condition", f"it is not stated; {advice}")
