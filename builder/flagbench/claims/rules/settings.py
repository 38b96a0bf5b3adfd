"""Settings that contradict each other, or that the row does not name."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flagbench.claims.finding import Finding
from flagbench.claims.labels import named_settings, read_label, read_layout
from flagbench.claims.rows import Row, reference_condition

_NAMED = ("batch_size", "learning_rate", "gradient_accumulation_steps", "workers")
_MEANS = {"fp32": ("fp32", "tf32"), "amp": ("fp16", "bf16")}
"""What a label may stand for: on Ampere and later `fp32` is commonly TF32."""
_CUDA = {"1.8.0a0+52ea372": "11.2", "1.12.0a0+bd13bc6": "11.6", "1.12.0a0+8a1a93a": "11.7"} | {
    **{"1.13.0a0+936e930": "11.8", "1.14.0a0+410ce96": "11.8", "2.10.0a0+b4e4ee81d3": "13.1"}
}
"""The CUDA of NVIDIA's containers by their torch (release notes of NGC PyTorch 21.02 to 25.12)."""


def precision_label(row: Row) -> Iterator[Finding]:
    """What was executed is what the label says, or what it commonly stands for."""
    if row.precision and row.executed and row.executed not in _MEANS.get(row.precision, (row.precision,)):
        yield row.finding(
            "precision",
            "precision-label",
            f"labelled {row.precision}, executed in {row.executed}; label it {row.executed}",
        )


def devices(row: Row) -> Iterator[Finding]:
    """A claim's conditions, its run and its label have the same number of devices."""
    if row.devices is None:
        return
    label = read_label(row.publication.label)
    if label.cards not in (None, row.devices):
        yield row.finding(
            "devices",
            "label",
            f"the label says {label.cards} cards in all, and the row has {row.devices} devices; "
            "write the total number of devices",
        )
    grid = None if label.grid == label.cards else label.grid
    for other, where in ((row.publication.run_devices, "the run"), (grid, "the label's grid")):
        if other not in (None, row.devices):
            yield row.finding(
                "devices",
                "contradiction",
                f"{row.devices} devices, and {where} has {other}; correct one of them",
            )


def layout(row: Row) -> Iterator[Finding]:
    """dp x tp x pp = devices; without dp, tp x pp divides them."""
    degrees = read_layout(row.conditions.get("layout", ""))
    if not degrees or row.devices is None:
        return
    product = math.prod(degrees.values())
    if product == 0 or (row.devices != product if "dp" in degrees else row.devices % product):
        yield row.finding(
            "layout",
            "contradiction",
            f"{row.conditions['layout']} needs {product} devices, and the row has {row.devices}; correct one of them",
        )


def global_batch(row: Row) -> Iterator[Finding]:
    """global batch = batch x devices / (tp x pp) x accumulation, of a row that states all of them."""
    names = ("global_batch_size", "batch_size", "gradient_accumulation_steps")
    if row.devices is None or any(name not in row.conditions for name in names):
        return
    whole, batch, steps = (row.number_of(name) for name in names)
    degrees = read_layout(row.conditions.get("layout", ""))
    replicas = row.devices / (degrees.get("tp", 1) * degrees.get("pp", 1) or 1)
    if whole and batch and steps and whole != batch * steps * replicas:
        yield row.finding(
            "global_batch_size",
            "contradiction",
            f"{whole:g} is not {batch:g} x {steps:g} accumulated x {replicas:g} replicas; correct one of them",
        )


def named(row: Row) -> Iterator[Finding]:
    """A row that lists what was changed lists all of it: of `complete` rows, whose conditions are all known."""
    label = row.publication.label
    if not row.complete or "config_" in label:
        return
    listed = named_settings(label.rpartition("|")[2])
    for name in _NAMED:
        value = reference_condition(row.case, name)
        own = row.number_of(name) if name in row.conditions else None
        if name not in listed and isinstance(value, int | float) and own is not None and own != value:
            yield row.finding(
                name,
                "unnamed",
                f"{own:g}, and the base configuration has {value:g}; the row has to name what it changed",
            )


def software(row: Row) -> Iterator[Finding]:
    """A torch of one of NVIDIA's containers goes with that container's CUDA."""
    torch, cuda = row.conditions.get("torch", ""), row.conditions.get("cuda", "")
    expected = next((version for name, version in _CUDA.items() if name in torch), None)
    if expected is not None and cuda and not cuda.startswith(expected):
        yield row.finding(
            "cuda",
            "contradiction",
            f"torch {torch} is that of a container with CUDA {expected}, and the row says {cuda}",
        )
